"""`zoo.snapshot`: a training's checkpoint as a release, beside the training that would have ended there."""

import shutil
from pathlib import Path

import pytest
import torch

import zoo
from tests.test_monitor import stopping
from tests.test_training import SHORT
from zoo.errors import ZooError
from zoo.release import Release
from zoo.training import RunFolder

CLASSIFY = "cifar_resnet20.ce_digits_lt50"
# a rate by which a training of one epoch is the beginning of one of two
CONSTANT = (*SHORT, "schedule.name=constant", "schedule.warmup_epochs=0", "training.keep_checkpoints=9")
CONSTANT += ("evaluation=[classifier]",)
AVERAGE = "training.ema={decay: 0.9, warmup: true}"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """A training of two epochs of six steps, both of whose checkpoints are kept."""
    return zoo.pretrain(CLASSIFY, out=tmp_path_factory.mktemp("two") / "two", overrides=CONSTANT)


@pytest.mark.parametrize(
    "change",
    [(), (AVERAGE, "adapt=lora"), (stopping(patience=9), "adapt=lora")],
    ids=["plain", "ema", "stopping"],
)
def test_it_is_what_a_training_that_ends_there_releases(change: tuple[str, ...], tmp_path: Path) -> None:
    whole = [*CONSTANT, *change]
    zoo.pretrain(CLASSIFY, out=tmp_path / "two", overrides=whole)
    steps = 4 if "stopping" in str(change) else 6  # images are put aside
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "two").rglob("*")}
    taken = zoo.snapshot(tmp_path / "two", step=steps, out=tmp_path / "taken")
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "two").rglob("*")} == before
    one = zoo.pretrain(CLASSIFY, out=tmp_path / "one", overrides=[*whole, "training.epochs=1"])
    for key in ("weights_sha256", "centers_sha256"):
        assert taken.config["zoo"][key] == one.config["zoo"][key]
    assert taken.metrics["evaluations"][0]["value"] == one.metrics["evaluations"][0]["value"]
    facts, expected = (each.metrics["training"] for each in (taken, one))
    for key in ("epochs", "steps", "images", "early_stopping", "moving_average"):
        assert facts.get(key) == expected.get(key)
    assert facts["snapshot"] == {"epoch": 1, "of_epochs": 2}
    assert taken.history["columns"]["step"] == one.history["columns"]["step"]
    assert taken.name == f"{CLASSIFY}_ep1"


def test_the_middle_of_an_epoch_and_a_folder_of_a_run(finished: Release, tmp_path: Path) -> None:
    """The newest checkpoint of a training that was stopped there, by the run's own folder."""
    run = RunFolder(shutil.copytree(finished.path / "run", tmp_path / "stopped" / "run"))
    checkpoint = run.load(6)
    assert checkpoint is not None
    run.save(checkpoint._replace(step=4))  # later ones go
    taken = zoo.snapshot(run.path, out=tmp_path / "taken", overrides={"evaluation": []})
    assert taken.name == f"{CLASSIFY}_step4"
    assert taken.metrics["training"]["snapshot"] == {"epoch": 0.67, "of_epochs": 2}
    assert taken.metrics["training"]["images"] == 4 * 64
    assert zoo.load(tmp_path / "taken")(torch.rand(1, 3, 32, 32)).shape == (1, 64)


def test_what_is_no_snapshot_is_refused(finished: Release, tmp_path: Path) -> None:
    for arguments, message in (
        ({"step": 7}, "step: found 7, .*6, 12"),
        ({}, "step 12 .*end of the training"),
        ({"step": 6, "overrides": ["training.batch_size=32"]}, r"training\.batch_size was 64"),
        ({"step": 6, "out": finished.path}, "choose another"),
        ({"step": 6, "out": finished.path / "run" / "x"}, "choose another"),
    ):
        with pytest.raises(ZooError, match=message):
            zoo.snapshot(finished.path, **{"out": tmp_path / "taken", **arguments})
    with pytest.raises(ZooError, match="holds no training"):
        zoo.snapshot(tmp_path)
    assert not (tmp_path / "taken").exists()
