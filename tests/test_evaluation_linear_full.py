"""The published linear evaluation: against a restatement in plain torch, resumed, recorded, refused."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import zoo
from tests import warm
from tests.test_training import StopAfter
from zoo import backbones
from zoo.config import parse
from zoo.data import DataConfig, EvalView, TrainLoader, ViewsConfig, open_dataset
from zoo.data.ops import HorizontalFlip, RandomResizedCrop
from zoo.errors import Interrupted, ZooError
from zoo.evaluation.measure import Encoded, ProbeRun, measure
from zoo.hub.fetch import release_files
from zoo.objectives import Classify
from zoo.recipe.protocols import LinearFullProtocol
from zoo.release import Release
from zoo.training import RunFolder

MEAN, STD = [0.3, 0.3, 0.3], [0.4, 0.4, 0.4]
MILD: dict[str, Any] = dict(scale=[0.8, 1.0], ratio=[1.0, 1.0], flip=0.0)  # digits are no photographs
DATA = parse(DataConfig, {"source": {"kind": "digits"}}, "test")
VIEW = EvalView(size=8, crop_pct=1.0, interpolation="bilinear")


def encoder() -> nn.Module:
    """A random encoder whose BatchNorm has seen data, so that its statistics matter."""
    torch.manual_seed(0)
    model = backbones.create("cifar_resnet20")
    model.train()(torch.randn(64, 3, 8, 8))
    model.layer1[0].bn1.eval()  # a mode and a flag that somebody set must come back
    model.conv1.weight.requires_grad_(False)
    return model


def encoded(model: nn.Module) -> Encoded:
    train_set, test_set = (open_dataset(DATA, split, None) for split in ("train", "test"))
    train_set = train_set.subset(range(0, 1250, 5))
    return Encoded(model, train_set, test_set, view=VIEW, mean=MEAN, std=STD, device="cpu")


def run_of(folder: Path, **changes: Any) -> ProbeRun:
    return ProbeRun("test", "cifar_resnet20", DATA, folder, exact=True, **changes)


def protocol(**settings: Any) -> LinearFullProtocol:
    return parse(LinearFullProtocol, {"protocol": "linear_full", **settings}, "test")


def state_of(folder: Path) -> dict[str, torch.Tensor]:
    checkpoint = RunFolder(folder).load()
    assert checkpoint is not None
    return checkpoint.state["objective"]


def test_the_defaults_are_those_of_the_published_protocol() -> None:
    """main_lincls.py: 100 epochs, lr 30, batch 256, momentum 0.9, no decay, x0.1 at 60 and 80."""
    assert protocol().model_dump() == {
        "protocol": "linear_full",
        "epochs": 100,
        "batch_size": 256,
        "lr": 30.0,
        "momentum": 0.9,
        "weight_decay": 0.0,
        "milestones": [60, 80],
        "decay_rate": 0.1,
        "init_std": 0.01,
        "scale": [0.08, 1.0],
        "ratio": [3 / 4, 4 / 3],
        "interpolation": "bilinear",
        "flip": 0.5,
        "backend": "auto",
        "precision": "fp32",
        "channels_last": False,
        "seed": 0,
    }


def test_weights_and_accuracy_are_those_of_a_restatement_in_plain_torch(tmp_path: Path) -> None:
    model, settings = encoder(), dict(epochs=3, milestones=[1, 2], batch_size=64, lr=0.7, weight_decay=0.01)
    data = encoded(model)
    entry = measure(protocol(**settings, scale=[0.5, 1.0], seed=3), data, None, run_of(tmp_path / "run"))
    measure(protocol(epochs=1, milestones=[], lr=0.0, seed=3), data, None, run_of(tmp_path / "start"))
    start = state_of(tmp_path / "start")

    weight, bias = start["classifier.weight"].clone(), start["classifier.bias"].clone()
    assert weight.std().item() == pytest.approx(0.01, rel=0.1)
    assert not bias.any()
    loader = TrainLoader(
        data.train_set,
        ViewsConfig(
            backend="tensor",
            train=[[RandomResizedCrop(size=8, scale=[0.5, 1.0]), HorizontalFlip(p=0.5)]],
            eval=VIEW,
        ),
        mean=MEAN,
        std=STD,
        batch_size=64,
        drop_last=False,
        seed=3,
        device="cpu",
    )
    assert loader.steps_per_epoch == 4  # the last batch of an epoch has 58 images
    model.eval()
    velocity = [torch.zeros_like(weight), torch.zeros_like(bias)]
    for step, batch in enumerate(loader.stream(0, 12)):
        lr = 0.7 * 0.1 ** (step // 4)
        with torch.no_grad():
            features = model(batch.views[0])
        p = F.softmax(features @ weight.T + bias, dim=1) - F.one_hot(batch.labels, 10)
        gradients = [p.T @ features / len(p) + 0.01 * weight, p.mean(0) + 0.01 * bias]
        for value, v, g in zip((weight, bias), velocity, gradients, strict=True):
            v.mul_(0.9).add_(g)
            value.sub_(lr * v)

    found = state_of(tmp_path / "run")
    assert (weight - start["classifier.weight"]).abs().max() > 0.01  # it has learned something
    torch.testing.assert_close(found["classifier.weight"], weight, atol=2e-6, rtol=1e-4)
    torch.testing.assert_close(found["classifier.bias"], bias, atol=2e-6, rtol=1e-4)
    with torch.no_grad():
        test = data.test
        right = ((test.features @ weight.T + bias).argmax(1) == test.labels).float().mean()
    assert entry["metrics"]["accuracy"] == pytest.approx(100 * right.item(), abs=0.2)
    assert entry["settings"]["lr"] == 0.7
    assert entry["seed"] == 3
    assert entry["chosen"] == {"backend": "tensor"}


@pytest.mark.parametrize("settings", [{}, {"precision": "bf16", "channels_last": True}])
def test_the_encoder_is_left_exactly_as_it_was(settings: dict[str, Any], tmp_path: Path) -> None:
    model = encoder()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    strides = {name: value.stride() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    flags = [parameter.requires_grad for parameter in model.parameters()]
    measure(
        protocol(epochs=2, milestones=[1], lr=0.1, **settings), encoded(model), None, run_of(tmp_path / "run")
    )
    trained = state_of(tmp_path / "run")
    for name, value in weights.items():  # BatchNorm's statistics and counts among them
        assert torch.equal(model.state_dict()[name], value), name
        assert torch.equal(trained[f"encoder.{name}"], value), name
    assert strides == {name: value.stride() for name, value in model.state_dict().items()}
    assert modes == [module.training for module in model.modules()]
    assert flags == [parameter.requires_grad for parameter in model.parameters()]


def test_no_graph_is_built_through_a_frozen_encoder() -> None:
    from tests.objective_helpers import batch, build

    objective = build("classify", freeze_encoder=True, head_std=0.01).train()
    assert isinstance(objective, Classify)
    assert objective.classifier.training
    assert not any(module.training for module in objective.encoder.modules())
    seen = []
    objective.encoder.register_forward_hook(lambda *_: seen.append(torch.is_grad_enabled()))
    objective(batch(views=1)).loss.backward()
    assert seen == [False]
    with_gradient = {name for name, p in objective.named_parameters() if p.grad is not None}
    assert with_gradient == {"classifier.weight", "classifier.bias"}


def test_it_agrees_with_the_probe_on_cached_features(tmp_path: Path) -> None:
    paco = "cifar_resnet20.paco_digits_lt50"  # a shipped one: features of a brief training differ too much
    cached = zoo.evaluate(paco, "linear", save=False)
    views = dict(views=4, scale=[0.8, 1.0], ratio=[1.0, 1.0], flip=0.0)
    augmented = zoo.evaluate(paco, "linear", save=False, augmentation=views)
    settings = dict(lr=0.3, batch_size=64, epochs=30, milestones=[20], **MILD)
    full = zoo.evaluate(paco, "linear_full", save=False, out=tmp_path / "run", **settings)
    figures = [entry["metrics"]["accuracy"] for entry in (cached, augmented, full)]
    assert max(figures) - min(figures) < 6, figures
    assert min(figures) > 80, figures


SHORT: dict[str, Any] = dict(MILD, epochs=20, milestones=[10], lr=0.3, batch_size=16)  # 22 steps an epoch


def test_stopped_and_resumed_it_gives_the_same_figures(copied: Path, tmp_path: Path) -> None:
    whole = zoo.evaluate(copied, "linear_full", out=tmp_path / "whole", save=False, **SHORT)
    StopAfter(tmp_path / "cut", 3, signal.SIGTERM)
    with pytest.raises(Interrupted, match=r"stopped by SIGTERM after step .* of 440; .*--resume"):
        zoo.evaluate(copied, "linear_full", out=tmp_path / "cut", save=False, **SHORT)
    stopped = RunFolder(tmp_path / "cut").load()
    assert stopped is not None
    assert 60 <= stopped.step < 440
    with pytest.raises(ZooError, match="holds a run already; continue it with --resume"):
        zoo.evaluate(copied, "linear_full", out=tmp_path / "cut", save=False, **SHORT)
    with pytest.raises(ZooError, match=r"run of another recipe.*optimizer\.lr was 0\.3, is 0\.2"):
        zoo.evaluate(
            copied, "linear_full", out=tmp_path / "cut", save=False, resume=True, **{**SHORT, "lr": 0.2}
        )
    resumed = zoo.evaluate(copied, "linear_full", out=tmp_path / "cut", resume=True, **SHORT)
    assert resumed["metrics"] == whole["metrics"]
    first, second = state_of(tmp_path / "whole"), state_of(tmp_path / "cut")
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_the_result_is_an_entry_and_the_run_no_part_of_the_release(copied: Path) -> None:
    release = zoo.open(copied)
    before = {*release_files(copied)}
    count = len(release.metrics["evaluations"])
    settings = {**SHORT, "epochs": 2, "milestones": []}
    entry = zoo.evaluate(copied, "linear_full", **settings)
    assert release.metrics["evaluations"][-1] == entry
    assert len(release.metrics["evaluations"]) == count + 1
    assert f"{entry['metrics']['accuracy']:.2f}" in release.card
    assert "- linear_full: the published linear evaluation" in release.card
    assert {*release_files(copied)} == before  # what is pushed
    (folder,) = (copied / "run").glob("linear_full-*")
    assert (folder / "metrics.jsonl").is_file()
    again = zoo.evaluate(copied, "linear_full", resume=True, **settings)
    assert again["metrics"] == entry["metrics"]
    assert len(release.metrics["evaluations"]) == count + 1
    zoo.evaluate(
        copied, "linear_full", **{**settings, "lr": 0.2}
    )  # other settings have a folder of their own
    assert len(list((copied / "run").glob("linear_full-*"))) == 2


def test_on_the_command_line_it_stops_with_its_state_saved_and_goes_on(copied: Path, tmp_path: Path) -> None:
    out = tmp_path / "probe"
    command = ["-m", "zoo", "evaluate", "linear_full", str(copied), "--out", str(out)]
    for key, value in {**SHORT, "epochs": 60}.items():
        command += ["--set", f"{key}={value}"]
    process = warm.start(*command)
    deadline = time.monotonic() + 600
    metrics = out / "metrics.jsonl"
    while not (metrics.is_file() and metrics.read_text()):  # before its first row the run may not have begun
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=600)
    assert process.returncode == 75
    assert "the state is saved" in stderr
    assert "Traceback" not in stderr
    done = warm.run(*command, "--resume")
    assert done.returncode == 0, done.stderr
    assert "step 1320/1320" in done.stderr  # progress in plain lines
    assert re.search(r"linear_full +\d+\.\d", done.stdout)


def test_of_a_shipped_release_the_run_lies_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "cifar_resnet20.moco_v2_ft_digits_lt50"
    before = {file: file.stat().st_mtime_ns for file in zoo.open(name).path.rglob("*")}
    zoo.evaluate(name, "linear_full", **{**SHORT, "epochs": 1, "milestones": []})
    assert {file: file.stat().st_mtime_ns for file in zoo.open(name).path.rglob("*")} == before
    assert len(list((tmp_path / "runs" / name).glob("linear_full-*/checkpoints/step-000000022.pt"))) == 1


def test_a_bare_model_is_measured_too(tmp_path: Path) -> None:
    model = encoder()
    model.pretrained_cfg = dict(
        input_size=(3, 8, 8), mean=MEAN, std=STD, crop_pct=1.0, interpolation="bilinear"
    )
    settings = {**SHORT, "epochs": 2, "milestones": [], "batch_size": 128}
    entry = zoo.evaluate(model, "linear_full", "digits", out=tmp_path / "run", **settings)
    assert entry["metrics"]["test_images"] == 547
    assert (tmp_path / "run" / "metrics.jsonl").is_file()


@pytest.mark.usefixtures("no_pictures")
def test_pretraining_measures_it_where_the_recipe_asks_for_it(tmp_path: Path) -> None:
    asked = "evaluation=[{protocol: linear_full, epochs: 2, milestones: [], lr: 0.3, scale: [0.8, 1.0]}]"
    changes = [asked, "training.epochs=2", "schedule.warmup_epochs=1", "training.device=cpu"]
    release = zoo.pretrain("cifar_resnet20.paco_digits_lt50", out=tmp_path / "out", overrides=changes)
    (entry,) = release.metrics["evaluations"]
    assert entry["protocol"] == "linear_full"
    assert entry["settings"]["epochs"] == 2
    assert len(list((release.path / "run").glob("linear_full-*"))) == 1
    # the same encoder, data and settings: the run that is there is taken, wherever it was asked for
    again = zoo.evaluate(release, "linear_full", save=False, resume=True, **entry["settings"])
    assert again["metrics"] == entry["metrics"]
    assert len(list((release.path / "run").glob("linear_full-*"))) == 1


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("linear_full", {"lrr": 1.0}, 'unknown setting "lrr". Did you mean "lr"?'),
        ("linear_full", {"epochs": 3}, "milestones: [60, 80] never reached in epochs (3)"),
        ("linear_full", {"milestones": [80, 60]}, "milestones: found [80, 60], expected each epoch after"),
        ("linear_full", {"precision": "fp16"}, '"fp16" needs a GPU'),
        ("linear_full", {"scale": [0.5, 1.5]}, "scale: found [0.5, 1.5]"),
        ("linear_ful", {}, 'Did you mean "linear_full"?'),
        ("knn", {"resume": True}, 'resume: protocol "knn" trains nothing that could be kept'),
        ("linear", {"out": "x"}, 'out: protocol "linear" trains nothing'),
        ("knn", {"workers": -1}, "workers: found -1"),
    ],
)
def test_mistakes_are_named(
    name: str, arguments: dict[str, Any], expected: str, paco: Release, tmp_path: Path
) -> None:
    where = {} if "out" in arguments or name != "linear_full" else {"out": tmp_path / "run"}
    with pytest.raises(ZooError) as error:
        zoo.evaluate(paco, name, save=False, device="cpu", **where, **arguments)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_model_that_does_not_say_its_width_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ZooError, match=r'found no "num_features".*"linear" takes any model'):
        measure(protocol(), encoded(nn.Flatten()), None, run_of(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
