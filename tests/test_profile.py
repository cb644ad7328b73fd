"""`zoo pretrain --profile`: the time is charged to the part that takes it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from tests.test_training import recipe
from zoo.api.profiling import profile_step
from zoo.cli.app import app
from zoo.data import TrainLoader, open_dataset
from zoo.errors import RecipeError, TrainingError
from zoo.modules import KeyQueue, MomentumEncoder
from zoo.recipe import Recipe
from zoo.training import build_objective
from zoo.training import profile as profiling
from zoo.training.profile import PARTS, Profile, _Clock, describe, profile


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "STEPS", 3)


def profiled(r: Recipe) -> Profile:
    dataset = open_dataset(r.data, "train", None)
    return profile(build_objective(r, dataset), dataset, r)


def test_a_spans_time_inside_another_is_its_own_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    monkeypatch.setattr(profiling, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    clock = _Clock(torch.device("cpu"))
    with clock.span("outer"):
        now[0] += 2
        with clock.span("inner"):
            now[0] += 5
        now[0] += 1
    now[0] += 7  # in no span
    assert clock.seconds["inner"] == 5
    assert clock.seconds["outer"] == 3


SLOW = {
    "queue": (KeyQueue, "enqueue"),
    "average": (MomentumEncoder, "update"),
    "key encoder": (MomentumEncoder, "forward"),
    "optimizer": (torch.optim.SGD, "step"),
}


@pytest.mark.parametrize("part", [*SLOW, "input"])
def test_what_is_slow_is_what_the_profile_names(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    delay = 0.5
    if part == "input":
        real_stream = TrainLoader.stream

        def slow_stream(self, start, stop):  # type: ignore[no-untyped-def]
            for batch in real_stream(self, start, stop):
                time.sleep(delay)
                yield batch

        monkeypatch.setattr(TrainLoader, "stream", slow_stream)
    else:
        owner, name = SLOW[part]
        real = getattr(owner, name)

        def slow(self, *args, **kwargs):  # type: ignore[no-untyped-def]
            time.sleep(delay)
            return real(self, *args, **kwargs)

        monkeypatch.setattr(owner, name, slow)
    found = profiled(recipe("paco"))
    assert found.parts[part] >= delay
    assert max(found.parts, key=lambda name: found.parts[name]) == part
    assert found.step >= delay
    lines = "\n".join(describe(found, recipe("paco")))
    assert PARTS[part] in lines
    assert ("the input is" in lines) == (part == "input")


def test_only_parts_that_there_are_and_the_objective_is_itself_afterwards() -> None:
    r = recipe("classify")
    dataset = open_dataset(r.data, "train", None)
    objective = build_objective(r, dataset)
    found = profile(objective, dataset, r)
    assert {*found.parts} == {"input", "query encoder", "forward", "backward", "optimizer", "update"}
    assert all("forward" not in vars(module) for module in objective.modules())
    assert found.images == 64
    assert found.total_steps == 12
    assert "convolution" in found.operations


def test_the_command_writes_words_and_a_picture_and_no_release(tmp_path: Path) -> None:
    out = tmp_path / "found"
    arguments = ["pretrain", "cifar_resnet20.moco_v2_ft_digits_lt50", "--profile", "--out", str(out)]
    done = CliRunner().invoke(app, [*arguments, "--set", "training.batch_size=32"])
    assert done.exit_code == 0, done.output
    assert "one step:" in done.output
    assert "key encoder's moving average" in done.output
    assert {file.name for file in out.iterdir()} == {"profile.json", "operations.txt"}
    facts = json.loads((out / "profile.json").read_text())
    assert facts["images"] == 32
    assert f"{1e3 * facts['step_seconds']:,.1f} ms for 32 images" in done.output
    assert sum(facts["parts_seconds"].values()) > 0


@pytest.mark.parametrize("drop_last", ["false", "true"])
def test_a_step_is_a_whole_batch_of_the_images_there_are(
    drop_last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, opened = [], []
    real_stream = TrainLoader.stream

    def stream(self, start, stop):  # type: ignore[no-untyped-def]
        opened.append(start)
        for batch in real_stream(self, start, stop):
            sizes.append(len(batch.index))
            yield batch

    monkeypatch.setattr(TrainLoader, "stream", stream)
    found = profiled(recipe("classify", f"training.drop_last={drop_last}"))
    assert {*sizes} == {64} == {found.images}  # and never the 24 of the last one
    assert found.total_steps == (12 if drop_last == "false" else 10)
    assert len(opened) == 3  # one for each measurement: workers start before its first step alone
    if drop_last == "false":
        sizes.clear()
        few = profiled(recipe("classify", "training.batch_size=4096"))
        assert {*sizes} == {few.images} == {344}
        assert few.total_steps == 2


def test_what_training_refuses_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"training\.batch_size: found 1, expected at least 2"):
        profiled(recipe("classify", "training.batch_size=1"))
    with pytest.raises(RecipeError, match="leaves a last batch of 1 of the 344 images"):
        profiled(recipe("classify", "training.batch_size=49"))


def test_a_folder_that_cannot_be_written_is_one_clear_line_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("zoo.api.profiling.open_dataset", lambda *_: pytest.fail("too late"))
    with pytest.raises(TrainingError, match=r'folder of the profile ".*file/x" cannot be written'):
        profile_step(recipe("classify"), out=tmp_path / "file" / "x")
