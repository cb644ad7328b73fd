"""Checkpoints and the folder they lie in: verified, kept in numbers, locked, and on disks that fail."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.test_training import recipe, run
from zoo.errors import InUse, TrainingError
from zoo.training import RunFolder
from zoo.training import run as run_module
from zoo.training.checkpoint import Checkpoint


def checkpoint(step: int) -> Checkpoint:
    weights = {"weight": torch.full((1000,), float(step))}
    return Checkpoint(step, 0.5 * step, {"objective": weights, "optimizer": {"state": {0: [1, (2.5,)]}}}, 0.0)


def written(folder: Path, *steps: int, keep: int = 10) -> RunFolder:
    run = RunFolder(folder)
    for step in steps:
        run.save(checkpoint(step), keep=keep)
    return run


def flip(data: bytes) -> bytes:
    """Change one bit in the middle: of a weight, as a bad disk does."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize("damage", [lambda data: data[:-1], flip])
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    run = written(tmp_path, 1, 2)
    newest = run.checkpoints()[2]
    newest.write_bytes(damage(newest.read_bytes()))
    with pytest.warns(UserWarning, match=r"step-000000002\.pt.* skipped as damaged"):
        found = run.load()
    assert found is not None and (found.step, found.seconds) == (1, 0.5)
    assert torch.equal(found.state["objective"]["weight"], torch.ones(1000))
    assert found.state["optimizer"] == {"state": {0: [1, (2.5,)]}}


def test_a_checkpoint_with_the_right_hash_runs_no_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "harm"),)

    run = RunFolder(tmp_path)
    run.save(Checkpoint(1, 0.0, {"objective": {"weight": Evil()}}, 0.0))
    with (
        pytest.warns(UserWarning, match="damaged"),
        pytest.raises(TrainingError, match=r"no checkpoint in .* can be read"),
    ):
        run.load()
    assert not (tmp_path / "harm").exists()


def test_the_newest_k_are_kept_and_other_peoples_files_beside_them(tmp_path: Path) -> None:
    run = written(tmp_path, 1, 2, 3, 4)
    own = tmp_path / "checkpoints" / "step-best.pt"
    own.write_bytes(b"mine")
    run.save(checkpoint(3), keep=2)  # 4 was damaged: the run has come from 2
    assert [*run.checkpoints()] == [3, 2]
    assert len(list(own.parent.iterdir())) == 5 and own.exists()


def test_saves_come_by_epochs_by_time_and_one_at_the_start(tmp_path: Path) -> None:
    options = ("training.keep_checkpoints=99", "training.checkpoint_every=2")
    often = "training.checkpoint_minutes=1e-9"
    for name, more, steps in (("epochs", (), [12, 0]), ("time", (often,), [*range(12, -1, -1)])):
        run(recipe("classify", *options, *more), tmp_path / name)
        assert [*RunFolder(tmp_path / name).checkpoints()] == steps


def test_a_run_is_not_continued_on_other_images(tmp_path: Path) -> None:
    r = recipe("classify")
    run(r, tmp_path)
    data_file = tmp_path / "data.json"
    begun = json.loads(data_file.read_text())
    for key, other in (("sha256", "0" * 64), ("num_images", 343), ("pixels", "0" * 64)):
        listed = {"listed": other} if key == "sha256" else {}
        data_file.write_text(json.dumps(begun | {key: other, **listed}))
        with pytest.raises(TrainingError, match=f"{key} was {str(other)[:12]}, is {str(begun[key])[:12]}"):
            run(r, tmp_path, resume=True)
    data_file.write_text("{}")
    run(r, tmp_path, resume=True)
    assert json.loads(data_file.read_text()) == begun


def test_a_run_is_neither_overwritten_nor_continued_with_more_than_other_hardware(tmp_path: Path) -> None:
    run(recipe("classify", "training.precision=fp32"), tmp_path)
    run(recipe("classify", "training.precision=fp32", "training.threads=1"), tmp_path, resume=True)
    assert "threads: 1" in RunFolder(tmp_path).recipe_file.read_text()
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(TrainingError, match="holds a run already"):
        run(recipe("classify"), tmp_path)
    with pytest.raises(TrainingError, match=r"another recipe.*training\.precision was 'fp32', is 'bf16'"):
        run(recipe("classify", "training.precision=bf16"), tmp_path, resume=True)
    assert before == {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}


@pytest.mark.parametrize("share", [0.0, 0.99])
def test_a_full_disk_leaves_the_earlier_checkpoints_and_one_clear_error(tmp_path: Path, share: float) -> None:
    run = written(tmp_path, 1)
    (file,) = run.checkpoints().values()
    size, before = file.stat().st_size, {each.name: each.read_bytes() for each in file.parent.iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(size * share), limits[1]))  # of any file
    try:
        with pytest.raises(TrainingError, match="cannot be written"):
            run.save(checkpoint(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert before == {each.name: each.read_bytes() for each in file.parent.iterdir()}


def test_a_folder_is_refused_while_it_is_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "LOCK_SECONDS", 0.1)
    code = (
        "import sys, time; from pathlib import Path; from zoo.training import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).locked(): print('held', flush=True); time.sleep(600)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    try:
        with pytest.raises(InUse, match=rf"is in use by process {holder.pid} on "):
            run(recipe("classify"), tmp_path)
    finally:
        holder.kill()
        holder.wait()
    first, second = RunFolder(tmp_path), RunFolder(tmp_path)
    with first.locked(), first.locked(), pytest.raises(InUse), second.locked():
        pass
