"""Published protocols that train: against plain torch, the encoder untouched, resumed, recorded, refused."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import zoo
from tests.evaluation_helpers import MEAN, STD, VIEW, digits, encoder, entry_of, state_of
from tests.test_training import StopAfter
from zoo.data import TrainLoader, ViewsConfig, eval_images
from zoo.data.ops import HorizontalFlip, RandomResizedCrop
from zoo.errors import Interrupted, ZooError
from zoo.evaluation.published import labelled_part
from zoo.hub.fetch import release_files

SHORT: dict[str, dict[str, Any]] = {  # digits are no photographs: mild crops
    "linear_full": dict(epochs=20, milestones=[10], lr=0.3, batch_size=16),
    "semi_supervised": dict(epochs=20, batch_size=16),
}
for each in SHORT.values():
    each.update(scale=[0.8, 1.0], ratio=[1.0, 1.0], flip=0.0)


def loader_of(images: Any, batch_size: int, drop_last: bool) -> TrainLoader:
    view = [RandomResizedCrop(size=8, scale=[0.5, 1.0]), HorizontalFlip(p=0.5)]
    views = ViewsConfig(backend="tensor", train=[view], eval=VIEW)
    settings = dict(mean=MEAN, std=STD, batch_size=batch_size, drop_last=drop_last, seed=3, device="cpu")
    return TrainLoader(images, views, **settings)


def test_a_linear_layer_is_that_of_a_restatement_in_plain_torch(tmp_path: Path) -> None:
    settings = dict(epochs=3, milestones=[1, 2], batch_size=64, lr=0.7, weight_decay=0.01, scale=[0.5, 1.0])
    data = digits(encoder(), every=5)
    entry = entry_of("linear_full", data, tmp_path / "run", **settings, seed=3)
    entry_of("linear_full", data, tmp_path / "start", epochs=1, milestones=[], lr=0.0, seed=3)
    start = state_of(tmp_path / "start")
    weight, bias = start["classifier.weight"].clone(), start["classifier.bias"].clone()
    assert weight.std().item() == pytest.approx(0.01, rel=0.1) and not bias.any()
    loader = loader_of(data.probe.train_set, 64, drop_last=False)
    assert loader.steps_per_epoch == 4  # the last batch of an epoch has 58 images
    model = encoder().eval()
    velocity = [torch.zeros_like(weight), torch.zeros_like(bias)]
    for step, batch in enumerate(loader.stream(0, 12)):
        with torch.no_grad():
            features = model(batch.views[0])
        p = F.softmax(features @ weight.T + bias, dim=1) - F.one_hot(batch.labels, 10)
        gradients = [p.T @ features / len(p) + 0.01 * weight, p.mean(0) + 0.01 * bias]
        for value, v, g in zip((weight, bias), velocity, gradients, strict=True):
            v.mul_(0.9).add_(g)
            value.sub_(0.7 * 0.1 ** (step // 4) * v)
    found = state_of(tmp_path / "run")
    assert (weight - start["classifier.weight"]).abs().max() > 0.01  # it has learned something
    torch.testing.assert_close(found["classifier.weight"], weight, atol=2e-6, rtol=1e-4)
    torch.testing.assert_close(found["classifier.bias"], bias, atol=2e-6, rtol=1e-4)
    truth = torch.tensor(data.test_set.labels)
    right = ((data.probe.test @ weight.T + bias).argmax(1) == truth).float().mean()
    assert entry["metrics"]["accuracy"] == pytest.approx(100 * right.item(), abs=0.2)
    assert (entry["settings"]["lr"], entry["seed"], entry["chosen"]) == (0.7, 3, {"backend": "tensor"})


def test_a_network_on_few_labels_is_that_of_a_restatement_in_plain_torch(tmp_path: Path) -> None:
    data, model = digits(encoder(), every=5), encoder()
    settings = dict(epochs=3, batch_size=32, lr=0.02, init_std=0.1, fraction=0.3, scale=[0.5, 1.0], seed=3)
    entry = entry_of("semi_supervised", data, tmp_path / "run", **settings)
    entry_of("semi_supervised", data, tmp_path / "start", **{**settings, "epochs": 1, "lr": 0.0})
    start, found = state_of(tmp_path / "start"), state_of(tmp_path / "run")
    head = nn.Linear(64, 10)
    head.load_state_dict({key: start[f"classifier.{key}"] for key in ("weight", "bias")})
    images = labelled_part(data.probe.train_set, 0.3, 3)
    assert len(images) % 32  # there is a rest, which is left out
    loader = loader_of(images, 32, drop_last=True)
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
    tested = eval_images(data.test_set, VIEW, MEAN, STD, batch_size=100, device="cpu")
    pixels, labels = (torch.cat(each) for each in zip(*tested, strict=True))
    with torch.no_grad():  # the fine-tuned encoder counts, under the evaluation view
        right = (head(model(pixels)).argmax(1) == labels).float().mean().item()
    assert entry["metrics"]["accuracy"] == pytest.approx(100 * right, abs=0.4)


@pytest.mark.parametrize(
    ("name", "settings", "frozen"),
    [
        ("linear_full", {"milestones": [1], "precision": "bf16", "channels_last": True}, True),
        ("semi_supervised", {"freeze_encoder": True}, True),
        ("semi_supervised", {}, False),
    ],
)
def test_the_encoder_is_left_exactly_as_it_was(name, settings, frozen, tmp_path: Path) -> None:
    model = encoder()
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    strides = {key: value.stride() for key, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    flags = [parameter.requires_grad for parameter in model.parameters()]
    entry_of(name, digits(model, every=5), tmp_path / "run", epochs=2, lr=0.1, **settings)
    trained = state_of(tmp_path / "run")
    for key, value in weights.items():  # BatchNorm's statistics and counts among them
        assert torch.equal(model.state_dict()[key], value), key
        assert not frozen or torch.equal(trained[f"encoder.{key}"], value), key
    assert frozen == torch.equal(trained["encoder.conv1.weight"], weights["conv1.weight"])
    assert trained["classifier.weight"].abs().max() > 0
    assert strides == {key: value.stride() for key, value in model.state_dict().items()}
    assert modes == [module.training for module in model.modules()]
    assert flags == [parameter.requires_grad for parameter in model.parameters()]


@pytest.mark.parametrize("name", SHORT)
def test_stopped_and_resumed_it_gives_the_same_figures(name: str, copied: Path, tmp_path: Path) -> None:
    settings = SHORT[name]
    whole = zoo.evaluate(copied, name, out=tmp_path / "whole", save=False, **settings)
    StopAfter(tmp_path / "cut", 1, signal.SIGTERM)
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
