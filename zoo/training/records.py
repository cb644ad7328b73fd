"""Reads the records of a run: files of JSON lines that a crash may have cut off anywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from zoo.errors import TrainingError
from zoo.files import read_text

LARGEST = 256 << 20  # bytes: a million rows of metrics
_STEPS = 1 << 53  # more than there can be


def json_lines(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a file that have a step; what is no row is left out."""
    return [row for row in objects(file) if type(row.get("step")) is int and 0 <= row["step"] < _STEPS]


def objects(file: Path) -> list[dict[str, Any]]:
    """Return the JSON objects of a file, one a line; what is none, cut off by a crash say, is left out."""
    found = []
    for line in lines(file):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            found.append(value)
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
