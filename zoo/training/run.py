"""The folder of a run: its lock, its recipe, what was recorded, and its checkpoints."""

from __future__ import annotations

import json
import math
import os
import socket
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from zoo import locks
from zoo.catalog import recipe_text
from zoo.data import ImageDataset
from zoo.errors import InUse, TrainingError, ZooWarning
from zoo.files import is_file, read_object, sync, temporary_files, write_text, writing
from zoo.recipe import Recipe
from zoo.recipe.overrides import COMPUTATION
from zoo.training import checkpoint as checkpoints
from zoo.training.checkpoint import Checkpoint, step_of
from zoo.training.logging import Trackers

LOCK_SECONDS = 10.0
"""How long a lock is waited for: data workers of a killed process hold it until they notice."""
CHANGEABLE = COMPUTATION - {"training.channels_last"}
"""Keys of the recipe that may change while a run goes on. Not the memory layout: optimizer state is saved in
it, and fused kernels read state and parameter in the order of memory."""


class Change(NamedTuple):
    """A key of the recipe that has another value from some step on."""

    key: str
    before: Any
    now: Any


def differences(earlier: Any, now: Any, path: str = "") -> list[Change]:
    """List the keys in which two plain recipes differ."""
    if not (isinstance(earlier, dict) and isinstance(now, dict)):
        return [] if earlier == now else [Change(path, earlier, now)]
    return [
        change
        for key in {**earlier, **now}
        for change in differences(earlier.get(key), now.get(key), f"{path}.{key}" if path else key)
    ]


def allowed_changes(earlier: Recipe, now: Recipe, folder: str) -> list[Change]:
    """Return the differences of two recipes of one run, which are in how it is computed.

    One of them is not quite so: with another `training.accumulate`, BatchNorm and losses that contrast within
    the batch see larger or smaller parts of it. It lets a run that is out of memory go on.

    Raises:
        TrainingError: naming each difference with which it would be another training.
    """
    changes = differences(earlier.model_dump(mode="json"), now.model_dump(mode="json"))
    if others := [change for change in changes if change.key not in CHANGEABLE]:
        raise TrainingError(
            f'"{folder}" holds a run of another recipe, which cannot be continued with this one: '
            + "; ".join(f"{key} was {before!r}, is {now!r}" for key, before, now in others)
            + ". With --resume only how it is computed may change (e.g. training.accumulate or precision); "
            "choose another --out"
        )
    return changes


def is_same(earlier: dict[str, Any], now: Recipe) -> bool:
    """Whether a plain recipe and `now` differ at most in their descriptions."""
    return all(change.key == "description" for change in differences(earlier, now.model_dump(mode="json")))


