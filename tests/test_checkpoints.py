"""Checkpoints and the folder they lie in: verified, kept in numbers, locked, and on disks that fail."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import zoo
from tests.test_training import assert_same_state, recipe, run
from zoo.errors import RecipeError, TrainingError, ZooError
from zoo.files import temporary_files, write_text
from zoo.training import RunFolder
from zoo.training.checkpoint import Checkpoint, Checkpoints
from zoo.training.loop import Saver, to_host


def state(value: float = 1.0, size: int = 1000) -> dict[str, dict[str, Any]]:
    return {"objective": {"weight": torch.full((size,), value)}, "optimizer": {"state": {0: [1, (2.5,)]}}}


def written(folder: Path, *steps: int, keep: int = 10) -> Checkpoints:
    folder.mkdir(exist_ok=True)
    checkpoints = Checkpoints(folder)
    for step in steps:
        checkpoints.write(Checkpoint(step, 0.5 * step, state(float(step)), 0.0), keep)
    return checkpoints


# --- reading


def test_a_checkpoint_reads_back_as_it_was_written(tmp_path: Path) -> None:
    found = written(tmp_path, 3).newest()
    assert (found.step, found.seconds) == (3, 1.5)
    assert torch.equal(found.state["objective"]["weight"], torch.full((1000,), 3.0))
    assert found.state["optimizer"] == {"state": {0: [1, (2.5,)]}}


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def flip(file: Path) -> None:
    """Change one bit in the middle: of a weight, as a bad disk does."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def unrecord(file: Path) -> None:
    file.with_suffix(".json").unlink()


def misrecord(text: str):
    def write(file: Path) -> None:
        file.with_suffix(".json").write_text(text)

    return write


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (cut, r"found \d+ bytes, expected \d+"),
        (flip, r"found sha256 \w+\.\.\., expected \w+"),
        (unrecord, r"record step-000000002\.json is missing"),
        (misrecord('{"format": 1, "step": 2}'), "record .* was written by another version"),
        (misrecord("[]"), "record .* was written by another version"),
        (misrecord('{"format": 2, "size": true, "sha256": 7}'), "expected True"),
        (misrecord("{"), "Expecting"),
    ],
)
def test_a_damaged_newest_checkpoint_is_passed_over_and_the_warning_says_what_is_wrong(
    tmp_path: Path, damage: Any, problem: str
) -> None:
    checkpoints = written(tmp_path, 1, 2)
    damage(tmp_path / "step-000000002.pt")
    with pytest.warns(UserWarning, match=rf"step-000000002\.pt.* is damaged and passed over: .*{problem}"):
        assert checkpoints.newest().step == 1


def test_a_checkpoint_with_the_right_hash_runs_no_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "harm"),)

    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(Checkpoint(1, 0.0, {"objective": {"weight": Evil()}}, 0.0), 2)
    with (
        pytest.warns(UserWarning, match="damaged"),
        pytest.raises(TrainingError, match=r"no checkpoint in .* can be read"),
    ):
        checkpoints.newest()
    assert not (tmp_path / "harm").exists()


def recorded(file: Path, content: dict[str, Any]) -> None:
    """Write what a person with the right hash may: `content`, and a record that fits."""
    torch.save(content, file)
    record(file)


