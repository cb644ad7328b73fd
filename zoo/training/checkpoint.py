"""The checkpoints of a run: written whole, with a record of size and hash, and verified when read."""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path
from typing import Any, BinaryIO

import torch

from zoo.errors import TrainingError, ZooWarning, first_line
from zoo.files import temporary_files, write_atomic, write_text
from zoo.training.checkpoint_reader import CHECKPOINT_FORMAT, Checkpoint, read_checkpoint, record_of, step_of
from zoo.training.disk import writing
from zoo.training.nested import tensors_in

__all__ = ["Checkpoint", "Checkpoints", "state_bytes"]


class Checkpoints:
    """`step-NNNNNNNNN.pt` files in a folder, each with a record `step-NNNNNNNNN.json` beside it.

    The record is in place before the checkpoint is, so a checkpoint without one was not written here. No
    pickle is read beyond what `torch.load(weights_only=True)` allows, and none before its hash is right.

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
                return read_checkpoint(file)
            except Exception as error:  # whatever a damaged archive raises, the one before it may be whole
                problem = first_line(error)
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
            return read_checkpoint(file)
        except Exception as error:
            problem = first_line(error)
            raise TrainingError(f'checkpoint "{file}" cannot be read: {problem}') from None

    def write(self, checkpoint: Checkpoint, keep: int) -> None:
        """Write a checkpoint, whole or not at all, and remove all but the newest `keep`.

        Raises:
            TrainingError: if it cannot be written; the earlier checkpoints are untouched.
        """
        file = self.file(checkpoint.step)
        data = {"format": CHECKPOINT_FORMAT, **checkpoint._asdict()}

        def write(temporary: Path) -> None:
            record = {"format": CHECKPOINT_FORMAT, "step": checkpoint.step, **_dump(data, temporary)}
            file.unlink(missing_ok=True)  # a damaged one that was passed over: its record is replaced now
            write_text(record_of(file), json.dumps(record) + "\n", parents=False)

        with writing(f'checkpoint "{file}"', self.folder, state_bytes(checkpoint.state)):
            write_atomic(file, write, parents=False)
            files = self.files()
            # later ones were passed over as damaged: this run has come from before them
            later = [old for old in files if (step_of(old) or 0) > checkpoint.step]
            for old in [*later, *files[len(later) + keep :]]:
                old.unlink()
                record_of(old).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove what a killed process left half done; only while the run is locked."""
        for file in temporary_files(self.folder):
            file.unlink(missing_ok=True)
        for record in self.folder.glob("step-*.json"):
            if step_of(record) is not None and not record.with_suffix(".pt").exists():
                record.unlink()


def state_bytes(state: Any) -> int:
    """Return the bytes of all tensors in nested dicts, lists and tuples."""
    return sum(tensor.nbytes for tensor in tensors_in(state))


class _Hashed:
    """A file that keeps the hash and number of the bytes written, and the error that stopped it."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.sha256, self.size = file, hashlib.sha256(), 0
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            count = self.file.write(data)
        except OSError as error:
            self.error = error
            raise
        self.sha256.update(data)
        self.size += len(data)
        return count

    def flush(self) -> None:
        self.file.flush()


def _dump(data: dict[str, Any], file: Path) -> dict[str, Any]:
    """Write `data`; return size and hash of what was meant to reach the disk."""
    with file.open("wb") as raw:
        hashed = _Hashed(raw)
        try:
            torch.save(data, hashed)  # type: ignore[arg-type]  # asks for write and flush alone
        except Exception as error:  # torch hides the disk's own error behind "unexpected pos"
            raise hashed.error or error from None
    return {"size": hashed.size, "sha256": hashed.sha256.hexdigest()}
