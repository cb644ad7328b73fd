"""`auto`: what it chooses for precision and compilation, and that the choice is recorded and kept."""

import shutil
import signal
from pathlib import Path

import pytest
import torch
from torch import nn

import zoo
from tests.test_training import stop_after
from zoo import backbones
from zoo.errors import Interrupted, TrainingError
from zoo.recipe import Recipe
from zoo.training import precision
from zoo.training.precision import choose

PACO = "cifar_resnet32.paco_cifar100_lt100"
DIGITS = "cifar_resnet20.balanced_softmax_digits_lt50"
BRIEF = ("training.epochs=3", "schedule.warmup_epochs=1", "training.device=cpu", "training.log_every=1")
CPU = torch.device("cpu")


def computes_in(monkeypatch: pytest.MonkeyPatch, *, bf16: bool, amx: bool = False) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)


@pytest.fixture(scope="module")
def dense() -> nn.Module:
    return backbones.create("cifar_resnet32")


@pytest.mark.parametrize(
    ("bf16", "amx", "epochs", "expected"),
    [
        (True, False, 400, "bf16"),
        (False, True, 400, "bf16"),
        (False, False, 400, "fp32"),
        (True, True, 11, "fp32"),
    ],
)
def test_bf16_is_for_long_trainings_on_processors_that_compute_in_it(
    dense: nn.Module, monkeypatch: pytest.MonkeyPatch, bf16: bool, amx: bool, epochs: int, expected: str
) -> None:
    computes_in(monkeypatch, bf16=bf16, amx=amx)
    recipe = Recipe.load(PACO, [f"training.epochs={epochs}", "schedule.milestones=[10]"])
    assert choose(recipe, dense, 4_000, CPU)["precision"] == expected


def test_depthwise_convolutions_stay_in_float32_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    computes_in(monkeypatch, bf16=True)
    recipe = Recipe.load(PACO)
    for arch, expected in (
        ("tf_efficientnet_lite0", "fp32"),
        ("resnext50_32x4d", "bf16"),
        ("resnet18", "bf16"),
    ):
        assert choose(recipe, backbones.create(arch), 10_847, CPU)["precision"] == expected, arch


def test_compilation_needs_a_long_training_a_compiler_and_on_a_cpu_amx(
    dense: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Recipe.load(PACO)
    computes_in(monkeypatch, bf16=True, amx=True)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert choose(recipe, dense, 10_847, CPU)["compile"] == "default"
    assert choose(recipe, dense, 100, CPU)["compile"] is None
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert choose(recipe, dense, 10_847, CPU)["compile"] is None
    monkeypatch.undo()
    computes_in(monkeypatch, bf16=True)
    assert choose(recipe, dense, 10_847, CPU)["compile"] is None


def test_the_choice_is_said_recorded_and_kept_on_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_pictures: None, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(precision, "SHORT", 0)
    computes_in(monkeypatch, bf16=True)
    stop_after(tmp_path / "a" / "run", 2, signal.SIGTERM)
    with pytest.raises(Interrupted):
        zoo.pretrain(DIGITS, out=tmp_path / "a", overrides=BRIEF)
    assert "auto chose precision bf16" in capsys.readouterr().err
    computes_in(monkeypatch, bf16=False)
    with pytest.raises(TrainingError, match=r"training\.precision was 'bf16', is 'fp32'"):
        zoo.pretrain(DIGITS, out=tmp_path / "a", overrides=[*BRIEF, "training.precision=fp32"], resume=True)
    for _ in range(2):  # the second opens a finished one
        made = zoo.pretrain(DIGITS, out=tmp_path / "a", overrides=BRIEF, resume=True)
        assert made.recipe["training"]["precision"] == made.metrics["training"]["precision"] == "bf16"
    again = zoo.pretrain(made.path / "recipe.yaml", out=tmp_path / "b")
    assert again.metrics["training"]["precision"] == "bf16"
    assert all(
        torch.equal(x, y) for x, y in zip(*(each.load().parameters() for each in (made, again)), strict=True)
    )
    here = zoo.pretrain(DIGITS, out=tmp_path / "c", overrides=BRIEF)
    assert here.recipe["training"]["precision"] == "fp32" and here.recipe["training"]["compile"] is None
