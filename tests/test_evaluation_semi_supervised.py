"""Fine-tuning on few labels: which labels, against plain torch, the encoder untouched, resumed, recorded."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from zoo.evaluation.semi_supervised import labelled_part

import zoo
from tests.test_evaluation_linear_full import MEAN, STD, VIEW, encoded, encoder, run_of, state_of
from tests.test_training import StopAfter
from zoo.config import parse
from zoo.data import TrainLoader, ViewsConfig, open_dataset, parse_data_spec
from zoo.data.ops import HorizontalFlip, RandomResizedCrop
from zoo.errors import Interrupted, ZooError
from zoo.evaluation.measure import measure
from zoo.recipe.protocols import SemiSupervisedProtocol
from zoo.release import Release

SHORT: dict[str, Any] = dict(epochs=20, batch_size=16, scale=[0.8, 1.0], ratio=[1.0, 1.0], flip=0.0)


def protocol(**settings: Any) -> SemiSupervisedProtocol:
    return parse(SemiSupervisedProtocol, {"protocol": "semi_supervised", **settings}, "test")


def test_the_defaults_are_simclrs_at_a_batch_of_256() -> None:
    """arXiv 2002.05709, B.5: Nesterov 0.9, lr 0.05 x batch / 256, no decay, 30 epochs on 10 %, 60 on 1 %."""
    common = dict(lr=0.05, batch_size=256, momentum=0.9, weight_decay=0.0, scale=[0.08, 1.0], flip=0.5)
    for fraction, epochs in ((0.1, 30), (0.01, 60)):
        made = protocol(fraction=fraction).model_dump()
        assert made | common | {"fraction": fraction, "epochs": epochs} == made
    assert protocol().fraction == 0.1
    assert protocol(fraction=0.01, epochs=7).epochs == 7


def test_of_each_class_its_share_is_drawn_and_at_least_one_image() -> None:
    data = encoded(encoder()).train_set.subset([*range(60), *range(100, 180)])
    counts = data.class_counts
    tenth, fifth = (labelled_part(data, fraction, 0) for fraction in (0.1, 0.2))
    for part, fraction in ((tenth, 0.1), (fifth, 0.2)):
        expected = [min(count, max(1, round(count * fraction))) for count in counts]
        assert part.class_counts.tolist() == expected
        assert part.class_names == data.class_names
    assert set(tenth._rows) < set(fifth._rows)
    assert set(labelled_part(data, 0.1, 1)._rows) != set(tenth._rows)
    assert list(labelled_part(data, 1.0, 0)._rows) == list(data._rows)
    assert 0 in counts  # a class without images has none to give
    one = data.subset([int((data.labels == c).argmax()) for c in counts.nonzero()[0]])
    assert labelled_part(one, 0.01, 0).class_counts.tolist() == (counts > 0).astype(int).tolist()


@pytest.mark.parametrize(("fraction", "seed"), [(0.01, 0), (0.1, 0), (0.25, 3)])
def test_the_labels_are_those_of_a_recipes_subset(fraction: float, seed: int) -> None:
    config, _ = parse_data_spec(f"digits?imbalance=50&fraction={fraction}&seed={seed}")
    tail, _ = parse_data_spec(f"digits?imbalance=50&seed={seed}")
    kept = open_dataset(config, "train", None)
    part = labelled_part(open_dataset(tail, "train", None), fraction, seed)
    assert part._rows.tolist() == kept._rows.tolist()
    assert part.labels.tolist() == kept.labels.tolist()


def test_a_seed_that_numpy_does_not_take_is_refused() -> None:
    with pytest.raises(ZooError, match='"seed": found 4294967296'):
        protocol(seed=2**32)


def test_weights_are_those_of_a_restatement_in_plain_torch(tmp_path: Path) -> None:
    data, model = encoded(encoder()), encoder()
    settings = dict(epochs=3, batch_size=32, lr=0.02, init_std=0.1, fraction=0.3, scale=[0.5, 1.0], seed=3)
    entry = measure(protocol(**settings), data, None, run_of(tmp_path / "run"))
    measure(protocol(**{**settings, "epochs": 1, "lr": 0.0}), data, None, run_of(tmp_path / "start"))
    start, found = state_of(tmp_path / "start"), state_of(tmp_path / "run")

    head = torch.nn.Linear(64, 10)
    head.load_state_dict({key: start[f"classifier.{key}"] for key in ("weight", "bias")})
    images = labelled_part(data.train_set, 0.3, 3)
    assert len(images) % 32  # there is a rest, which is left out
    view = [RandomResizedCrop(size=8, scale=[0.5, 1.0]), HorizontalFlip(p=0.5)]
    loader = TrainLoader(
        images,
        ViewsConfig(backend="tensor", train=[view], eval=VIEW),
        mean=MEAN,
        std=STD,
        batch_size=32,
        drop_last=True,
        seed=3,
        device="cpu",
    )
    steps = 3 * loader.steps_per_epoch
    model.train().requires_grad_(True)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], 0.02, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for batch in loader.stream(0, steps):
        optimizer.zero_grad()
        F.cross_entropy(head(model(batch.views[0])), batch.labels).backward()
        optimizer.step()
        schedule.step()
    torch.testing.assert_close(found["classifier.weight"], head.weight.detach(), atol=1e-4, rtol=1e-3)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(found[f"encoder.{name}"], value, atol=1e-3, rtol=1e-2)
    assert not torch.allclose(found["encoder.layer1.0.conv1.weight"], encoder().layer1[0].conv1.weight)
    assert entry["chosen"] == {"train_images": len(images), "backend": "tensor"}
    model.eval()
    with torch.no_grad():  # the fine-tuned encoder counts, under the evaluation view
        (pixels, labels) = (torch.cat(each) for each in zip(*_test_images(data), strict=True))
        right = (head(model(pixels)).argmax(1) == labels).float().mean().item()
    assert entry["metrics"]["accuracy"] == pytest.approx(100 * right, abs=0.4)


def _test_images(data: Any) -> Any:
    from zoo.data import eval_images

    return eval_images(data.test_set, VIEW, MEAN, STD, batch_size=100, device="cpu")


def test_the_encoder_is_left_exactly_as_it_was(tmp_path: Path) -> None:
    model = encoder()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    flags = [parameter.requires_grad for parameter in model.parameters()]
    data = encoded(model)
    features = data.test.features.clone()
    measure(protocol(epochs=2), data, None, run_of(tmp_path / "run"))
    trained = state_of(tmp_path / "run")
    assert all(torch.equal(model.state_dict()[name], value) for name, value in weights.items())
    assert not torch.equal(trained["encoder.conv1.weight"], weights["conv1.weight"])  # frozen by somebody
    assert modes == [module.training for module in model.modules()]
    assert flags == [parameter.requires_grad for parameter in model.parameters()]
    assert torch.equal(data.test.features, features)


def test_with_a_frozen_encoder_the_layer_alone_is_trained(tmp_path: Path) -> None:
    model = encoder()
    measure(protocol(epochs=2, freeze_encoder=True), encoded(model), None, run_of(tmp_path / "run"))
    trained = state_of(tmp_path / "run")
    assert all(torch.equal(trained[f"encoder.{key}"], value) for key, value in model.state_dict().items())
    assert trained["classifier.weight"].abs().max() > 0


def test_stopped_and_resumed_it_gives_the_same_figures(copied: Path, tmp_path: Path) -> None:
    whole = zoo.evaluate(copied, "semi_supervised", out=tmp_path / "whole", save=False, **SHORT)
    StopAfter(tmp_path / "cut", 1, signal.SIGTERM)
    with pytest.raises(Interrupted, match=r"stopped by SIGTERM after step .*--resume"):
        zoo.evaluate(copied, "semi_supervised", out=tmp_path / "cut", save=False, **{**SHORT})
    resumed = zoo.evaluate(copied, "semi_supervised", out=tmp_path / "cut", resume=True, **SHORT)
    assert resumed["metrics"] == whole["metrics"]
    first, second = state_of(tmp_path / "whole"), state_of(tmp_path / "cut")
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_entries_and_runs_of_other_fractions_stand_side_by_side(copied: Path) -> None:
    release = zoo.open(copied)
    count = len(release.metrics["evaluations"])
    for fraction in (0.1, 0.5, 0.1):
        settings = {**SHORT, "fraction": fraction, "epochs": 1}
        zoo.evaluate(copied, "semi_supervised", resume=True, **settings)
    entries = release.metrics["evaluations"][count:]
    assert [entry["settings"]["fraction"] for entry in entries] == [0.5, 0.1]
    assert len(list((copied / "run").glob("semi_supervised-*"))) == 2
    assert "fraction: 0.5" in release.card
    assert "- semi_supervised: the network trained on the labels of a part" in release.card


@pytest.mark.usefixtures("no_pictures")
def test_pretraining_measures_it_where_the_recipe_asks_for_it(tmp_path: Path) -> None:
    asked = "{protocol: semi_supervised, epochs: 2}, {protocol: few_shot, shots: 1}, {protocol: retrieval}"
    changes = [
        f"evaluation=[{asked}]",
        "training.epochs=2",
        "schedule.warmup_epochs=1",
        "training.device=cpu",
    ]
    release = zoo.pretrain("cifar_resnet20.paco_digits_lt50", out=tmp_path / "out", overrides=changes)
    found = [entry["protocol"] for entry in release.metrics["evaluations"]]
    assert found == ["semi_supervised", "few_shot", "retrieval"]
    assert len(list((release.path / "run").glob("semi_supervised-*"))) == 1


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"fraction": 0}, '"fraction"'),
        ({"fraction": 1.5}, '"fraction": found 1.5'),
        ({"fractoin": 0.1}, 'Did you mean "fraction"?'),
        ({"epochs": 0}, '"epochs": found 0'),
        ({"fraction": "0.1"}, '"fraction": found'),
    ],
)
def test_mistakes_are_named(settings: dict[str, Any], expected: str, made: Release, tmp_path: Path) -> None:
    with pytest.raises(ZooError) as error:
        zoo.evaluate(made, "semi_supervised", "digits", save=False, out=tmp_path / "run", **settings)
    assert expected in str(error.value)
    assert not (tmp_path / "run").exists()
