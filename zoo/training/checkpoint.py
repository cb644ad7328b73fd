"""Checkpoints of a run: written whole or not at all, with a hash that is compared before they are read."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch

from zoo.errors import TrainingError, ZooWarning, first_line
from zoo.files import read_object, sync, temporary_files, write_atomic, write_text, writing

CHECKPOINT_FORMAT = 2
_NAME = re.compile(r"step-(\d{9,18})\.(?:pt|json)")


class Checkpoint(NamedTuple):
    """Everything a run needs to go on as if it had never stopped.

    Attributes:
        step: updates done.
        seconds: training time so far.
        state: state dicts of objective (encoder, head, teacher, queue, centers), optimizer and loss scaler;
            with them the moving average of the weights and the best state, where there are.
        written: when, in seconds since 1970.
    """

    step: int
    seconds: float
    state: dict[str, dict[str, Any]]
    written: float


def step_of(file: Path) -> int | None:
    """Return the step that a checkpoint's or record's name says; None for a file that is neither."""
    found = _NAME.fullmatch(file.name)
    return int(found[1]) if found else None


class Checkpoints:
    """`step-NNNNNNNNN.pt` files in a folder, each with its SHA-256 in `step-NNNNNNNNN.json` beside it.

    The record is in place before the checkpoint is, so a checkpoint without one is not complete.

    Args:
        folder: need not exist until something is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def files(self) -> list[Path]:
        """Return the checkpoint files, newest first."""
        found = [file for file in self.folder.glob("step-*.pt") if step_of(file) is not None]
        return sorted(found, key=lambda file: step_of(file) or 0, reverse=True)

    def file(self, step: int) -> Path:
        """Return where the checkpoint of a step lies."""
        return self.folder / f"step-{step:09d}.pt"

    def newest(self) -> Checkpoint | None:
        """Read the newest good checkpoint; a damaged one is passed over with a warning.

        Raises:
            TrainingError: if there are checkpoints and none can be read.
        """
        files = self.files()
        for file in files:
            try:
                return _read(file)
            except Exception as error:  # whatever a damaged archive raises, the one before it may be whole
                problem = first_line(error)[:200]
                warnings.warn(
                    f'checkpoint "{file}" is damaged and passed over: {problem}', ZooWarning, stacklevel=2
                )
        if files:
            raise TrainingError(f'no checkpoint in "{self.folder}" can be read; begin again in another --out')
        return None

    def read(self, step: int) -> Checkpoint:
        """Read the checkpoint of one step.

        Raises:
            TrainingError: if it cannot be read.
        """
        file = self.file(step)
        try:
            return _read(file)
        except Exception as error:
            problem = first_line(error)[:200]
            raise TrainingError(f'checkpoint "{file}" cannot be read: {problem}') from None

    def write(self, checkpoint: Checkpoint, keep: int) -> None:
        """Write a checkpoint, whole or not at all, and remove all but the newest `keep`.

        Raises:
            TrainingError: if it cannot be written; the earlier checkpoints are untouched.
        """
        file = self.file(checkpoint.step)

        def write(temporary: Path) -> None:
            with temporary.open("wb") as opened:
                torch.save({"format": CHECKPOINT_FORMAT, **checkpoint._asdict()}, opened)
            sync(temporary)
            file.unlink(missing_ok=True)  # a damaged one that was passed over: its record is replaced now
            record = {"format": CHECKPOINT_FORMAT, "step": checkpoint.step, "sha256": _sha256(temporary)}
            write_text(file.with_suffix(".json"), json.dumps(record) + "\n", parents=False)

        try:
            with writing(f'checkpoint "{file}"', TrainingError):
                write_atomic(file, write, parents=False)
        except RuntimeError as error:  # torch's own, where a disk is full
            raise TrainingError(f'checkpoint "{file}" cannot be written: {first_line(error)[:200]}') from None
        files = self.files()
        # later ones were passed over as damaged: this run has come from before them
        later = [old for old in files if (step_of(old) or 0) > checkpoint.step]
        for old in [*later, *files[len(later) + keep :]]:
            old.unlink()
            old.with_suffix(".json").unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove what a killed process left half done; only while the run is locked."""
        for file in temporary_files(self.folder):
            file.unlink(missing_ok=True)
        for record in self.folder.glob("step-*.json"):
            if step_of(record) is not None and not record.with_suffix(".pt").exists():
                record.unlink()


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _read(file: Path) -> Checkpoint:
    """Read one checkpoint whose hash is right; `weights_only` lets no pickle in it run code."""
    expected, found = read_object(file.with_suffix(".json")).get("sha256"), _sha256(file)
    if found != expected:
        raise ValueError(f"found sha256 {found[:12]}..., its record has {str(expected)[:12]}")
    data = torch.load(file, map_location="cpu", weights_only=True)
    if data.pop("format") != CHECKPOINT_FORMAT or data["step"] != step_of(file):
        raise ValueError("it was written by another version, or for another step")
    return Checkpoint(**data)
