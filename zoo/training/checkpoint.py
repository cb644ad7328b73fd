"""A run's checkpoints: written atomically, with a hash that is verified before they are read."""

import json
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch

from zoo.errors import TrainingError, ZooWarning, first_line
from zoo.files import read_json_or_empty, sync, write_atomic, write_text, writing
from zoo.release.format import sha256

CHECKPOINT_FORMAT = 3
_NAME = f"step-{'[0-9]' * 9}"


class Checkpoint(NamedTuple):
    """Everything a run needs to continue as if uninterrupted, after `step` updates that took `seconds`.

    `state` has the states of objective, optimizer, EMA and early stopping; `written` is a Unix time.
    """

    step: int
    seconds: float
    state: dict[str, dict[str, Any]]
    written: float


def list_checkpoints(folder: Path) -> dict[int, Path]:
    """Return the checkpoint files in a folder by step, newest first."""
    return {int(file.stem[5:]): file for file in sorted(folder.glob(f"{_NAME}.pt"), reverse=True)}


def write(folder: Path, checkpoint: Checkpoint, keep: int) -> None:
    """Write `step-NNNNNNNNN.pt`, with its SHA-256 beside it; then remove all but the newest `keep`.

    TrainingError if it cannot be written; other checkpoints are then untouched.
    """
    file = folder / f"step-{checkpoint.step:09d}.pt"

    def write(temporary: Path) -> None:
        with temporary.open("wb") as opened:
            torch.save({"format": CHECKPOINT_FORMAT, **checkpoint._asdict()}, opened)
        sync(temporary)
        file.unlink(missing_ok=True)  # a damaged one that was skipped; the new hash comes before the file
        write_text(file.with_suffix(".json"), json.dumps({"sha256": sha256(temporary)}))

    try:
        with writing(f'checkpoint "{file}"', TrainingError):
            write_atomic(file, write)
    except RuntimeError as error:  # torch's own, where a disk is full
        raise TrainingError(f'checkpoint "{file}" cannot be written: {first_line(error)[:200]}') from None
    # later ones were skipped as damaged: this run resumed from before them
    steps = [step for step in list_checkpoints(folder) if step <= checkpoint.step][:keep]
    for old in folder.glob(f"{_NAME}.*"):  # hashes without a checkpoint too
        if int(old.stem[5:]) not in steps:
            old.unlink()


def read(file: Path) -> Checkpoint:
    """Read a checkpoint with `weights_only`, so that no pickle runs code; TrainingError if it is damaged."""
    try:
        expected, found = read_json_or_empty(file.with_suffix(".json")).get("sha256"), sha256(file)
        if found != expected:
            raise ValueError(f"found sha256 {found[:12]}..., its record has {str(expected)[:12]}")
        data = torch.load(file, map_location="cpu", weights_only=True)
        if data.pop("format") != CHECKPOINT_FORMAT or data["step"] != int(file.stem[5:]):
            raise ValueError("it was written by another version, or for another step")
        return Checkpoint(**data)
    except Exception as error:  # whatever a damaged archive raises
        raise TrainingError(f'checkpoint "{file}" cannot be read: {first_line(error)[:200]}') from None


def newest(folder: Path) -> Checkpoint | None:
    """Read the newest intact checkpoint in a folder; damaged ones are skipped with a warning."""
    for file in list_checkpoints(folder).values():
        try:
            return read(file)
        except TrainingError as error:
            warnings.warn(f"{error}; skipped as damaged", ZooWarning, stacklevel=2)
    if list_checkpoints(folder):
        raise TrainingError(f'no checkpoint in "{folder}" can be read; begin again in another --out')
    return None
