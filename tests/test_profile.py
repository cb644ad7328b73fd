"""`zoo pretrain --profile`: the time is charged to the part that takes it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tests.test_training import recipe
from zoo.api.profiling import profile_step
from zoo.cli.app import app
from zoo.data import TrainLoader, open_dataset
from zoo.errors import RecipeError, TrainingError
from zoo.modules import KeyQueue
from zoo.recipe import Recipe
from zoo.training import build_objective
from zoo.training import profile as profiling
from zoo.training.profile import Profile, profile

SLOW = {"update": (KeyQueue, "enqueue"), "optimizer": (torch.optim.SGD, "step"), "input": (TrainLoader, None)}


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "STEPS", 3)


def profiled(r: Recipe) -> Profile:
    dataset = open_dataset(r.data, "train", None)
    return profile(build_objective(r, dataset), dataset, r)


@pytest.mark.parametrize("part", SLOW)
def test_what_is_slow_is_what_the_profile_names(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    delay, (owner, name) = 0.5, SLOW[part]
    if name is None:
        real_stream = TrainLoader.stream

        def slow_stream(self, start, stop):  # type: ignore[no-untyped-def]
            for batch in real_stream(self, start, stop):
                time.sleep(delay)
                yield batch

        monkeypatch.setattr(TrainLoader, "stream", slow_stream)
    else:
        real = getattr(owner, name)

        def slow(self, *args, **kwargs):  # type: ignore[no-untyped-def]
            time.sleep(delay)
            return real(self, *args, **kwargs)

        monkeypatch.setattr(owner, name, slow)
    found = profiled(recipe("paco"))
    assert max(found.parts, key=lambda name: found.parts[name]) == part
    assert found.parts[part] >= delay and found.step >= delay
    assert {*found.parts} == {"input", "forward", "backward", "optimizer", "update"}


@pytest.mark.parametrize(("drop_last", "total"), [("false", 12), ("true", 10)])
def test_a_step_is_a_whole_batch_of_the_images_there_are(drop_last: str, total: int) -> None:
    found = profiled(recipe("classify", f"training.drop_last={drop_last}"))
    assert (found.images, found.total_steps) == (64, total)


def test_the_command_writes_words_and_a_table_and_no_release(tmp_path: Path) -> None:
    out = tmp_path / "found"
    arguments = ["pretrain", "cifar_resnet20.moco_v2_ft_digits_lt50", "--profile", "--out", str(out)]
    done = CliRunner().invoke(app, [*arguments, "--set", "training.batch_size=32"])
    assert done.exit_code == 0, done.output
    assert {file.name for file in out.iterdir()} == {"profile.json", "operations.txt"}
    facts = json.loads((out / "profile.json").read_text())
    assert facts["images"] == 32
    assert f"{1e3 * facts['step_seconds']:,.1f} ms for 32 images" in done.output
    assert sum(facts["parts_seconds"].values()) > 0


def test_what_training_refuses_and_a_folder_that_cannot_be_written_are_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RecipeError, match=r"training\.batch_size: found 49"):
        profiled(recipe("classify", "training.batch_size=49"))
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("zoo.api.profiling.open_dataset", lambda *_: pytest.fail("too late"))
    with pytest.raises(TrainingError, match=r'folder of the profile ".*file/x" cannot be written'):
        profile_step(recipe("classify"), out=tmp_path / "file" / "x")
