"""The folder of a run: its lock, its recipe, what was recorded, and its checkpoints."""

from __future__ import annotations

import json
import math
import os
import socket
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from zoo import locks
from zoo.catalog import recipe_text
from zoo.data import ImageDataset
from zoo.errors import InUse, TrainingError, ZooWarning
from zoo.files import is_file, read_object, read_text, sync, temporary_files, write_text, writing
from zoo.recipe import Recipe
from zoo.training.changes import Change, allowed_changes
from zoo.training.checkpoint import Checkpoint, Checkpoints
from zoo.training.trackers import Trackers

LOCK_SECONDS = 10.0
"""For how long a lock is waited for: data workers of a killed process hold it until they notice."""
_LARGEST = 256 << 20  # bytes of a record: a million rows of metrics


class RunFolder:
    """`<out>/run`: `recipe.yaml`, `data.json`, `changes.jsonl` and `checkpoints/`, and what was recorded.

    `metrics.jsonl` has rows of numbers, `classes.jsonl` one row a checkpoint of numbers for every class. Of a
    recipe with a method `stages.json` says in which other such folders its trainings are.

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
        self.stages_file = path / "stages.json"
        self._checkpoints = Checkpoints(path / "checkpoints")
        self._locked = False
        self._trackers: Trackers | None = None

    def is_one(self) -> bool:
        """Return whether a run has been here: its recipe, and something of its training."""
        left = (self._checkpoints.folder, self.metrics_file, self.data_file, self.stages_file)
        return is_file(self.recipe_file) and any(path.exists() for path in left)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other process, and every other `RunFolder` of this one, out of the folder.

        Within the block it may be entered again. Of several ranks only the first may.

        Raises:
            InUse: naming process and host, if the folder is in use.
            TrainingError: if it cannot be written.
        """
        if self._locked:
            yield
            return
        lock, holder = FileLock(self.path / ".lock"), self.path / ".holder.json"
        made = [path for path in (self.path, *self.path.parents) if not path.exists()]
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
            trackers, self._trackers = self._trackers, None
            if trackers is not None:
                trackers.close()
            if made and not self.recipe_file.exists():  # nothing was begun, so nothing is left
                with suppress(OSError):
                    holder.unlink()
                    (self.path / ".lock").unlink()
                    for path in made:
                        path.rmdir()
            lock.release()

    def start(self, recipe: Recipe, *, resume: bool) -> Checkpoint | None:
        """Claim the folder for `recipe`; return the checkpoint to go on from, or None to begin.

        A recipe that differs in how it is computed is taken over, and the change recorded.

        Raises:
            TrainingError: if the folder holds a run and `resume` is off, or a run of another recipe; if it
                cannot be written; if it has checkpoints and none is readable.
        """
        changes = self._changes(recipe, resume=resume)
        with self._writing():
            self._checkpoints.folder.mkdir(parents=True, exist_ok=True)
            self._checkpoints.sweep()
            for file in temporary_files(self.path):
                file.unlink()
            checkpoint = self.load()
            step = checkpoint.step if checkpoint else 0
            self._record(changes, step)
            write_text(self.recipe_file, recipe.to_yaml())
            self._drop_rows_after(step)
            self._trackers = Trackers(recipe, self.path, step)
        return checkpoint

    def claim(self, recipe: Recipe, stages: Sequence[RunFolder], *, resume: bool) -> None:
        """Claim the folder for a recipe with a method, and note where its trainings lie, begun or not.

        Raises:
            TrainingError: as `start` does.
        """
        self._changes(recipe, resume=resume)
        places = [os.path.relpath(stage.path.resolve(), self.path.resolve()) for stage in stages]
        with self._writing():
            write_text(self.recipe_file, recipe.to_yaml())
            write_text(self.stages_file, json.dumps(places) + "\n")

    def stages(self) -> list[RunFolder]:
        """Return where the trainings of the recipe's method lie, as far as they are begun, in their order."""
        places = json.loads("".join(_lines(self.stages_file)) or "[]")
        found = [RunFolder((self.path / place).resolve()) for place in places]
        return list(takewhile(lambda stage: is_file(stage.recipe_file), found))

    def _changes(self, recipe: Recipe, *, resume: bool) -> list[Change]:
        """Return in what `recipe` differs from that of the run in the folder, if there is one."""
        if self.recipe_file.exists():
            if not resume:
                raise TrainingError(
                    f'"{self.path}" holds a run already; continue it with --resume, or choose another --out'
                )
            earlier = Recipe.from_yaml(recipe_text(self.recipe_file), str(self.recipe_file))
            return allowed_changes(earlier, recipe, str(self.path))
        if self.checkpoints():  # of which training nobody knows
            raise TrainingError(
                f'"{self.path}" holds checkpoints, and its recipe.yaml is missing; put that of the run '
                "there again, or choose another --out"
            )
        return []

    def keep_to(self, dataset: ImageDataset) -> None:
        """Note which images a run is of, when it begins; later see that they are the same.

        A recipe does not say which: a list may have been edited, `--data` name another folder.

        Raises:
            TrainingError: if the run began on others.
        """
        found = self.check_images(dataset)
        with self._writing():
            write_text(self.data_file, json.dumps(found) + "\n", parents=False)

    def check_images(self, dataset: ImageDataset) -> dict[str, Any]:
        """See that images are those that a run began on, if it has begun; return what is noted of them.

        Raises:
            TrainingError: if the run began on others.
        """
        facts = dataset.describe()
        found = {key: facts[key] for key in ("num_images", "sha256")}
        begun = read_object(self.data_file)
        if begun.get("sha256") not in (None, found["sha256"]):
            raise TrainingError(
                f'"{self.path}" holds a run on {_images(begun)}, which cannot be continued on '
                f"{_images(found)}: names, labels or order differ. Give it the data it began with, or choose "
                "another --out"
            )
        return found

    def _record(self, changes: Sequence[Change], step: int) -> None:
        """Add to changes.jsonl what holds from the step after `step` on, and say it."""
        # a run that has fallen back to an earlier checkpoint comes by the later changes again
        rows = [{**row, "step": min(step, row["step"])} for row in self.changes()]
        for key, before, now in changes:
            warnings.warn(f"from step {step} on: {key} was {before!r}, is {now!r}", ZooWarning, stacklevel=2)
            rows.append({"step": step, "key": key, "from": before, "to": now})
        unique = [row for i, row in enumerate(rows) if row not in rows[:i]]
        if unique:
            write_text(self.changes_file, "".join(json.dumps(row) + "\n" for row in unique))

    def changes(self) -> list[dict[str, Any]]:
        """Return what was changed in the recipe while the run went on: rows of step, key, from and to."""
        return _rows(self.changes_file)

    def checkpoints(self) -> list[Path]:
        """Return the checkpoint files, newest first."""
        return self._checkpoints.files()

    def holds(self, step: int) -> bool:
        """Whether there is a checkpoint of `step`."""
        return self._checkpoints.file(step).is_file()

    def load(self, step: int | None = None) -> Checkpoint | None:
        """Read the newest good checkpoint, or that of `step`; a damaged newest is passed over with a warning.

        Raises:
            TrainingError: if there are checkpoints and none can be read, or that of `step` cannot.
        """
        return self._checkpoints.newest() if step is None else self._checkpoints.read(step)

    def save(self, checkpoint: Checkpoint, *, keep: int = 2) -> None:
        """Write a checkpoint, whole or not at all, and remove all but the newest `keep`.

        Raises:
            TrainingError: if it cannot be written; earlier checkpoints are untouched.
        """
        with self._writing():
            for file in filter(Path.exists, (self.metrics_file, self.classes_file)):
                sync(file)  # so that rows of finished steps outlive the machine as well
            self._checkpoints.write(checkpoint, keep)

    def log(self, row: Mapping[str, float | int]) -> None:
        """Append one row to metrics.jsonl; values that are not finite become null.

        Raises:
            TrainingError: if it cannot be written.
        """
        clean = {k: v if math.isfinite(v) else None for k, v in row.items()}
        self._append(self.metrics_file, clean)
        if self._trackers is not None:
            self._trackers.log(clean)

    def log_classes(self, row: Mapping[str, Any]) -> None:
        """Append one row to classes.jsonl.

        Raises:
            TrainingError: if it cannot be written.
        """
        self._append(self.classes_file, row)

    def track_results(
        self,
        recipe: Recipe,
        entries: Sequence[Mapping[str, Any]],
        pictures: Mapping[str, Path],
        *,
        step: int = 0,
    ) -> None:
        """Send the recipe's trackers what was measured and drawn in the end; the folder has to be locked.

        Args:
            recipe: of a training here, or of a method whose trainings lie elsewhere.
            entries: evaluations, as metrics.json of the release has them.
            pictures: PNG files by name.
            step: the training's last.
        """
        if self._trackers is None:
            self._trackers = Trackers(recipe, self.path, step)
        self._trackers.results(entries, pictures, step)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of metrics.jsonl; a last line cut off by a crash is left out."""
        return _rows(self.metrics_file)

    def class_rows(self) -> list[dict[str, Any]]:
        """Return the rows of classes.jsonl, one of each checkpoint before which there was a look.

        Each has `step` and `epoch` of its end, how many `looks` it is of, all since the row before it, and
        lists over the C classes: `images` that were seen; `feature_gradient`, the mean over these of the norm
        of the gradient of the batch's loss, taken times the batch size, with respect to an image's features,
        None without an image (in a contrast this has what the image is to others); `class_gradient`, what the
        class contributes to a step, the sum of these norms over the batch's images of the class divided by
        the batch size; `center_gradient`, the mean norm of the gradient of the class's center. Of the last
        three each is None as a whole where the objective does not say, or has no centers.
        """
        return _rows(self.classes_file)

    def _append(self, to: Path, row: Mapping[str, Any]) -> None:
        with self._writing(), to.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def _drop_rows_after(self, step: int) -> None:
        """Forget recorded rows that the steps after the checkpoint will write again."""
        for file in (self.metrics_file, self.classes_file):
            rows = [row for row in _rows(file) if row["step"] <= step]
            if file.exists() or file == self.metrics_file:
                write_text(file, "".join(json.dumps(row) + "\n" for row in rows))

    def _writing(self) -> AbstractContextManager[None]:
        return writing(f'run folder "{self.path}"', TrainingError)


def _rows(file: Path) -> list[dict[str, Any]]:
    """Return the JSON objects of a file, one a line; what a crash has cut off is left out, with a warning."""
    lines, rows = _lines(file), list[dict[str, Any]]()
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows.append(row)
        elif number < len(lines):
            warnings.warn(
                f'"{file}" is damaged: line {number} is no row and is left out', ZooWarning, stacklevel=2
            )
    return rows


def _lines(file: Path) -> list[str]:
    """Return the lines of a file of the run; none if it is not there."""
    if not file.exists():
        return []
    try:
        return read_text(file, _LARGEST, errors="replace").splitlines()
    except OSError as error:
        raise TrainingError(f'"{file}" cannot be read: {error}') from None


def _images(facts: Mapping[str, Any]) -> str:
    return f"{facts.get('num_images')} images (sha256 {str(facts.get('sha256'))[:12]}...)"