class RunFolder:
    """`<out>/run`: `recipe.yaml`, `data.json`, `changes.jsonl`, `checkpoints/`, and what was recorded.

    `metrics.jsonl` has rows of numbers, `classes.jsonl` one row a checkpoint of numbers for every class. Of a
    recipe with a method the trainings have such folders of their own inside: `stage-1`, `stage-2`.

    Whatever cannot be written or continued is a TrainingError; what is on disk then stays as it was.

    Args:
        path: the folder; created when it is locked.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics_file = path / "metrics.jsonl"
        self.classes_file = path / "classes.jsonl"
        self.recipe_file = path / "recipe.yaml"
        self.changes_file = path / "changes.jsonl"
        self.data_file = path / "data.json"
        self._saved = path / "checkpoints"
        self._locked = False
        self._trackers: Trackers | None = None

    def is_one(self) -> bool:
        """Whether a run has been here: its recipe, and something of its training."""
        left = (self._saved, self.metrics_file, self.stage(1).recipe_file)
        return is_file(self.recipe_file) and any(path.exists() for path in left)

    def stage(self, number: int) -> RunFolder:
        """Return the folder of a method's training number `number`, from 1, begun or not."""
        return RunFolder(self.path / f"stage-{number}")

    def stages(self) -> list[RunFolder]:
        """Return the folders of the trainings of the recipe's method that are begun, in their order."""
        return [stage for stage in (self.stage(1), self.stage(2)) if is_file(stage.recipe_file)]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other process, and every other `RunFolder` of this one, out of the folder.

        Within the block it may be entered again. Of several ranks only the first may.

        Raises:
            InUse: naming process and host, if the folder is in use.
        """
        if self._locked:
            yield
            return
        lock, holder = FileLock(self.path / ".lock"), self.path / ".holder.json"
        with self._writing():
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                locks.acquire(lock, timeout=LOCK_SECONDS)
            except Timeout:
                found = read_object(holder)
                raise InUse(
                    f'run folder "{self.path}" is in use by process {found.get("pid")} on '
                    f"{found.get('host')}; wait for it or stop it, or choose another --out"
                ) from None
            write_text(holder, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        self._locked = True
        try:
            yield
        finally:
            self._locked = False
            if self._trackers is not None:
                self._trackers.close()
            lock.release()

    def start(self, recipe: Recipe, *, resume: bool) -> Checkpoint | None:
        """Claim the folder for `recipe`; return the checkpoint to go on from, or None to begin.

        A recipe that differs in how it is computed is taken over, and the change recorded.

        Raises:
            TrainingError: also if the folder holds a run and `resume` is off, or a run of another recipe; if
                it has checkpoints and none is readable.
        """
        changes = self._changes(recipe, resume=resume)
        with self._writing():
            self._saved.mkdir(parents=True, exist_ok=True)
            for file in [*temporary_files(self.path), *temporary_files(self._saved)]:
                file.unlink()  # a killed process left it half written
            found = self.load()
            step = found.step if found else 0
            # a run that has fallen back to an earlier checkpoint comes by the later changes again
            rows = [{**row, "step": min(step, row["step"])} for row in self.changes()]
            for key, before, now in changes:
                warnings.warn(
                    f"from step {step} on: {key} was {before!r}, is {now!r}", ZooWarning, stacklevel=2
                )
                rows.append({"step": step, "key": key, "from": before, "to": now})
            if rows:
                _write_rows(self.changes_file, [row for i, row in enumerate(rows) if row not in rows[:i]])
            write_text(self.recipe_file, recipe.to_yaml())
            for file in filter(Path.exists, (self.metrics_file, self.classes_file)):
                _write_rows(file, [row for row in _rows(file) if row["step"] <= step])
            self._trackers = Trackers(recipe, self.path, step)
        return found

    def claim(self, recipe: Recipe, *, resume: bool) -> None:
        """Claim the folder for a recipe with a method, whose trainings lie in folders inside; see `start`."""
        self._changes(recipe, resume=resume)
        with self._writing():
            write_text(self.recipe_file, recipe.to_yaml())

    def _changes(self, recipe: Recipe, *, resume: bool) -> list[Change]:
        """Return in what `recipe` differs from that of the run in the folder, if there is one."""
        if not self.recipe_file.exists():
            return []
        if not resume:
            raise TrainingError(
                f'"{self.path}" holds a run already; continue it with --resume, or choose another --out'
            )
        earlier = Recipe.from_yaml(recipe_text(self.recipe_file), str(self.recipe_file))
        return allowed_changes(earlier, recipe, str(self.path))

    def changes(self) -> list[dict[str, Any]]:
        """Return what was changed in the recipe while the run went on: rows of step, key, from and to."""
        return _rows(self.changes_file)

    def check_images(self, dataset: ImageDataset, *, record: bool = False) -> None:
        """Make sure that images are those that a run began on; `record` which, for the next time.

        Raises:
            TrainingError: if the run began on others.
        """
        facts, begun = dataset.describe(), read_object(self.data_file)
        found = {key: facts[key] for key in ("num_images", "sha256")}
        if begun.get("sha256") not in (None, found["sha256"]):
            then, now = (
                f"{each['num_images']} images (sha256 {each['sha256'][:12]}...)" for each in (begun, found)
            )
            raise TrainingError(
                f'"{self.path}" holds a run on {then}, which cannot be continued on {now}: names, labels or '
                "order differ. Give it the data it began with, or choose another --out"
            )
        if record:
            with self._writing():
                write_text(self.data_file, json.dumps(found) + "\n", parents=False)

    def checkpoints(self) -> list[Path]:
        """Return the checkpoint files, newest first."""
        found = [file for file in self._saved.glob("step-*.pt") if step_of(file) is not None]
        return sorted(found, key=lambda file: step_of(file) or 0, reverse=True)

    def load(self, step: int | None = None) -> Checkpoint | None:
        """Read the newest good checkpoint, or that of `step`; a damaged newest is passed over with a warning.

        Raises:
            TrainingError: if there are checkpoints and none can be read, or that of `step` cannot.
        """
        if step is not None:
            return checkpoints.read(checkpoints.file_of(self._saved, step))
        files = self.checkpoints()
        for file in files:
            try:
                return checkpoints.read(file)
            except TrainingError as error:
                warnings.warn(f"{error}; it is passed over as damaged", ZooWarning, stacklevel=2)
        if files:
            raise TrainingError(f'no checkpoint in "{self._saved}" can be read; begin again in another --out')
        return None

    def save(self, checkpoint: Checkpoint, *, keep: int = 2) -> None:
        """Write a checkpoint, whole or not at all, and remove all but the newest `keep`."""
        with self._writing():
            for file in filter(Path.exists, (self.metrics_file, self.classes_file)):
                sync(file)  # so that rows of finished steps outlive the machine as well
            self._saved.mkdir(parents=True, exist_ok=True)
            checkpoints.write(self._saved, checkpoint)
            # later ones were passed over as damaged: this run has come from before them
            steps = [step for file in self.checkpoints() if (step := step_of(file) or 0) <= checkpoint.step]
            for old in self._saved.glob("step-*"):  # records without a checkpoint too
                if step_of(old) is not None and step_of(old) not in steps[:keep]:
                    old.unlink()

    def log(self, row: Mapping[str, float | int]) -> None:
        """Append one row to metrics.jsonl; values that are not finite become null."""
        clean = {k: v if math.isfinite(v) else None for k, v in row.items()}
        self._append(self.metrics_file, clean)
        if self._trackers is not None:
            self._trackers.log(clean)

    def log_classes(self, row: Mapping[str, Any]) -> None:
        """Append one row to classes.jsonl."""
        self._append(self.classes_file, row)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of metrics.jsonl; a line cut off by a crash is left out."""
        return _rows(self.metrics_file)

    def class_rows(self) -> list[dict[str, Any]]:
        """Return the rows of classes.jsonl, one of each checkpoint before which a step was observed.

        Each has `step` and `epoch` of its end, how many `looks` (observed steps) it is of, and lists over the
        C classes: `images` in those steps; `feature_gradient`, the mean norm of the gradient of the loss with
        respect to an image's features; `class_gradient`, the sum of these norms in a step divided by the
        batch size; `center_gradient`, the mean norm of the gradient of the class's center. A list is None
        where the objective has no such gradient. See `zoo.training.observe`.
        """
        return _rows(self.classes_file)

    def _append(self, to: Path, row: Mapping[str, Any]) -> None:
        with self._writing(), to.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def _writing(self) -> AbstractContextManager[None]:
        return writing(f'run folder "{self.path}"', TrainingError)


def _write_rows(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    write_text(file, "".join(json.dumps(row) + "\n" for row in rows))


def _rows(file: Path) -> list[dict[str, Any]]:
    """Return the JSON objects of a file, one a line, without those that a crash has cut off."""
    rows = list[dict[str, Any]]()
    for line in _lines(file):
        with suppress(ValueError):
            rows.append(json.loads(line))
    return rows


def _lines(file: Path) -> list[str]:
    """Return the lines of a file of the run; none if it is not there."""
    return file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else []
