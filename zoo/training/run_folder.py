"""The folder of a run: its recipe, its metrics and its checkpoints."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

from zoo.catalog import recipe_text
from zoo.data import ImageDataset
from zoo.errors import TrainingError, ZooWarning
from zoo.files import is_file, sync, temporary_files, write_text
from zoo.recipe import Recipe
from zoo.training.changes import Change, allowed_changes
from zoo.training.checkpoint import Checkpoint, Checkpoints
from zoo.training.disk import gone, writing
from zoo.training.lock import hold
from zoo.training.records import LARGEST, json_lines, lines
from zoo.training.tracking import Tracking, scalars_of

__all__ = ["Checkpoint", "RunFolder"]


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
        self.unreadable_file = path / "unreadable.txt"
        self._checkpoints = Checkpoints(path / "checkpoints")
        self._locked = False
        self._tracking: Tracking | None = None
        self._identity: tuple[int, int] | None = None

    def is_one(self) -> bool:
        """Return whether a run has been here: its recipe, and something of its training."""
        left = (self._checkpoints.folder, self.metrics_file, self.data_file, self.stages_file)
        return is_file(self.recipe_file) and any(path.exists() for path in left)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other process, and every other `RunFolder` of this one, out of the folder.

        Within the block it may be entered again. Of several ranks only the first may.

        Raises:
            TrainingError: naming process, host and since when, if the folder is in use.
        """
        if self._locked:
            yield
            return
        with hold(self.path, used=self.recipe_file):
            self._locked = True
            try:
                yield
            finally:
                self._locked = False
                tracking, self._tracking = self._tracking, None
                if tracking is not None:
                    tracking.close()

    def claim(self, recipe: Recipe, *, resume: bool) -> None:
        """Claim the folder for `recipe`, whose trainings keep their state elsewhere.

        Raises:
            TrainingError: as `start` does.
        """
        self._changes(recipe, resume=resume)
        with writing(f'run folder "{self.path}"', self.path):
            write_text(self.recipe_file, recipe.to_yaml())

    def note_stages(self, stages: Sequence[RunFolder]) -> None:
        """Note where the trainings of the recipe's method lie, in their order, whether begun or not.

        Raises:
            TrainingError: if it cannot be written.
        """
        places = [_relative(stage.path, self.path) for stage in stages]
        with writing(f'"{self.stages_file}"', self.path):
            write_text(self.stages_file, json.dumps(places) + "\n")

    def stages(self) -> list[RunFolder]:
        """Return where the trainings of the recipe's method lie, as far as they are begun, in their order."""
        try:
            places = json.loads("".join(lines(self.stages_file)))
            found = [RunFolder((self.path / place).resolve()) for place in places]
        except (ValueError, RecursionError, TypeError):  # damaged, as by a crash, or there is none
            return []
        return list(takewhile(lambda stage: is_file(stage.recipe_file), found))

    def start(self, recipe: Recipe, *, resume: bool) -> Checkpoint | None:
        """Claim the folder for `recipe`; return the checkpoint to go on from, or None to begin.

        A recipe that differs in how it is computed is taken over, and the change recorded.

        Raises:
            TrainingError: if the folder holds a run and `resume` is off, or a run of another recipe; if it
                cannot be written; if it has checkpoints and none is readable.
        """
        changes = self._changes(recipe, resume=resume)
        with writing(f'run folder "{self.path}"', self.path):
            self._checkpoints.folder.mkdir(parents=True, exist_ok=True)
            self._checkpoints.sweep()
            for file in temporary_files(self.path):
                file.unlink()
            checkpoint = self.load()
            self._record(changes, checkpoint.step if checkpoint else 0)
            write_text(self.recipe_file, recipe.to_yaml())
            self.drop_rows_after(checkpoint.step if checkpoint else 0)
            self._identity = self._found()
            step = checkpoint.step if checkpoint else 0
            self._tracking = Tracking(recipe, self.path, step, self.rows())
        return checkpoint

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
        with self._own(), writing(f'"{self.data_file}"', self.path):
            write_text(self.data_file, json.dumps(found) + "\n", parents=False)

    def check_images(self, dataset: ImageDataset) -> dict[str, Any]:
        """See that images are those that a run began on, if it has begun; return what is noted of them.

        Raises:
            TrainingError: if the run began on others.
        """
        facts = dataset.describe()
        found = {key: facts[key] for key in ("num_images", "sha256")}
        try:
            begun = json.loads("".join(lines(self.data_file)))
        except (ValueError, RecursionError):
            begun = None
        if isinstance(begun, dict) and begun.get("sha256") not in (None, found["sha256"]):
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
            row = {"step": step, "key": key, "from": before, "to": now}
            warnings.warn(f"from step {step} on: {key} was {before!r}, is {now!r}", ZooWarning, stacklevel=2)
            rows.append(row)
        unique = [row for i, row in enumerate(rows) if row not in rows[:i]]
        if unique:
            write_text(self.changes_file, "".join(json.dumps(row) + "\n" for row in unique))

    def checkpoints(self) -> list[Path]:
        """Return the checkpoint files, newest first."""
        return self._checkpoints.files()

    def load(self, step: int | None = None) -> Checkpoint | None:
        """Read the newest good checkpoint, or that of `step`; a damaged newest is passed over with a warning.

        Raises:
            TrainingError: if there are checkpoints and none can be read, or that of `step` cannot.
        """
        return self._checkpoints.newest() if step is None else self._checkpoints.read(step)

    def holds(self, step: int) -> bool:
        """Whether there is a checkpoint of `step`."""
        return self._checkpoints.file(step).is_file()

    def save(self, checkpoint: Checkpoint, *, keep: int = 2) -> None:
        """Write a checkpoint, whole or not at all, and remove all but the newest `keep`.

        Raises:
            TrainingError: if it cannot be written; earlier checkpoints are untouched.
        """
        with self._own(), writing(f'"{self.metrics_file}"', self.path):
            for file in filter(Path.exists, (self.metrics_file, self.classes_file)):
                sync(file)  # so that rows of finished steps outlive the machine as well
            self._checkpoints.write(checkpoint, keep)
        if self._tracking is not None:
            self._tracking.flush()

    def log(self, row: Mapping[str, float | int]) -> None:
        """Append one row to metrics.jsonl; values that are not finite become null.

        Raises:
            TrainingError: if it cannot be written.
        """
        clean = {k: v if math.isfinite(v) else None for k, v in row.items()}
        self._append(self.metrics_file, clean)
        if self._tracking is not None:
            self._tracking.log(clean)

    def track_results(
        self,
        recipe: Recipe,
        entries: Sequence[Mapping[str, Any]],
        pictures: Mapping[str, Path],
        *,
        step: int = 0,
    ) -> None:
        """Tell the recipe's trackers what was measured and drawn in the end; the folder has to be locked.

        Args:
            recipe: of a training here, or of a method whose trainings lie elsewhere.
            entries: evaluations, as metrics.json of the release has them.
            pictures: PNG files by name.
            step: the training's last.
        """
        if self._tracking is None:
            self._tracking = Tracking(recipe, self.path, step, self.rows())
        self._tracking.results(scalars_of(entries), pictures)

    def log_classes(self, row: Mapping[str, Any]) -> None:
        """Append one row to classes.jsonl, unless it has grown so large that it might not be read again.

        Raises:
            TrainingError: if it cannot be written.
        """
        file = self.classes_file
        if not file.exists() or file.stat().st_size < LARGEST // 2:
            self._append(file, row)

    def _append(self, to: Path, row: Mapping[str, Any]) -> None:
        with self._own(), writing(f'"{to}"', self.path), to.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def note_unreadable(self, names: Sequence[str]) -> None:
        """Keep the names of unreadable images in `unreadable.txt` and say when there are new ones."""
        file = self.unreadable_file
        known = lines(file)
        # a file's name need not be text
        texts = [name.encode(errors="backslashreplace").decode() for name in names]
        new = [text for text in texts if text not in known]
        if new:
            with self._own(), writing(f'"{file}"', self.path):
                write_text(file, "\n".join([*known, *new]) + "\n", parents=False)
            count = len(known) + len(new)
            found = (
                "1 image cannot be read and is" if count == 1 else f"{count} images cannot be read and are"
            )
            warnings.warn(
                f'{found} replaced, e.g. "{new[0]}"; all in {file}',
                ZooWarning,
                stacklevel=2,
            )

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of metrics.jsonl; a last line cut off by a crash is left out."""
        return json_lines(self.metrics_file)

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
        return [row for row in json_lines(self.classes_file) if isinstance(row.get("images"), list)]

    def changes(self) -> list[dict[str, Any]]:
        """Return what was changed in the recipe while the run went on: rows of step, key, from and to."""
        return [row for row in json_lines(self.changes_file) if row.keys() >= {"key", "from", "to"}]

    def drop_rows_after(self, step: int) -> None:
        """Forget recorded rows that the steps after the checkpoint will write again."""
        self._write_rows(self.metrics_file, [row for row in self.rows() if row["step"] <= step])
        if self.classes_file.exists():
            self._write_rows(self.classes_file, [row for row in self.class_rows() if row["step"] <= step])
        if self._tracking is not None:
            self._tracking.drop_after(step)

    def _write_rows(self, file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
        with self._own(), writing(f'"{file}"', self.path):
            write_text(file, "".join(json.dumps(row) + "\n" for row in rows), parents=False)

    @contextmanager
    def _own(self) -> Iterator[None]:
        """Refuse to write into a folder that has taken the place of this run's, or takes it meanwhile."""
        if self._identity not in (None, self._found()):
            raise gone(self.path)
        try:
            yield
        except TrainingError:
            if self._identity not in (None, self._found()):
                raise gone(self.path) from None
            raise

    def _found(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino


def _relative(path: Path, folder: Path) -> str:
    """Return the way from a folder to a path, which stays true where both are moved together."""
    try:
        # links resolved: the way up from a linked folder is that from where it lies
        return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
    except ValueError:  # on another drive of Windows
        return str(path.resolve())


def _images(facts: Mapping[str, Any]) -> str:
    digest = str(facts.get("sha256"))[:12]
    return f"{str(facts.get('num_images'))[:20]} images (sha256 {digest}...)"
