"""The folder of a run: lock, recipe, logged metrics and checkpoints."""

import hashlib
import json
import math
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from os.path import isfile
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from zoo.config import flatten
from zoo.data import ImageDataset
from zoo.data.dataset import content_ids
from zoo.errors import InUse, RecipeError, TrainingError
from zoo.files import read_json_or_empty, read_text, sync, temporary_files, write_text, writing
from zoo.recipe import Recipe
from zoo.recipe.overrides import COMPUTATION
from zoo.training import checkpoint as checkpoints
from zoo.training.checkpoint import Checkpoint
from zoo.training.logging import Trackers

_COMPARED = 64  # images whose pixels must be unchanged when a run resumes
LOCK_SECONDS = 10.0  # a killed process's data workers hold its lock until they notice
# keys that may change on resume; not channels_last, since it sets the layout of saved optimizer state
CHANGEABLE = tuple(f"{k}." for k in COMPUTATION - {"training.precision", "training.channels_last"})


def check_same_run(earlier: Recipe, now: Recipe, folder: Path) -> None:
    """Refuse recipes that differ in more than hardware and keys the training ignores, naming each key."""
    changes = _differences(earlier.model_dump(mode="json"), now)
    fixed = [key for key in changes if not f"{key}.".startswith(CHANGEABLE)]
    if others := ["{} was {!r}, is {!r}".format(key, *changes[key]) for key in fixed]:
        raise TrainingError(f'"{folder}" holds a run of another recipe: {"; ".join(others)}')


def is_same(earlier: dict[str, Any], now: Recipe) -> bool:
    """Whether a plain recipe and `now` differ at most in their descriptions."""
    return not _differences(earlier, now).keys() - {"description"}


def _differences(earlier: dict[str, Any], now: Recipe) -> dict[str, tuple[Any, Any]]:
    before, after = flatten(earlier), flatten(now.model_dump(mode="json"))
    return {k: (before.get(k), after.get(k)) for k in {**before, **after} if before.get(k) != after.get(k)}


