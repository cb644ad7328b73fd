"""Reading a checkpoint: nothing in it is believed before its record is right, and no code of it runs."""

from __future__ import annotations

import hashlib
import json
import math
import re
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zoo.files import read_text
from zoo.torch_files import check_archive

CHECKPOINT_FORMAT = 2

_NAME = re.compile(r"step-(\d{9,18})\.(?:pt|json)")
_LARGEST_RECORD = 1 << 16  # bytes
_LATEST = 253_402_300_800.0  # the year 10000, which no date of Python's reaches
_MOST_ITEMS = 1_000_000  # of a state: a few for each tensor of the largest models


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


def record_of(file: Path) -> Path:
    """Return where the record of a checkpoint lies."""
    return file.with_suffix(".json")


def read_checkpoint(file: Path) -> Checkpoint:
    """Read one checkpoint.

    Raises:
        Exception: of any kind, if anything is wrong with it; its first line says what.
    """
    _verify(file)
    if not zipfile.is_zipfile(file):
        raise ValueError("found no archive of torch.save")
    check_archive(file)
    try:
        data = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # whose text may be pages, about unpickling
        first = (str(error).splitlines() or [""])[0][:200]
        raise ValueError(f"torch cannot read it ({type(error).__name__}: {first})") from None
    return _checked(data, file)


def _verify(file: Path) -> None:
    """Compare a checkpoint with its record."""
    record_file = record_of(file)
    if not record_file.is_file():
        raise ValueError(f"its record {record_file.name} is missing")
    record = json.loads(read_text(record_file, _LARGEST_RECORD))
    if not isinstance(record, dict) or record.get("format") != CHECKPOINT_FORMAT:
        raise ValueError(f"its record {record_file.name} was written by another version")
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):  # reading a pipe never ends
        raise ValueError("found no regular file")
    if status.st_size != record.get("size"):
        raise ValueError(f"found {status.st_size} bytes, expected {str(record.get('size'))[:40]}")
    with file.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != record.get("sha256"):
        raise ValueError(f"found sha256 {found[:12]}..., expected {str(record.get('sha256'))[:12]}...")


def _checked(data: Any, file: Path) -> Checkpoint:
    """Return what an archive holds, if it is the checkpoint that its name says."""
    if not isinstance(data, dict) or data.get("format") != CHECKPOINT_FORMAT:
        raise ValueError("written by another version")
    step, seconds, state = (data.get(key) for key in ("step", "seconds", "state"))
    written = data.get("written")
    if type(step) is not int or step != step_of(file):
        raise ValueError(f"it is of step {str(step)[:40]}, which its name does not say")
    if not isinstance(seconds, (int, float)) or not 0 <= seconds < math.inf:
        raise ValueError("its seconds are no number of seconds")
    if not isinstance(written, float) or not 0 <= written < _LATEST:
        raise ValueError("when it was written is no time")
    if not isinstance(state, dict) or not all(isinstance(part, dict) for part in state.values()):
        raise ValueError("its state is no state of a training")
    _check_tensors(state)
    return Checkpoint(step, float(seconds), state, written)


def _check_tensors(state: object) -> None:
    """Refuse tensors that stand for more than the file holds, and one dict 2**60 times in others."""
    waiting, seen = [state], 0
    while waiting:
        item = waiting.pop()
        seen += 1
        if seen > _MOST_ITEMS:
            raise ValueError(f"its state has more than {_MOST_ITEMS:,} items")
        if isinstance(item, Tensor):
            plain = item.layout == torch.strided and not (item.is_nested or item.is_quantized or item.is_meta)
            if not plain or item.nbytes > item.untyped_storage().nbytes():
                raise ValueError("one of its tensors is not what a training saves")
        elif isinstance(item, Mapping):
            waiting.extend(item.values())
        elif isinstance(item, (list, tuple)):
            waiting.extend(item)
