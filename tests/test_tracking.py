"""Trackers show what metrics.jsonl has; none of them can stop a training."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import zoo
from zoo.errors import RecipeError, TrainingError, ZooWarning
from zoo.recipe import Recipe
from zoo.training import RunFolder
from zoo.training import logging as trackers

PACO = "cifar_resnet20.paco_digits_lt50"
RECIPE = Recipe.load(PACO, ["training.trackers=[wandb]"])


class Fake:
    """Keeps what it is given; fails where it is asked to."""

    calls: list[Any]
    fails: str

    def __init__(self, recipe: Recipe, folder: Path, run_id: str, step: int) -> None:
        self._do("open", step, run_id)

    def _do(self, what: str, *arguments: Any) -> None:
        if self.fails == what:
            raise RuntimeError(f"no {what} today\nsecond line")
        self.calls.append((what, *arguments))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._do("log", step, dict(values))

    def close(self) -> None:
        self._do("close")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    kind = type("Fake", (Fake,), {"calls": [], "fails": ""})
    monkeypatch.setitem(trackers.TRACKERS, "wandb", kind)
    return kind


def test_a_run_goes_on_as_the_same_one_with_its_rows(fake: type[Fake], tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    with run.locked():
        run.start(RECIPE, resume=False)
        run.log({"step": 1, "loss": 0.1, "validation": float("nan")})
    assert [call[0] for call in fake.calls] == ["open", "log", "close"]
    assert fake.calls[1] == ("log", 1, {"loss": 0.1})  # what is no number is left out
    with run.locked():
        run.start(RECIPE, resume=True)
    assert fake.calls[3] == fake.calls[0]  # found again by its id


@pytest.mark.parametrize("what", ["open", "log", "close"])
def test_one_that_fails_is_warned_of_and_the_training_goes_on(
    what: str, fake: type[Fake], tmp_path: Path
) -> None:
    fake.fails, run = what, RunFolder(tmp_path)
    with pytest.warns(ZooWarning, match=f"wandb has failed .*: no {what} today"), run.locked():
        run.start(RECIPE, resume=False)
        run.log({"step": 1, "loss": 0.1})
        run.log({"step": 2, "loss": 0.2})
    assert [row["step"] for row in run.rows()] == [1, 2]


def test_a_package_that_is_not_there_and_a_name_that_is_none_are_refused_before_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TrainingError, match=r'training\.trackers: "wandb" needs the package wandb'):
        zoo.pretrain(RECIPE, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(RecipeError, match=r"training\.trackers"):
        Recipe.load(PACO, ["training.trackers=[tensorbord]"])


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_the_packages_take_what_they_are_given(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each in its offline or local mode: what is logged is in a file, and nothing is warned of."""
    pytest.importorskip(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    tracker = trackers.TRACKERS[name](RECIPE, tmp_path, "0123abcd", 0)
    for step in (1, 2):
        tracker.log(step, {"some_loss": 0.25})
    tracker.close()
    if name == "trackio":  # reads once where its folder is
        tmp_path = Path(importlib.import_module("trackio.utils").TRACKIO_DIR)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    written = b"".join(str(file).encode() + file.read_bytes() for file in files)
    assert b"some_loss" in written
