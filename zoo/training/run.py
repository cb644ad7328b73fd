"""The folder of a run: its recipe, its metrics and its checkpoints."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from zoo.errors import TrainingError
from zoo.files import write_atomic, write_text
from zoo.training.recipe import Recipe

CHECKPOINT_FORMAT = 1
KEEP_CHECKPOINTS = 2  # the newest, and one to fall back on should it be damaged


class Checkpoint(NamedTuple):
    """Everything a run needs to go on as if it had never stopped.

    Attributes:
        step: updates done.
        seconds: training time so far.
        state: state dicts of objective (encoder, head, teacher, queue, centers), optimizer and loss scaler.
    """

    step: int
    seconds: float
    state: dict[str, dict[str, Any]]


class RunFolder:
    """`<out>/run`: `recipe.yaml`, `metrics.jsonl` and `checkpoints/`.

    Args:
        path: the folder; created when something is written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics_file = path / "metrics.jsonl"
        self.recipe_file = path / "recipe.yaml"

    def checkpoints(self) -> list[Path]:
        """Return the checkpoint files, newest first."""
        return sorted((self.path / "checkpoints").glob("step-*.pt"), reverse=True)

    def start(self, recipe: Recipe, *, resume: bool) -> Checkpoint | None:
        """Claim the folder for `recipe`; return the checkpoint to go on from, or None to begin.

        Raises:
            TrainingError: if the folder holds a run and `resume` is off, or a run of another recipe.
        """
        if self.recipe_file.is_file():
            if not resume:
                raise TrainingError(
                    f'"{self.path}" holds a run already; continue it with --resume, or choose another --out'
                )
            self._check_same(recipe)
        try:
            write_text(self.recipe_file, recipe.to_yaml())
        except OSError as error:
            raise TrainingError(f'run folder "{self.path}" cannot be written: {error}') from None
        checkpoint = self.load()
        self._drop_rows_after(checkpoint.step if checkpoint else 0)
        return checkpoint

    def _check_same(self, recipe: Recipe) -> None:
        earlier = Recipe.from_yaml(self.recipe_file.read_text(encoding="utf-8"), str(self.recipe_file))
        changed = _differences(earlier.model_dump(mode="json"), recipe.model_dump(mode="json"))
        if changed:
            raise TrainingError(
                f'"{self.path}" holds a run of another recipe, which cannot be continued with this one: '
                + "; ".join(changed)
            )

    def load(self) -> Checkpoint | None:
        """Read the newest readable checkpoint; a damaged one is passed over with a warning.

        Raises:
            TrainingError: if there are checkpoints and none can be read.
        """
        files = self.checkpoints()
        for file in files:
            try:
                data = torch.load(file, map_location="cpu", weights_only=True)
                if data.pop("format") != CHECKPOINT_FORMAT:
                    raise ValueError("written by another version")
                return Checkpoint(**data)
            except Exception as error:  # whatever a damaged archive raises, the one before it may be whole
                problem = (str(error).splitlines() or [type(error).__name__])[0]
                warnings.warn(f'checkpoint "{file}" is damaged and passed over: {problem}', stacklevel=2)
        if files:
            raise TrainingError(
                f'no checkpoint in "{files[0].parent}" can be read; begin again in another --out'
            )
        return None

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, whole or not at all, and remove all but the last two.

        Raises:
            TrainingError: if it cannot be written; earlier checkpoints are untouched.
        """
        file = self.path / "checkpoints" / f"step-{checkpoint.step:09d}.pt"
        data = {"format": CHECKPOINT_FORMAT, **checkpoint._asdict()}
        try:
            write_atomic(file, lambda temporary: torch.save(data, temporary))
            for old in self.checkpoints()[KEEP_CHECKPOINTS:]:
                old.unlink()
        except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
            raise TrainingError(f'checkpoint "{file}" cannot be written: {error}') from None

    def log(self, row: Mapping[str, float | int]) -> None:
        """Append one row to metrics.jsonl; values that are not finite become null."""
        clean = {k: v if math.isfinite(v) else None for k, v in row.items()}
        with self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(clean) + "\n")

    def note_unreadable(self, names: Sequence[str]) -> None:
        """Keep the names of unreadable images in `unreadable.txt` and say when there are new ones."""
        file = self.path / "unreadable.txt"
        known = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        new = [name for name in names if name not in known]
        if new:
            write_text(file, "\n".join([*known, *new]) + "\n")
            warnings.warn(
                f"{len(known) + len(new)} images cannot be read and are replaced, e.g. "
                f'"{new[0]}"; all in {file}',
                stacklevel=2,
            )

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of metrics.jsonl; a last line cut off by a crash is left out."""
        if not self.metrics_file.is_file():
            return []
        lines = self.metrics_file.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    def _drop_rows_after(self, step: int) -> None:
        """Forget rows that the steps after the checkpoint will write again."""
        rows = [row for row in self.rows() if row["step"] <= step]
        write_text(self.metrics_file, "".join(json.dumps(row) + "\n" for row in rows))


def _differences(earlier: Any, now: Any, path: str = "") -> list[str]:
    """List the keys in which two plain recipes differ."""
    if isinstance(earlier, dict) and isinstance(now, dict):
        keys = [*earlier, *(k for k in now if k not in earlier)]
        return [
            line
            for k in keys
            for line in _differences(earlier.get(k), now.get(k), f"{path}.{k}" if path else k)
        ]
    return [] if earlier == now else [f"{path} was {earlier!r}, is {now!r}"]
