"""Trackers show what metrics.jsonl has, once, across a kill; and none of them can stop or slow a training."""

from __future__ import annotations

import json
import os
import pty
import signal
import sqlite3
import struct
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import zoo
from tests.programs.tracked import CHANGES
from zoo.errors import RecipeError, TrainingError
from zoo.recipe import Recipe
from zoo.training import RunFolder, trackers, tracking
from zoo.training.run import Checkpoint
from zoo.training.trackers import About
from zoo.training.tracking import Tracking, require_trackers, scalars_of

PACO = "cifar_resnet20.paco_digits_lt50"
ROOT = Path(__file__).resolve().parents[1]


# --- for real, each in its offline or local mode -----------------------------------------------------------


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that was killed after step 30, gone on with from step 22, and released."""
    folder = tmp_path_factory.mktemp("tracked")
    environment = os.environ | {"WANDB_MODE": "offline", "TRACKIO_DIR": str(folder / "trackio")}
    command = [sys.executable, "-m", "tests.programs.tracked", str(folder / "out")]
    for arguments, status in ((["30"], -signal.SIGKILL), ([], 0)):
        done = subprocess.run(
            [*command, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == status, done.stderr
        assert "failed" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def recorded(tracked: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl, which hold each step once."""
    rows = RunFolder(tracked / "out/run").rows()
    steps = [row["step"] for row in rows]
    assert steps == sorted(set(steps))
    assert {2, 30, 32, 33} < set(steps)
    return rows


def expected_evaluations(tracked: Path) -> dict[str, float]:
    entries = zoo.open(tracked / "out").metrics["evaluations"]
    values = scalars_of(entries)
    assert values["evaluation/knn/accuracy"] == entries[-1]["metrics"]["accuracy"]
    assert len(entries) == 2
    return values


