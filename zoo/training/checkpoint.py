"""A run's checkpoints: written whole or not at all, with a hash that is compared before they are read."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch

from zoo.errors import TrainingError, first_line
from zoo.files import read_object, sync, write_atomic, write_text, writing

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


def file_of(folder: Path, step: int) -> Path:
    """Return the place of the checkpoint of a step, `step-NNNNNNNNN.pt`."""
    return folder / f"step-{step:09d}.pt"


def write(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, and its SHA-256 into `step-NNNNNNNNN.json` beside it.

    The record is in place before the checkpoint is, so a checkpoint without one is not complete.

    Raises:
        TrainingError: if it cannot be written; other checkpoints are untouched.
    """
    file = file_of(folder, checkpoint.step)

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


def read(file: Path) -> Checkpoint:
    """Read a checkpoint whose hash is right; `weights_only` lets no pickle in it run code.

    Raises:
        TrainingError: if it is damaged, or of another format or step.
    """
    try:
        expected, found = read_object(file.with_suffix(".json")).get("sha256"), _sha256(file)
        if found != expected:
            raise ValueError(f"found sha256 {found[:12]}..., its record has {str(expected)[:12]}")
        data = torch.load(file, map_location="cpu", weights_only=True)
        if data.pop("format") != CHECKPOINT_FORMAT or data["step"] != step_of(file):
            raise ValueError("it was written by another version, or for another step")
        return Checkpoint(**data)
    except Exception as error:  # whatever a damaged archive raises
        raise TrainingError(f'checkpoint "{file}" cannot be read: {first_line(error)[:200]}') from None


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
