"""Reads the records of a run: files of JSON lines that a crash may have cut off anywhere."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from zoo.errors import TrainingError, ZooWarning
from zoo.files import read_text

LARGEST = 256 << 20  # bytes: a million rows of metrics
_STEPS = 1 << 53  # more than there can be


def json_lines(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a file that have a step; what is no row is left out."""
    return [row for row in objects(file) if type(row.get("step")) is int and 0 <= row["step"] < _STEPS]


def objects(file: Path, *, warn: bool = True) -> list[dict[str, Any]]:
    """Return the JSON objects of a file, one a line.

    A last line that was cut off by a crash is left out; so is any other that is no object, with a warning.

    Args:
        file: that may be missing.
        warn: False for one that is appended to after a crash, so that what was cut off may be anywhere.
    """
    found, texts, damaged = list[dict[str, Any]](), lines(file), list[int]()
    for number, line in enumerate(texts, 1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            found.append(value)
        elif number < len(texts):
            damaged.append(number)
    if damaged and warn:
        warnings.warn(
            f'"{file}" is damaged: {len(damaged)} of {len(texts)} lines are no rows and are left '
            f"out, the first line {damaged[0]}",
            ZooWarning,
            stacklevel=2,
        )
    return found


def lines(file: Path) -> list[str]:
    """Return the lines of a file of the run; none if it is not there.

    Raises:
        TrainingError: for what is no file, cannot be read, or is larger than a run makes it.
    """
    if not file.exists():
        return []
    try:
        return read_text(file, LARGEST, errors="replace").splitlines()
    except OSError as error:
        raise TrainingError(f'"{file}" cannot be read: {error}') from None
