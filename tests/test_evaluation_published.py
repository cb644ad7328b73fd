"""Published protocols that train: against plain torch, the encoder untouched, resumed, recorded, refused."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import zoo
from tests.evaluation_helpers import MEAN, STD, VIEW, digits, encoder, entry_of, state_of
from tests.test_training import stop_after
from zoo.data import TrainLoader, ViewsConfig, eval_images
from zoo.data.config import Subset
from zoo.data.long_tail import select_subset
from zoo.data.ops import HorizontalFlip, RandomResizedCrop
from zoo.errors import Interrupted, ZooError
from zoo.hub.fetch import release_files

SHORT: dict[str, dict[str, Any]] = {  # digits are no photographs: mild crops
    "linear_full": dict(epochs=20, milestones=[10], lr=0.3, batch_size=16),
    "semi_supervised": dict(epochs=20, batch_size=16),
}
for each in SHORT.values():
    each.update(scale=[0.8, 1.0], ratio=[1.0, 1.0], flip=0.0)


@pytest.mark.parametrize("name", SHORT)
def test_a_training_is_that_of_a_restatement_in_plain_torch(name: str, tmp_path: Path) -> None:
    linear, data, model, head = (
        name == "linear_full",
        digits(encoder(), every=5),
        encoder(),
        nn.Linear(64, 10),
    )
    own: dict[str, Any] = dict(batch_size=32, lr=0.02, init_std=0.1, fraction=0.3)
    if linear:
        own = dict(batch_size=64, lr=0.7, weight_decay=0.01, milestones=[1, 2])
    settings = {"epochs": 3, "scale": [0.5, 1.0], "seed": 3, **own}
    still = {**settings, "epochs": 1, "lr": 0.0} | ({"milestones": []} if linear else {})
    entry = entry_of(name, data, tmp_path / "run", **settings)
    entry_of(name, data, tmp_path / "start", **still)
    start, found = state_of(tmp_path / "start"), state_of(tmp_path / "run")
    head.load_state_dict({key: start[f"classifier.{key}"] for key in ("weight", "bias")})

    images = whole = data.probe.train_set
    if not linear:
        images = whole.subset(select_subset(Subset(fraction=0.3, seed=3), whole.labels, whole.num_classes))
    assert len(images) % own["batch_size"]  # there is a rest, which the whole network leaves out
    view = [RandomResizedCrop(size=8, scale=[0.5, 1.0]), HorizontalFlip(p=0.5)]
    views = ViewsConfig(backend="tensor", train=[view], eval=VIEW)
    given = dict(mean=MEAN, std=STD, batch_size=own["batch_size"], drop_last=not linear, seed=3, device="cpu")
    loader = TrainLoader(images, views, **given)
    steps = 3 * loader.steps_per_epoch
    if linear:
        model.eval()
        optimizer = torch.optim.SGD(head.parameters(), 0.7, momentum=0.9, weight_decay=0.01)
        milestones = [loader.steps_per_epoch, 2 * loader.steps_per_epoch]
        schedule: Any = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones)
    else:
        weights = [*model.train().requires_grad_(True).parameters(), *head.parameters()]
        optimizer = torch.optim.SGD(weights, 0.02, momentum=0.9, nesterov=True)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for batch in loader.stream(0, steps):
        optimizer.zero_grad()
        F.cross_entropy(head(model(batch.views[0])), batch.labels).backward()
        optimizer.step()
        schedule.step()

    close = {"atol": 2e-6, "rtol": 1e-4} if linear else {"atol": 1e-4, "rtol": 1e-3}
    for key, value in head.state_dict().items():
        torch.testing.assert_close(found[f"classifier.{key}"], value, **close)
    for key, value in model.state_dict().items():
        torch.testing.assert_close(found[f"encoder.{key}"], value, atol=1e-3, rtol=1e-2)
    assert (head.weight - start["classifier.weight"]).abs().max() > 0.01  # it has learned something
    assert entry["chosen"] == {"backend": "tensor"} | ({} if linear else {"train_images": len(images)})
    tested = eval_images(data.test_set, VIEW, MEAN, STD, batch_size=100, device="cpu")
    pixels, labels = (torch.cat(each) for each in zip(*tested, strict=True))
    with torch.no_grad():  # the fine-tuned encoder counts, under the evaluation view
        right = (head(model.eval()(pixels)).argmax(1) == labels).float().mean().item()
    assert entry["metrics"]["accuracy"] == pytest.approx(100 * right, abs=0.4)


@pytest.mark.parametrize(
    ("name", "settings", "frozen"),
    [
        ("linear_full", {"milestones": [1], "precision": "bf16", "channels_last": True}, True),
        ("semi_supervised", {}, False),
    ],
)
def test_the_encoder_is_left_exactly_as_it_was(name, settings, frozen, tmp_path: Path) -> None:
    def looks() -> list[Any]:
        modes = [module.training for module in model.modules()]
        flags = [parameter.requires_grad for parameter in model.parameters()]
        return [modes, flags, [value.stride() for value in model.state_dict().values()]]

    model = encoder()
    weights, before = {key: value.clone() for key, value in model.state_dict().items()}, looks()
    entry_of(name, digits(model, every=5), tmp_path / "run", epochs=2, lr=0.1, **settings)
    trained = state_of(tmp_path / "run")
    for key, value in weights.items():  # BatchNorm's statistics and counts among them
        assert torch.equal(model.state_dict()[key], value), key
        assert not frozen or torch.equal(trained[f"encoder.{key}"], value), key
    assert frozen == torch.equal(trained["encoder.conv1.weight"], weights["conv1.weight"])
    assert trained["classifier.weight"].abs().max() > 0
    assert looks() == before


@pytest.mark.parametrize("name", SHORT)
def test_stopped_and_resumed_it_gives_the_same_figures(
    name: str, copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SHORT[name]
    whole = zoo.evaluate(copied, name, out=tmp_path / "whole", save=False, **settings)
    stop_after(tmp_path / "cut", 1, signal.SIGTERM)
    with pytest.raises(Interrupted, match=r"stopped by SIGTERM after step .*--resume"):
        zoo.evaluate(copied, name, out=tmp_path / "cut", save=False, **settings)
    with pytest.raises(ZooError, match="holds a run already; use --resume"):
        zoo.evaluate(copied, name, out=tmp_path / "cut", save=False, **settings)
    with pytest.raises(ZooError, match=r"run of another recipe.*optimizer\.lr was"):
        zoo.evaluate(copied, name, out=tmp_path / "cut", save=False, resume=True, **{**settings, "lr": 0.2})
    before, release = {*release_files(copied)}, zoo.open(copied)
    resumed = zoo.evaluate(copied, name, out=tmp_path / "cut", resume=True, **settings)
    assert resumed["metrics"] == whole["metrics"]
    assert release.metrics["evaluations"][-1] == resumed and {*release_files(copied)} == before
    first, second = state_of(tmp_path / "whole"), state_of(tmp_path / "cut")
    assert all(torch.equal(value, second[key]) for key, value in first.items())
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")  # the features kept are not of the fine-tuned weights
    again = zoo.evaluate(copied, name, out=tmp_path / "whole", save=False, resume=True, **settings)
    assert again["metrics"] == whole["metrics"]