def record(file: Path) -> None:
    data = file.read_bytes()
    facts = {"format": 2, "step": 2, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    file.with_suffix(".json").write_text(json.dumps(facts))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"step": 1}, "it is of step 1"),
        ({"step": "2"}, "it is of step 2"),
        ({"step": True}, "it is of step True"),
        ({"format": 1}, "written by another version"),
        ({"seconds": float("nan")}, "no number of seconds"),
        ({"written": None}, "when it was written is no time"),
        ({"written": float("nan")}, "when it was written is no time"),
        ({"written": 1e12}, "when it was written is no time"),
        ({"written": "today"}, "when it was written is no time"),
        ({"state": {"objective": 5}}, "no state of a training"),
        ({"state": {"objective": {"w": torch.zeros(1).expand(1 << 40)}}}, "not what a training saves"),
        ({"state": {"objective": {"w": torch.zeros(9, device="meta")}}}, "not what a training saves"),
    ],
)
def test_a_checkpoint_with_the_right_hash_is_still_not_believed(
    tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    checkpoints = written(tmp_path, 1, 2)
    good = {"format": 2, "step": 2, "seconds": 1.0, "written": 1.0, "state": state()}
    recorded(tmp_path / "step-000000002.pt", good)
    assert checkpoints.newest().step == 2
    recorded(tmp_path / "step-000000002.pt", good | change)
    with pytest.warns(UserWarning, match=problem):
        assert checkpoints.newest().step == 1


def test_dicts_that_hold_each_other_many_times_and_compressed_archives_are_refused(tmp_path: Path) -> None:
    checkpoints, file = written(tmp_path, 1, 2), tmp_path / "step-000000002.pt"
    inner: dict[str, Any] = {}
    for _ in range(60):
        inner = {"a": inner, "b": inner}
    facts = {"format": 2, "step": 2, "seconds": 1.0, "written": 1.0}
    recorded(file, {**facts, "state": {"objective": inner}})
    with pytest.warns(UserWarning, match="more than 1,000,000 items"):
        assert checkpoints.newest().step == 1
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/data.pkl", bytes(1 << 24))
    record(file)
    with pytest.warns(UserWarning, match="a compressed archive"):
        assert checkpoints.newest().step == 1


def test_a_pipe_in_a_checkpoints_place_is_not_waited_for(tmp_path: Path) -> None:
    checkpoints, file = written(tmp_path, 1, 2), tmp_path / "step-000000002.pt"
    file.unlink()
    os.mkfifo(file)
    file.with_suffix(".json").write_text('{"format": 2, "step": 2, "size": 0, "sha256": "x"}')
    with pytest.warns(UserWarning, match="no regular file"):
        assert checkpoints.newest().step == 1


def test_what_a_person_has_put_beside_the_checkpoints_stays(tmp_path: Path) -> None:
    checkpoints = written(tmp_path, 1)
    own = [tmp_path / name for name in ("step-best.pt", "step-000000001-copy.pt", "step-notes.json")]
    for file in own:
        file.write_bytes(b"mine")
    checkpoints.sweep()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert checkpoints.newest().step == 1
    checkpoints.write(Checkpoint(2, 0.0, state(), 0.0), 1)
    assert all(file.exists() for file in own)
    assert [file.stem for file in checkpoints.files()] == ["step-000000002"]


def test_damaged_rows_are_left_out_and_checkpoints_without_their_recipe_refused(tmp_path: Path) -> None:
    r = recipe("classify")
    run(r, tmp_path)
    folder = RunFolder(tmp_path)
    rows = folder.rows()
    damaged = b'{"step": "6"}\n[1]\n{"loss": 1}\n\xff\xfe\n{"step": -1}\n' + b"[" * 99_999
    folder.metrics_file.write_bytes(b"\xef\xbb\xbf" + folder.metrics_file.read_bytes() + damaged)
    folder.changes_file.write_text('{"step": 0, "key": "x"}\n')
    with pytest.warns(UserWarning, match=r"metrics\.jsonl\" is damaged: \d+ of \d+ lines are no rows"):
        assert (folder.rows(), folder.changes()) == (rows, [])
    with pytest.warns(UserWarning, match="is damaged"):
        run(r, tmp_path, resume=True)
    assert folder.rows() == rows
    folder.recipe_file.unlink()
    for resume in (True, False):
        with pytest.raises(TrainingError, match=r"holds checkpoints, and its recipe\.yaml is missing"):
            run(r, tmp_path, resume=resume)
    folder.recipe_file.mkdir()
    with pytest.raises(RecipeError, match="no regular file"):
        run(r, tmp_path, resume=True)


def test_a_run_is_not_continued_on_other_images(tmp_path: Path) -> None:
    r = recipe("classify")
    run(r, tmp_path)
    data_file = tmp_path / "data.json"
    begun = json.loads(data_file.read_text())
    assert begun["num_images"] == 344
    for other, refused in (
        (begun | {"sha256": "0" * 64, "num_images": 343}, True),
        ({}, False),
        (begun, False),
    ):
        data_file.write_text(json.dumps(other))
        with (
            pytest.raises(TrainingError, match=r"run on 343 images \(sha256 0{12}\.\.\.\), .* 344 images")
            if refused
            else contextlib.nullcontext()
        ):
            run(r, tmp_path, resume=True)
    assert json.loads(data_file.read_text()) == begun


def test_an_unreadable_image_may_have_a_name_that_is_no_text(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with pytest.warns(UserWarning, match=r"1 image cannot be read"):
        folder.note_unreadable(["a\udcff.png"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        folder.note_unreadable(["a\udcff.png"])


def test_a_checkpoint_that_the_recipe_does_not_fit_is_one_clear_error(tmp_path: Path) -> None:
    run(recipe("classify"), tmp_path)
    folder = RunFolder(tmp_path)
    newest = folder.load()
    weights = newest.state["objective"]
    weights.pop(next(iter(weights)))
    folder.save(newest)
    with pytest.raises(TrainingError, match=r"checkpoint of step 12 in .* does not fit .*Missing"):
        run(recipe("classify"), tmp_path, resume=True)


# --- writing


def test_the_newest_k_are_kept_and_what_lies_beyond_the_newest_good_one_goes(tmp_path: Path) -> None:
    checkpoints = written(tmp_path, 1, 2, 3, 4)
    checkpoints.write(Checkpoint(3, 0.0, state(), 0.0), 2)  # 4 was damaged: the run has come from 2
    assert [file.stem for file in checkpoints.files()] == ["step-000000003", "step-000000002"]
    assert len(list(tmp_path.iterdir())) == 4
    folder = tmp_path / "run"
    run(recipe("classify", "training.keep_checkpoints=1", "training.checkpoint_minutes=1e-9"), folder)
    assert [file.stem for file in RunFolder(folder).checkpoints()] == ["step-000000012"]


def test_saves_come_by_time_too_and_one_at_the_start(tmp_path: Path) -> None:
    options = ("training.keep_checkpoints=99", "training.checkpoint_every=2", "training.epochs=2")
    run(recipe("classify", *options), tmp_path / "epochs")
    assert [int(f.stem[5:]) for f in RunFolder(tmp_path / "epochs").checkpoints()] == [12, 0]
    run(recipe("classify", *options, "training.checkpoint_minutes=1e-9"), tmp_path / "time")
    assert [int(f.stem[5:]) for f in RunFolder(tmp_path / "time").checkpoints()] == list(range(12, -1, -1))


def test_what_a_killed_process_left_is_swept_at_the_next_start(tmp_path: Path) -> None:
    r = recipe("classify")
    run(r, tmp_path)
    checkpoints = tmp_path / "checkpoints"
    hexes = "0123456789abcdef" * 2
    (checkpoints / f".step-000000013.pt.{hexes}").write_bytes(b"half")
    (checkpoints / "step-000000013.json").write_text("{}")
    (tmp_path / f".metrics.jsonl.{hexes}").write_text("")
    assert temporary_files(tmp_path) and temporary_files(checkpoints)
    run(r, tmp_path, resume=True)
    assert sorted(file.suffix for file in checkpoints.iterdir()) == [".json"] * 2 + [".pt"] * 2
    assert not temporary_files(tmp_path)


def test_a_copy_on_the_host_shares_no_memory_and_keeps_layouts() -> None:
    image = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    live = {"a": image, "b": [(torch.ones(1), 2)]}
    copied = to_host(live)
    live["a"].zero_()
    live["b"][0][0].zero_()
    assert copied["a"].abs().sum() > 0 and copied["b"][0][0] == 1
    assert copied["a"].is_contiguous(memory_format=torch.channels_last)


def test_training_goes_on_while_a_checkpoint_is_written_and_one_at_a_time() -> None:
    go, seen = threading.Event(), []

    def write(checkpoint: Checkpoint) -> None:
        go.wait(10)
        seen.append((checkpoint.step, float(checkpoint.state["a"]["w"])))

    saver = Saver(write)
    live = {"a": {"w": torch.tensor(1.0)}}
    began = time.monotonic()
    saver.save(Checkpoint(1, 0.0, live, 0.0))
    saver.check()
    assert time.monotonic() - began < 5 and not seen  # it has not waited
    live["a"]["w"] += 1  # training goes on in the same tensors
    threading.Timer(0.05, go.set).start()
    saver.save(Checkpoint(2, 0.0, live, 0.0))  # waits for the first
    assert seen[0] == (1, 1.0)
    saver.wait()
    saver.close()
    assert seen == [(1, 1.0), (2, 2.0)]


# --- disks that fail


@contextlib.contextmanager
def file_limit(size: int) -> Iterator[None]:
    """A disk that is full after `size` bytes of any file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_full_at_any_byte_leaves_the_earlier_checkpoints_and_one_clear_error(tmp_path: Path) -> None:
    checkpoints = written(tmp_path, 1)
    size = (tmp_path / "step-000000001.pt").stat().st_size
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    for room in (0, 1, 50, 200, 700, 1000, size // 2, size - 200, size - 1):
        with (
            file_limit(room),
            pytest.raises(
                TrainingError,
                match=r"step-000000002\.pt\" cannot be written: File too large: it needs 4 kB, .* are free",
            ),
        ):
            checkpoints.write(Checkpoint(2, 0.5, state(), 0.0), 2)
        assert before == {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with file_limit(size + 100):
        checkpoints.write(Checkpoint(2, 0.0, state(), 0.0), 2)


def test_a_disk_that_cannot_hold_one_checkpoint_shows_before_the_first_step(tmp_path: Path) -> None:
    r = recipe("classify")
    with file_limit(100_000), pytest.raises(TrainingError, match=r"step-000000000\.pt.* File too large"):
        run(r, tmp_path / "a")
    undisturbed = run(r, tmp_path / "b")
    assert_same_state(undisturbed, run(r, tmp_path / "a", resume=True))


@pytest.mark.parametrize(
    ("size", "problem"),
    [
        (4_000, r"figure \".*features\.png\" cannot be written: File too large\. "),
        (800_000, r"the release cannot be written: .*File too large"),
    ],
)
def test_a_disk_full_after_the_training_is_one_line_that_says_the_training_is_saved(
    tmp_path: Path, size: int, problem: str
) -> None:
    r = recipe("classify", "evaluation=[]")
    run(r, tmp_path / "run")
    with file_limit(size), pytest.raises(ZooError, match=f"{problem}.*The training is done and saved"):
        zoo.pretrain(r, out=tmp_path, resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert zoo.pretrain(r, out=tmp_path, resume=True).path == tmp_path


def test_metrics_that_cannot_be_appended_stop_the_run_clearly_and_it_goes_on_later(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with folder.locked():
        folder.start(recipe("classify"), resume=False)
        folder.log({"step": 1, "loss": 0.5})
        with file_limit(40), pytest.raises(TrainingError, match=r"metrics\.jsonl\" cannot be written: File"):
            folder.log({"step": 2, "loss": 0.25})
    assert [row["step"] for row in folder.rows()] == [1]
    folder.drop_rows_after(1)
    folder.log({"step": 2, "loss": 0.25})
    assert [row["step"] for row in folder.rows()] == [1, 2]


@contextlib.contextmanager
def mounted(folder: Path, options: str = "size=64m") -> Iterator[None]:
    """A file system of its own at `folder`: root's writes are refused on a read-only one, too."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def remount(folder: Path, options: str) -> None:
    command = ["mount", "-o", f"remount,{options}", str(folder)]
    for _ in range(100):  # busy while a file is being written
        if not subprocess.run(command, capture_output=True, check=False).returncode:
            return
    subprocess.run(command, check=True)


class When:
    """Does something once metrics.jsonl has `rows` rows."""

    def __init__(self, folder: Path, rows: int, action: Any) -> None:
        self.file, self.rows, self.action = folder / "metrics.jsonl", rows, action
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self) -> None:
        for _ in range(60_000):
            with contextlib.suppress(OSError):
                if len(self.file.read_text().splitlines()) >= self.rows:
                    self.action()
                    return
            time.sleep(0.001)


OFTEN = ("training.checkpoint_minutes=1e-9",)


def test_a_folder_that_becomes_read_only_is_a_clear_error_and_resumes_when_it_is_writable(
    tmp_path: Path,
) -> None:
    r = recipe("classify", *OFTEN)
    folder = RunFolder(tmp_path / "run")
    with mounted(tmp_path / "probe"):
        pass  # or skip

    def protect() -> None:
        while not any(int(file.stem[5:]) for file in folder.path.glob("checkpoints/step-*.pt")):
            time.sleep(0.001)  # the first step's is written beside the training
        mount = ["mount", "--bind", str(folder.path), str(folder.path)]
        subprocess.run(mount, check=True)
        remount(folder.path, "bind,ro")

    When(folder.path, 2, protect)
    try:
        with pytest.raises(TrainingError, match=r"cannot be written: Read-only file system; make the folder"):
            run(r, folder.path)
        assert folder.load().step >= 1
        with pytest.raises(TrainingError, match=r"run folder .* cannot be written: Read-only"):
            run(r, folder.path, resume=True)
    finally:
        subprocess.run(["umount", "-l", str(folder.path)], check=False)
    assert_same_state(run(r, tmp_path / "b"), run(r, folder.path, resume=True))


def test_a_disk_that_fills_up_names_what_is_needed_and_free_and_the_run_resumes(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with mounted(disk):
        r = recipe("classify", *OFTEN)
        folder = RunFolder(disk / "run")
        (disk / "filler").write_bytes(bytes(62_000_000))  # of 67,108,864: room for one checkpoint or two
        with pytest.raises(
            TrainingError,
            match=r"cannot be written: No space left on device: it needs [\d.]+ MB, [\d.]+ .*B are free",
        ):
            run(r, folder.path)
        kept = folder.load()
        assert kept is not None
        (disk / "filler").unlink()
        assert_same_state(run(r, tmp_path / "b"), run(r, folder.path, resume=True))


@pytest.mark.parametrize("replaced", [False, True])
def test_a_folder_that_vanishes_is_not_made_anew_nor_is_another_in_its_place_written_to(
    tmp_path: Path, replaced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is moved between two writes: what is being written in that moment goes where the name leads."""
    r = recipe("classify", *OFTEN)
    out = tmp_path / "run"
    own, one_at_a_time = RunFolder._own, threading.RLock()

    @contextlib.contextmanager
    def moved_before_one(folder: RunFolder) -> Iterator[None]:
        with one_at_a_time:
            if len(folder.rows()) >= 2 and not (tmp_path / "moved").exists():
                out.rename(tmp_path / "moved")
                if replaced:
                    (out / "checkpoints").mkdir(parents=True)
            with own(folder):
                yield

    monkeypatch.setattr(RunFolder, "_own", moved_before_one)
    with pytest.raises(TrainingError, match=r"run folder .* is gone: it was moved, deleted or replaced"):
        run(r, out)
    monkeypatch.undo()
    assert not list(out.rglob("*.pt")) and not (out / "metrics.jsonl").exists()
    shutil.rmtree(out, ignore_errors=True)
    (tmp_path / "moved").rename(out)
    assert_same_state(run(r, tmp_path / "b"), run(r, out, resume=True))


# --- the lock


def test_a_folder_in_use_is_refused_with_pid_host_and_time(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; from pathlib import Path; from zoo.training.lock import hold\n"
            "with hold(Path(sys.argv[1]), used=Path(sys.argv[1])): print('held', flush=True); time.sleep(60)",
            str(tmp_path / "run"),
        ],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    before = sorted((tmp_path / "run").iterdir())
    try:
        began = time.monotonic()
        with pytest.raises(
            TrainingError,
            match=rf'"{tmp_path}/run" is in use by process {holder.pid} on \S+ since \d{{4}}-\d\d-\d\dT',
        ):
            run(recipe("classify"), tmp_path / "run")
        assert time.monotonic() - began < 30  # half of what the holder stays
        assert sorted((tmp_path / "run").iterdir()) == before
    finally:
        holder.kill()
        holder.wait()
    run(recipe("classify"), tmp_path / "run")  # nothing is left of a killed process's lock


def test_a_second_use_in_the_same_process_is_refused_and_the_first_may_enter_again(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    with first.locked():
        with first.locked():
            pass
        refused = rf"in use by this process \(pid {os.getpid()}\) already"
        with pytest.raises(TrainingError, match=refused), second.locked():
            pass
    assert not (tmp_path / "run").exists()  # nothing was begun
    with second.locked():
        write_text(second.recipe_file, "")
    assert second.recipe_file.exists()


def test_what_outlives_a_killed_run_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    """A data worker has the lock open as long as it lives, and notices only later that its parent is gone."""
    code = (
        "import fcntl, json, os, socket, sys, time\n"
        "file = open(sys.argv[1] + '/.lock', 'w'); fcntl.flock(file, fcntl.LOCK_EX)\n"
        "if os.fork() == 0: os.close(1); time.sleep(5); os._exit(0)\n"
        "me = {'pid': os.getpid(), 'host': socket.gethostname(), 'since': 'then'}\n"
        "json.dump(me, open(sys.argv[1] + '/.holder.json', 'w'))\n"
        "os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, check=False)
    assert killed.returncode == -signal.SIGKILL
    began = time.monotonic()
    with RunFolder(tmp_path).locked():
        assert 0.5 < time.monotonic() - began < 19


# --- going on with other settings


def test_how_it_is_computed_may_change_and_is_recorded_but_not_what(tmp_path: Path) -> None:
    run(recipe("classify"), tmp_path)
    folder = RunFolder(tmp_path)
    folder.checkpoints()[0].unlink()  # go on from step 6
    with pytest.warns(UserWarning, match=r"from step 6 on: training\.(accumulate was 1, is 2|threads was)"):
        run(recipe("classify", "training.accumulate=2", "training.threads=2"), tmp_path, resume=True)
    assert folder.changes() == [
        {"step": 6, "key": "training.threads", "from": 1, "to": 2},
        {"step": 6, "key": "training.accumulate", "from": 1, "to": 2},
    ]
    assert "accumulate: 2" in folder.recipe_file.read_text()
    with pytest.raises(
        TrainingError,
        match=r"another recipe.*: training\.clip_grad was None, is 1\.0\. With --resume only .*another --out",
    ):
        run(recipe("classify", "training.accumulate=4", "training.clip_grad=1.0"), tmp_path, resume=True)
    assert json.loads(folder.changes_file.read_text().splitlines()[-1])["to"] == 2
