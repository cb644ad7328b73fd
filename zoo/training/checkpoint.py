"""The checkpoints of a run: written whole, with a record of size and hash, and verified when read."""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

from zoo.errors import TrainingError
from zoo.files import temporary_files, write_atomic, write_text
from zoo.training.disk import writing

CHECKPOINT_FORMAT = 2


class Checkpoint(NamedTuple):
    """Everything a run needs to go on as if it had never stopped.

    Attributes:
        step: updates done, or skipped.
        seconds: training time so far.
        state: state dicts of objective (encoder, head, teacher, queue, centers), optimizer and loss scaler.
        skipped: numbers of the steps that were left out, counted from 1 as `step` is.
    """

    step: int
    seconds: float
    state: dict[str, dict[str, Any]]
    skipped: tuple[int, ...] = ()


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
        return sorted(self.folder.glob("step-*.pt"), reverse=True)

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
                problem = (str(error).splitlines() or [type(error).__name__])[0]
                warnings.warn(f'checkpoint "{file}" is damaged and passed over: {problem}', stacklevel=2)
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
            problem = (str(error).splitlines() or [type(error).__name__])[0]
            raise TrainingError(f'checkpoint "{file}" cannot be read: {problem}') from None

    def write(self, checkpoint: Checkpoint, keep: int) -> None:
        """Write a checkpoint, whole or not at all, and remove all but the newest `keep`.

        Raises:
            TrainingError: if it cannot be written; the earlier checkpoints are untouched.
        """
        file = self.file(checkpoint.step)
        data = {"format": CHECKPOINT_FORMAT, **checkpoint._asdict(), "skipped": list(checkpoint.skipped)}

        def write(temporary: Path) -> None:
            record = {"format": CHECKPOINT_FORMAT, "step": checkpoint.step, **_dump(data, temporary)}
            file.unlink(missing_ok=True)  # a damaged one that was passed over: its record is replaced now
            write_text(_record(file), json.dumps(record) + "\n", parents=False)

        with writing(f'checkpoint "{file}"', self.folder, state_bytes(checkpoint.state)):
            write_atomic(file, write, parents=False)
            files = self.files()
            # later ones were passed over as damaged: this run has come from before them
            later = [old for old in files if old.name > file.name]
            for old in [*later, *files[len(later) + keep :]]:
                old.unlink()
                _record(old).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove what a killed process left half done; only while the run is locked."""
        for file in temporary_files(self.folder):
            file.unlink(missing_ok=True)
        for record in self.folder.glob("step-*.json"):
            if not record.with_suffix(".pt").exists():
                record.unlink()


def state_bytes(state: Any) -> int:
    """Return the bytes of all tensors in nested dicts, lists and tuples."""
    if isinstance(state, Tensor):
        return state.nbytes
    if isinstance(state, dict):
        return sum(state_bytes(value) for value in state.values())
    return sum(state_bytes(value) for value in state) if isinstance(state, (list, tuple)) else 0


def _record(file: Path) -> Path:
    return file.with_suffix(".json")


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


def _read(file: Path) -> Checkpoint:
    """Read one checkpoint; anything wrong with it is an exception whose first line says what."""
    _verify(file)
    data = torch.load(file, map_location="cpu", weights_only=True)
    if data.pop("format") != CHECKPOINT_FORMAT:
        raise ValueError("written by another version")
    return Checkpoint(**{**data, "skipped": tuple(data["skipped"])})


def _verify(file: Path) -> None:
    """Compare a checkpoint with its record."""
    record_file = _record(file)
    if not record_file.is_file():
        raise ValueError(f"its record {record_file.name} is missing")
    record = json.loads(record_file.read_text(encoding="utf-8"))
    if not isinstance(record, dict) or record.get("format") != CHECKPOINT_FORMAT:
        raise ValueError(f"its record {record_file.name} was written by another version")
    size = file.stat().st_size
    if size != record.get("size"):
        raise ValueError(f"found {size} bytes, expected {record.get('size')}")
    with file.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != record.get("sha256"):
        raise ValueError(f"found sha256 {found[:12]}..., expected {str(record.get('sha256'))[:12]}...")