def test_tensorboard_has_every_row_the_recipe_the_results_and_the_pictures(
    tracked: Path, recorded: list[dict[str, Any]]
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(
        str(tracked / "out/run/tensorboard"), size_guidance={"scalars": 0, "images": 0, "tensors": 0}
    ).Reload()
    for name in ("loss", "epoch", "lr", "positive_score"):
        shown = [(event.step, event.value) for event in events.Scalars(name)]
        rows = [(row["step"], pytest.approx(row[name], rel=1e-6)) for row in recorded if name in row]
        assert shown == rows, name
    for name, value in expected_evaluations(tracked).items():
        (event,) = events.Scalars(name)
        assert (event.step, event.value) == (33, pytest.approx(value, rel=1e-6))
    pictures = {tag for tag in events.Tags()["images"] if tag.startswith("pictures/")}
    assert pictures == {f"pictures/{file.stem}" for file in (tracked / "out").glob("*.png")}
    image = events.Images("pictures/curves")[0]
    assert image.width > 300
    (text,) = events.Tensors("recipe/text_summary")
    assert b"name: " + PACO.encode() in text.tensor_proto.string_val[0]


def wandb_records(file: Path) -> Iterator[Any]:
    """Read an offline file of Weights & Biases: protocol buffers in LevelDB's log format, after 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole = file.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:  # the rest of a block that no header fits into
            at += left
            continue
        size, kind = struct.unpack_from("<HB", data, at + 4)
        if kind == 0:
            return
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def test_wandb_has_one_run_with_every_row_once_the_recipe_the_results_and_the_pictures(
    tracked: Path, recorded: list[dict[str, Any]]
) -> None:
    files = sorted((tracked / "out/run/wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2  # two processes
    rows: list[dict[str, Any]] = []
    summary: dict[str, Any] = {}
    runs = []
    for file in files:
        for record in wandb_records(file):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                runs.append(record.run)
            elif kind == "history":
                items = record.history.item
                rows.append({"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items})
            elif kind == "summary":
                items = record.summary.update
                summary |= {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items}
    assert len({run.run_id for run in runs}) == 1
    assert {(run.project, run.display_name) for run in runs} == {("contrastive-zoo", PACO)}
    config = {item.key: json.loads(item.value_json) for item in runs[0].config.update}
    assert config["objective"]["name"] == "paco"
    assert config["training"]["log_every"] == 2
    losses = [(row["_step"], row["loss"]) for row in rows if "loss" in row]
    assert losses == [(row["step"], pytest.approx(row["loss"], rel=1e-6)) for row in recorded]
    for name, value in expected_evaluations(tracked).items():
        assert summary[name] == pytest.approx(value)
    pictures = {key: value for row in rows for key, value in row.items() if key.startswith("pictures/")}
    assert {key.partition("/")[2].partition("/")[0] for key in pictures} == {
        file.stem for file in (tracked / "out").glob("*.png")
    }


def test_trackio_has_one_run_with_every_row_once_the_recipe_the_results_and_the_pictures(
    tracked: Path, recorded: list[dict[str, Any]]
) -> None:
    with sqlite3.connect(tracked / "trackio/contrastive-zoo.db") as database:
        found = database.execute("select run_id, run_name, step, metrics from metrics order by id").fetchall()
        configs = database.execute("select config from configs").fetchall()
    assert len({run_id for run_id, *_ in found}) == 1
    assert all(name.startswith(f"{PACO}-") for _, name, *_ in found)
    rows = [(step, json.loads(metrics)) for *_, step, metrics in found]
    shown = [(step, row["loss"]) for step, row in rows if "loss" in row]
    assert shown == [(row["step"], pytest.approx(row["loss"], rel=1e-6)) for row in recorded]
    step, last = rows[-1]
    assert step == 33
    assert {k: v for k, v in last.items() if k.startswith("evaluation/")} == pytest.approx(
        expected_evaluations(tracked)
    )
    pictures = {k.removeprefix("pictures/"): v for k, v in last.items() if k.startswith("pictures/")}
    assert pictures.keys() == {file.stem for file in (tracked / "out").glob("*.png")}
    for name, picture in pictures.items():
        stored = tracked / "trackio/media" / picture["file_path"]
        assert stored.read_bytes() == (tracked / f"out/{name}.png").read_bytes()
    assert json.loads(configs[0][0])["objective"]["name"] == "paco"


@pytest.mark.usefixtures("no_pictures")
def test_a_tracked_training_is_the_same_training(tracked: Path, tmp_path: Path) -> None:
    changes = [change for change in CHANGES if "trackers" not in change]
    plain = zoo.pretrain(PACO, out=tmp_path / "plain", overrides=changes)
    hashes = [release.config["zoo"]["weights_sha256"] for release in (plain, zoo.open(tracked / "out"))]
    assert hashes[0] == hashes[1]


# --- with a tracker of our own ------------------------------------------------------------------------------


class Fake:
    """Keeps what it is told; waits or fails where it is asked to."""

    can_drop = False
    keeps_late = False
    told: list[Any]
    fails: str
    waits: float

    def __init__(self, about: About) -> None:
        self.about = about
        self._do("open", about.step, about.id)

    def _do(self, what: str, *arguments: Any) -> None:
        if self.fails == what:
            raise RuntimeError(f"no {what} today\nsecond line")
        time.sleep(self.waits)
        self.told.append((what, *arguments))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._do("log", step, dict(values))

    def results(self, step: int, values: Mapping[str, float], pictures: Mapping[str, Path]) -> None:
        self._do("results", step, dict(values), dict(pictures))

    def drop_after(self, step: int) -> None:
        self._do("drop", step)

    def flush(self) -> None:
        self._do("flush")

    def close(self) -> None:
        self._do("close")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    kind = type("Fake", (Fake,), {"told": [], "fails": "", "waits": 0.0})
    monkeypatch.setitem(trackers.TRACKERS, "wandb", kind)
    monkeypatch.setattr(tracking, "_import", lambda name: None)
    return kind


RECIPE = Recipe.load(PACO, ["training.trackers=[wandb]"])


def row(step: int, **more: Any) -> dict[str, Any]:
    return {"step": step, "loss": step / 10, **more}


def steps(fake: type[Fake]) -> list[Any]:
    return [told[:2] if told[0] in ("log", "drop", "results") else told[0] for told in fake.told]


def test_a_run_goes_on_as_the_same_one_and_no_step_is_sent_twice(fake: type[Fake], tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    with run.locked():
        run.start(RECIPE, resume=False)
        for step in (1, 2, 3):
            run.log(row(step, validation=float("nan")))
    assert [told[:2] for told in fake.told] == [
        ("open", 0), ("log", 1), ("log", 2), ("log", 3), ("close",)
    ]  # fmt: skip
    assert fake.told[1][2] == {"loss": 0.1}  # what is no number is left out
    first = fake.told[0][2]
    fake.told.clear()
    # its newest checkpoint is of step 0: all rows are dropped, and come again
    with run.locked():
        run.start(RECIPE, resume=True)
        for step in (1, 2, 3, 4):
            run.log(row(step))
    assert steps(fake) == ["open", ("log", 4), "close"]
    assert fake.told[0] == ("open", 0, first)


def test_rows_that_a_tracker_lacks_are_sent_when_the_run_goes_on(fake: type[Fake], tmp_path: Path) -> None:
    """Of a run that was killed while its queue was full, or got the tracker later."""
    Tracking(RECIPE, tmp_path, 3, [row(1), row(2), row(3)]).close()
    assert steps(fake) == ["open", ("log", 1), ("log", 2), ("log", 3), "close"]
    fake.told.clear()
    notes = tmp_path / "trackers.jsonl"
    lines = [line for line in notes.read_text().splitlines() if '"step": 3' not in line]
    odd = ['{"tracker": "wandb", "st', "[1]", '{"tracker": "wandb", "step": -5}', '{"tracker": 5}']
    notes.write_text("\n".join([*lines, *odd]))
    Tracking(RECIPE, tmp_path, 3, [row(1), row(2), row(3)]).close()
    assert steps(fake) == ["open", ("log", 3), "close"]


def test_what_is_kept_late_is_sent_again_after_a_kill_and_not_after_an_end(
    fake: type[Fake], tmp_path: Path
) -> None:
    fake.keeps_late = True
    Tracking(RECIPE, tmp_path, 2, [row(1), row(2)]).close()
    notes = [json.loads(line) for line in (tmp_path / "trackers.jsonl").read_text().splitlines()]
    assert [note["step"] for note in notes[1:]] == [0, 1, 2]
    (tmp_path / "trackers.jsonl").write_text("\n".join(map(json.dumps, notes[:-1])))  # killed before the end
    fake.told.clear()
    Tracking(RECIPE, tmp_path, 2, [row(1), row(2)]).close()
    assert steps(fake) == ["open", ("log", 2), "close"]
    fake.told.clear()
    Tracking(RECIPE, tmp_path, 2, [row(1), row(2)]).close()
    assert steps(fake) == ["open", "close"]


def test_within_a_run_that_falls_back_the_rows_are_not_sent_again(fake: type[Fake], tmp_path: Path) -> None:
    for can_drop, expected in (
        (False, ["open", ("log", 1), ("log", 2), ("log", 3), "close"]),
        (True, ["open", ("log", 1), ("log", 2), ("drop", 1), ("log", 2), ("log", 3), "close"]),
    ):
        fake.told.clear()
        fake.can_drop = can_drop
        folder = tmp_path / str(can_drop)
        folder.mkdir()
        told = Tracking(RECIPE, folder, 0, [])
        told.log(row(1))
        told.log(row(2))
        told.log(row(2, validation_loss=0.5))  # a look at the validation part has the step of a row
        told.drop_after(1)
        for step in (2, 3):
            told.log(row(step))
        told.close()
        assert [t for t in steps(fake) if t != ("log", 2)] == [t for t in expected if t != ("log", 2)]
        assert steps(fake).count(("log", 2)) == 2 + can_drop


def test_results_are_sent_once_and_a_checkpoint_flushes(fake: type[Fake], tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    entries = [
        {"protocol": "knn", "metrics": {"accuracy": 90.0, "per_class": [1.0], "many": None}},
        {"protocol": "knn", "metrics": {"accuracy": 80}},
    ]
    expected = {"evaluation/knn/accuracy": 90.0, "evaluation/knn_2/accuracy": 80}
    with run.locked():
        run.start(RECIPE, resume=False)
        run.log(row(5))
        run.save(Checkpoint(5, 1.0, {}, 0.0))
        run.track_results(RECIPE, entries, {"curves": tmp_path / "x.png"})
    assert fake.told[1:] == [
        ("log", 5, {"loss": 0.5}),
        ("flush",),
        ("results", 5, expected, {"curves": tmp_path / "x.png"}),
        ("close",),
    ]
    fake.told.clear()
    with run.locked():  # the release could not be written, and is made again
        run.track_results(RECIPE, entries, {})
    assert steps(fake) == ["open", "close"]


@pytest.mark.usefixtures("no_pictures")
def test_results_of_a_method_are_shown_with_the_training_that_is_its_own(
    fake: type[Fake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    changes = ["training.epochs=1", "schedule.warmup_epochs=0", "training.device=cpu", "training.threads=1"]
    changes += ["training.trackers=[wandb]", "evaluation=[{protocol: classifier}]"]
    base = "cifar_resnet20.ce_digits_lt50"
    zoo.pretrain(base, out=tmp_path / "crt", overrides=[*changes, "method={name: crt, epochs: 1}"])
    ids = [told[2] for told in fake.told if told[0] == "open"]
    assert ids == [ids[0], ids[1], ids[1]]  # two trainings, of which the second goes on for the results
    (result,) = (told for told in fake.told if told[0] == "results")
    last = RunFolder(next((tmp_path / "crt/run").glob("crt-*"))).rows()[-1]["step"]
    assert result[1] == last > 1
    assert "evaluation/classifier/accuracy" in result[2]

    # another method that has no training of its own but shares one
    fake.told.clear()
    stage = tmp_path / "crt/run"
    change = "method={name: tau_normalized}"
    zoo.pretrain(base, out=tmp_path / "tau", overrides=[*changes, change], stages_at=stage)
    ids = [told[2] for told in fake.told if told[0] == "open"]
    results = [told[1] for told in fake.told if told[0] == "results"]
    assert len({*ids}) == len(ids) == 2
    assert results[0] > 1


@pytest.mark.parametrize("what", ["open", "log", "flush", "results", "close"])
def test_a_tracker_that_fails_warns_once_and_the_run_goes_on(
    fake: type[Fake], tmp_path: Path, what: str
) -> None:
    fake.fails = what
    run = RunFolder(tmp_path / "run")
    message = f"wandb has failed .*: no {what} today. The training goes"
    with pytest.warns(UserWarning, match=message) as found, run.locked():
        run.start(RECIPE, resume=False)
        for step in (1, 2, 3):
            run.log(row(step))
            time.sleep(0.02)
        run.save(Checkpoint(3, 1.0, {}, 0.0))
        run.track_results(RECIPE, [], {})
    assert len(found) == 1
    assert "second line" not in str(found[0].message)
    assert [r["step"] for r in run.rows()] == [1, 2, 3]


def test_one_that_hangs_slows_nothing_and_the_end_waits_only_so_long(
    fake: type[Fake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.waits = 5.0
    monkeypatch.setattr(tracking, "PATIENCE", 0.3)
    told = Tracking(RECIPE, tmp_path, 0, [])
    began = time.monotonic()
    for step in range(1, 2001):
        told.log(row(step))
    assert time.monotonic() - began < 4.5  # less than one wait
    with pytest.warns(UserWarning, match=r"has not finished after 0\.3 s"):
        told.close()
    assert time.monotonic() - began < 4.5


def test_without_trackers_nothing_is_written(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        told = Tracking(Recipe.load(PACO), tmp_path, 0, [])
        told.log(row(1))
        told.results({}, {})
        told.close()
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_an_error_before_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TrainingError, match=r'"trackio" needs the package.*pip install trackio'):
        zoo.pretrain(PACO, out=tmp_path / "out", overrides=["training.trackers=[trackio]"])
    assert not (tmp_path / "out").exists()
    require_trackers(Recipe.load(PACO))


def test_a_package_that_does_not_work_is_one_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise AttributeError("module has no attribute x")

    monkeypatch.setattr(tracking.importlib, "import_module", broken)
    with pytest.raises(TrainingError, match="cannot be imported: module has no attribute x"):
        Tracking(RECIPE, tmp_path, 0, [])


@pytest.fixture
def logged_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has logged in to Weights & Biases, and nothing says that it is to stay offline."""
    for name in [name for name in os.environ if name.startswith(("WANDB_", "NETRC"))]:
        monkeypatch.delenv(name)
    for name in ("HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))


@pytest.mark.usefixtures("logged_out")
def test_wandb_without_a_key_is_an_error_before_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TrainingError, match=r'"wandb" cannot begin.*"wandb login".*WANDB_MODE=offline'):
        zoo.pretrain(PACO, out=tmp_path / "out", overrides=["training.trackers=[tensorboard,wandb]"])
    assert not (tmp_path / "out").exists()
    monkeypatch.setenv("WANDB_API_KEY", "short")
    with pytest.raises(TrainingError, match=r"WANDB_API_KEY"):
        require_trackers(RECIPE)
    for variable, value in (("WANDB_API_KEY", "0" * 40), ("WANDB_MODE", "offline"), ("RANK", "1")):
        with monkeypatch.context() as patch:
            patch.delenv("WANDB_API_KEY")
            patch.setenv(variable, value)
            patch.setenv("WORLD_SIZE", "2")
            require_trackers(RECIPE)


@pytest.mark.usefixtures("logged_out")
def test_wandb_never_asks_at_the_terminal_beside_the_training(tmp_path: Path) -> None:
    """Its thread would hold the terminal's input when the process ends, which Python then aborts."""
    program = (
        "import sys, pathlib; from zoo.recipe import Recipe; from zoo.training.tracking import Tracking\n"
        f"recipe = Recipe.load({PACO!r}, ['training.trackers=[wandb]'])\n"
        "told = Tracking(recipe, pathlib.Path(sys.argv[1]), 0, [])\n"
        "told.log({'step': 1, 'loss': 0.5})\n"
        "told.close()\n"
    )
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        said = b""
        try:
            while part := os.read(ours, 65536):
                said += part
        except OSError:  # how Linux says that the other end is closed
            pass
        assert process.wait(60) == 0, said
    os.close(ours)
    assert b"wandb has failed" in said
    assert b"API key" in said or b"api_key" in said
    assert b"choice" not in said


def test_an_unknown_tracker_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(RecipeError, match=r'training\.trackers.*"?tensorbord.*Did you mean "tensorboard"'):
        Recipe.load(PACO, ["training.trackers=[tensorbord]"])


def test_notes_that_cannot_be_read_are_a_clear_error(fake: type[Fake], tmp_path: Path) -> None:
    (tmp_path / "trackers.jsonl").mkdir()
    with pytest.raises(TrainingError, match=r'trackers\.jsonl" cannot be read'):
        Tracking(RECIPE, tmp_path, 0, [])


def test_who_repeats_a_training_needs_no_tracker(made: zoo.Release, tmp_path: Path) -> None:
    from zoo.experiments.reproduce import _recipe_of
    from zoo.release import format

    class Recorded:
        path = tmp_path

        def verify(self) -> None:
            pass

    (tmp_path / format.RECIPE).write_text(RECIPE.to_yaml())
    assert _recipe_of(Recorded()).training.trackers == []  # type: ignore[arg-type]
