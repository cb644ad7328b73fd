"""Trackers show what metrics.jsonl has; none of them can stop a training."""

import importlib
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from zoo.errors import ZooWarning
from zoo.recipe import Recipe
from zoo.training import RunFolder
from zoo.training import logging as trackers

PACO = "cifar_resnet20.paco_digits_lt50"
RECIPE = Recipe.load(PACO, ["training.trackers=[wandb]"])


@pytest.mark.parametrize("failing", ["", "open", "log", "close"])
def test_one_goes_on_or_is_warned_of(failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[Any]()

    def do(what: str, *arguments: Any) -> None:
        if failing == what:
            raise RuntimeError(f"no {what} today\nsecond line")
        calls.append((what, *arguments))

    def fake(name: str, recipe: Recipe, folder: Path, run_id: str, step: int) -> trackers.Run:
        do("open", name, step, run_id)
        return lambda at, values: do("log", at, values), lambda: do("close")

    monkeypatch.setattr(trackers, "open_tracker", fake)
    run = RunFolder(tmp_path)

    def go(*, resume: bool) -> None:
        with run.locked():
            run.start(RECIPE, resume=resume)
            run.log({"step": 1, "loss": 0.1, "validation": float("nan")})

    warned = pytest.warns(ZooWarning, match=f"wandb failed .*: no {failing} today")
    with warned if failing else nullcontext():
        go(resume=False)
    if not failing:
        go(resume=True)
        assert calls[1:3] == [("log", 1, {"loss": 0.1}), ("close",)]  # what is no number is left out
        assert calls[3] == calls[0]  # found again by its id
    assert [row["step"] for row in run.rows()] in ([1], [1, 1])


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_packages_take_what_is_given(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in its offline or local mode: what is logged is in a file, and nothing is warned of."""
    pytest.importorskip(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    log, close = trackers.open_tracker(name, RECIPE, tmp_path, "0123abcd", 0)
    for step in (1, 2):
        log(step, {"some_loss": 0.25})
    close()
    if name == "trackio":  # reads once where its folder is
        tmp_path = Path(importlib.import_module("trackio.utils").TRACKIO_DIR)

    def written() -> bytes:
        files = [file for file in tmp_path.rglob("*") if file.is_file()]
        return b"".join(str(file).encode() + file.read_bytes() for file in files)

    until = time.monotonic() + 30  # wandb's own process writes, perhaps after it has answered
    while b"some_loss" not in written() and time.monotonic() < until:
        time.sleep(0.1)
    assert b"some_loss" in written()