class RunFolder:
    """`<out>/run`: `recipe.yaml`, `data.json`, `checkpoints/` and logged metrics.

    `metrics.jsonl` has rows of numbers, `classes.jsonl` per-class numbers, one row per checkpoint. A method's
    trainings have folders like it inside, `stage-1` and `stage-2`. TrainingError if the folder cannot be
    written or resumed.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.recipe_file, self.data_file = path, path / "recipe.yaml", path / "data.json"
        self.metrics_file, self.classes_file = path / "metrics.jsonl", path / "classes.jsonl"
        self._saved, self._holder = path / "checkpoints", path / ".holder"
        self._lock = FileLock(path / ".lock")
        self._trackers: Trackers | None = None
        self._writing = partial(writing, f'run folder "{path}"', TrainingError)

    def is_run(self) -> bool:
        """Whether a run has started here: its recipe and part of its training exist."""
        left = (self._saved, self.metrics_file, self.path / "stage-1")
        return isfile(self.recipe_file) and any(path.exists() for path in left)

    def stage(self, number: int) -> "RunFolder":
        """Return the folder of a method's training number `number` (from 1), whether or not it exists."""
        return RunFolder(self.path / f"stage-{number}")

    def stages(self) -> "list[RunFolder]":
        """Return the folders of the method's trainings that have started, in order."""
        return [stage for stage in (self.stage(1), self.stage(2)) if isfile(stage.recipe_file)]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder against other processes and other `RunFolder` objects; reentrant."""
        with self._writing():
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire(timeout=LOCK_SECONDS)
            except Timeout:
                by = self._holder.read_text() if self._holder.exists() else "another process"
                raise InUse(f'run folder "{self.path}" is in use by {by}; choose another --out') from None
            self._holder.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        try:
            yield
        finally:
            if self._trackers is not None:
                self._trackers.close()
                self._trackers = None
            self._lock.release()

    def claim(self, recipe: Recipe, *, resume: bool) -> None:
        """Write the run's recipe; refuse a folder with another run, or with any run unless `resume`."""
        if self.recipe_file.exists():
            if not resume:
                raise TrainingError(f'"{self.path}" holds a run already; use --resume or another --out')
            earlier = Recipe.from_yaml(read_text(self.recipe_file, RecipeError), str(self.recipe_file))
            check_same_run(earlier, recipe, self.path)
        with self._writing():
            write_text(self.recipe_file, recipe.to_yaml())

    def start(self, recipe: Recipe, *, resume: bool) -> Checkpoint | None:
        """Claim the folder and return the checkpoint to resume from, if any; drop the rows of later steps."""
        self.claim(recipe, resume=resume)
        with self._writing():
            for file in [*temporary_files(self.path), *temporary_files(self._saved)]:
                file.unlink()  # a killed process left it incomplete
            found = self.load()
            step = found.step if found else 0
            for file in filter(Path.exists, (self.metrics_file, self.classes_file)):
                kept = [row for row in _read_rows(file) if row["step"] <= step]
                write_text(file, "".join(json.dumps(row) + "\n" for row in kept))
            self._trackers = Trackers(recipe, self.path, step)
        return found

    def check_images(self, dataset: ImageDataset, *, record: bool = False) -> None:
        """Refuse images other than those the run began with; with `record`, save which these are."""
        facts, begun = dataset.describe(), read_json_or_empty(self.data_file)
        sample = dataset.subset(np.unique(np.linspace(0, len(dataset) - 1, _COMPARED).astype(np.int64)))
        pixels = hashlib.sha256(content_ids(sample).tobytes()).hexdigest()
        found = {"num_images": facts["num_images"], "sha256": facts["sha256"], "pixels": pixels}
        # without the content of held-out images: an unreadable one may be replaced after the training
        found["listed"] = replace(dataset, settings={}).describe()["sha256"]
        other = {key for key, value in found.items() if begun.get(key) not in (None, value)}
        if other & {"num_images", "pixels"} or ("sha256" in other and begun.get("listed") != found["listed"]):
            now = [f"{key} was {str(begun[key])[:12]}, is {str(found[key])[:12]}" for key in sorted(other)]
            raise TrainingError(f'"{self.path}" holds a run on other images: {"; ".join(now)}')
        if record:
            with self._writing():
                write_text(self.data_file, json.dumps(found) + "\n")

    def checkpoints(self) -> dict[int, Path]:
        """Return the checkpoint files by step, newest first."""
        return checkpoints.list_checkpoints(self._saved)

    def load(self, step: int | None = None) -> Checkpoint | None:
        """Read the checkpoint of `step`, or the newest intact one; None if there is none."""
        return checkpoints.newest(self._saved) if step is None else checkpoints.read(self.checkpoints()[step])

    def save(self, checkpoint: Checkpoint, *, keep: int = 2) -> None:
        """Write a checkpoint atomically, and remove all but the newest `keep`."""
        with self._writing():
            for file in filter(Path.exists, (self.metrics_file, self.classes_file)):
                sync(file)  # so that logged rows survive a crash as well
            checkpoints.write(self._saved, checkpoint, keep)

    def log(self, row: Mapping[str, float | int]) -> None:
        """Append one row to metrics.jsonl; values that are not finite become null."""
        clean = {k: v if math.isfinite(v) else None for k, v in row.items()}
        self.append(self.metrics_file, clean)
        if self._trackers is not None:
            self._trackers.log(clean)

    def append(self, file: Path, row: Mapping[str, Any]) -> None:
        """Append one row to metrics.jsonl or classes.jsonl."""
        with self._writing(), file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of metrics.jsonl, without a line that a crash cut off."""
        return _read_rows(self.metrics_file)

    def class_rows(self) -> list[dict[str, Any]]:
        """Return the rows of classes.jsonl, one per checkpoint with observed steps since the one before.

        Each has `step`, `epoch` and `looks`, the number of steps observed since the last row, and for each of
        the C classes the `images` in those steps and mean gradient norms, None where there are none:
        `feature_gradient` per image, `class_gradient` (their sum in a step / batch size), `center_gradient`.
        """
        return _read_rows(self.classes_file)


def _read_rows(file: Path) -> list[dict[str, Any]]:
    rows = list[dict[str, Any]]()
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else []:
        with suppress(ValueError):
            rows.append(json.loads(line))
    return rows
