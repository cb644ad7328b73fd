"""How a training went: the rows that its run recorded, thinned, as `history.json` of the release."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from zoo.config import is_number, plain_kind
from zoo.errors import ReleaseError
from zoo.release import format, schema

FORMAT = 1
MOST_ROWS = 400  # more than a figure shows, in 100 kB
MOST_CLASS_ROWS = 8
MOST_CLASSES = 10_000
_STEPS = 1 << 53
_LONGEST_NAME = 200
_AT = ("step", "epoch")
_OF_ROW = (*_AT, "looks")  # of a row of classes; everything else is a list
_KEYS = ("format", "rows", "columns", "classes")

History = dict[str, Any]
"""`{"format": 1, "rows": [R], "columns": {"step": [R], "epoch": [R], NAME: [R]}, "classes": [{...}]}`.

`rows` says of how many recorded rows each one is the mean; null in a column is a value that was not recorded.
`classes` are rows of classes.jsonl, each with `step`, `epoch`, how many `looks` it is of, and lists of C
values, or null for a list.
"""


def gather(rows: Sequence[Mapping[str, Any]], class_rows: Sequence[Mapping[str, Any]] = ()) -> History | None:
    """Make the history of what a run recorded, or None of nothing.

    Above 400 rows the first and the last stay as they are, and of the others every block of neighbours
    becomes its mean, at the step of its last, as each row is the mean of the steps before it. The classes'
    rows become 8 such blocks of the whole training. Numbers keep six digits.

    Args:
        rows: of metrics.jsonl, in order; rows of one step (a look at the validation part) become one.
        class_rows: of classes.jsonl, in order.
    """
    merged: dict[int, dict[str, Any]] = {}
    for row in rows:
        if _is_step(row.get("step")):
            merged.setdefault(row["step"], {}).update(row)
    taken = [merged[step] for step in sorted(merged)]
    if not taken:
        return None
    blocks = _blocks(taken)
    names = dict.fromkeys(name for row in taken for name, value in row.items() if _is_value(name, value))
    columns: dict[str, list[Any]] = {
        "step": [block[-1]["step"] for block in blocks],
        "epoch": [_short(_number(block[-1].get("epoch"))) for block in blocks],
    }
    for name in names:
        if name not in columns:
            columns[name] = [_mean([_number(row.get(name)) for row in block]) for block in blocks]
    return {
        "format": FORMAT,
        "rows": [len(block) for block in blocks],
        "columns": columns,
        "classes": _class_blocks(class_rows),
    }


def rows_of(history: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a history as metrics.jsonl has them; what was not recorded is left out."""
    columns = history["columns"]
    return [
        {name: values[i] for name, values in columns.items() if values[i] is not None}
        for i in range(len(columns["step"]))
    ]


def to_json(history: Mapping[str, Any]) -> str:
    """Return a history as its file holds it, a line for each column and each row of classes."""
    columns = ",\n".join(f"    {_plain(name)}: {_plain(v)}" for name, v in history["columns"].items())
    classes = ",\n".join(f"    {_plain(row)}" for row in history["classes"])
    parts = [
        f'"format": {FORMAT}',
        f'"rows": {_plain(history["rows"])}',
        f'"columns": {{\n{columns}\n  }}',
        f'"classes": [\n{classes}\n  ]',
    ]
    return "{\n  " + ",\n  ".join(parts) + "\n}\n"


def is_in(folder: Path) -> bool:
    """Whether the release in `folder` has a history, whole or not."""
    return os.path.lexists(folder / format.HISTORY)


def read(folder: Path) -> History | None:
    """Read and check `history.json` of the release in `folder`; None where there is none.

    Raises:
        ReleaseError: naming what in it `gather` does not make.
    """
    if not is_in(folder):
        return None
    file = folder / format.HISTORY
    history = format.read_json(file)
    check(history, str(file))
    return history


def check(history: Mapping[str, Any], where: str) -> None:
    """Make sure that `history` is one that `gather` could have made.

    Raises:
        ReleaseError: beginning with `where`, and naming what was found and what was expected.
    """
    if (found := history.get("format")) != FORMAT:
        raise ReleaseError(
            f'{where}: "format": found {str(found)[:40]!r}, this version of zoo reads {FORMAT}'
        )
    if unknown := [key for key in history if key not in _KEYS]:
        raise ReleaseError(f"{where}: unknown key {unknown[0][:40]!r}; expected {', '.join(_KEYS)}")
    columns = history.get("columns")
    if not isinstance(columns, dict) or not all(isinstance(v, list) for v in columns.values()):
        raise ReleaseError(
            f'{where}: "columns": found {plain_kind(columns)}, expected lists of numbers by name'
        )
    if absent := [name for name in _AT if name not in columns]:
        raise ReleaseError(f'{where}: "columns": {absent[0]} is missing')
    size = len(columns["step"])
    if not 0 < size <= MOST_ROWS:
        raise ReleaseError(f'{where}: "columns.step": found {size} rows, expected 1 to {MOST_ROWS}')
    for name, values in columns.items():
        _check_list(values, size, f'{where}: "columns.{name[:60]}"')
    steps = columns["step"]
    if not all(map(_is_step, steps)) or sorted(set(steps)) != steps:
        raise ReleaseError(f'{where}: "columns.step": expected whole numbers, each above the one before')
    _check_list(history.get("rows"), size, f'{where}: "rows"')
    if not all(_is_step(value) and value > 0 for value in history["rows"]):
        raise ReleaseError(f'{where}: "rows": expected how many rows each is the mean of, 1 or more')
    classes = history.get("classes")
    if not isinstance(classes, list) or len(classes) > MOST_CLASS_ROWS:
        raise ReleaseError(
            f'{where}: "classes": found {plain_kind(classes)}, expected at most {MOST_CLASS_ROWS} rows'
        )
    for i, row in enumerate(classes):
        _check_class_row(row, f'{where}: "classes.{i}"')
    schema.check_words(columns.fromkeys(columns), where)  # the names: the values are numbers


def _is_class_row(row: Mapping[str, Any]) -> bool:
    """Whether it can be read again; the run's own file lies in the open, and may say anything."""
    try:
        _check_class_row(row, "")
    except ReleaseError:
        return False
    return True


def _check_class_row(row: object, where: str) -> None:
    if not isinstance(row, dict) or not _is_step(row.get("step")) or not _is_number(row.get("epoch")):
        raise ReleaseError(f"{where}: expected a section with a step, an epoch and lists by name")
    if not (_is_step(row.get("looks")) and row["looks"] > 0):
        raise ReleaseError(f'{where}: "looks": found {str(row.get("looks"))[:40]!r}, expected 1 or more')
    images = row.get("images")
    size = len(images) if isinstance(images, list) else 0
    if not 0 < size <= MOST_CLASSES:
        raise ReleaseError(f'{where}: "images": found {plain_kind(images)}, expected a list of numbers')
    for name, values in row.items():
        if name not in _OF_ROW and values is not None:
            _check_list(values, size, f'{where}: "{name[:60]}"')
    if not all(_is_number(value) and value >= 0 for value in images):  # type: ignore[union-attr]
        raise ReleaseError(f'{where}: "images": expected numbers of images')
    schema.check_words(dict.fromkeys(row), where)


def _check_list(values: object, size: int, where: str) -> None:
    if not isinstance(values, list):
        raise ReleaseError(f"{where}: found {plain_kind(values)}, expected a list")
    if len(values) != size:
        raise ReleaseError(
            f"{where}: found {len(values)} values, expected {size}, one for each step or class"
        )
    for value in values:
        if value is not None and not _is_number(value):
            raise ReleaseError(f"{where}: found {str(value)[:40]!r}, expected a finite number or null")


def _blocks(rows: Sequence[Mapping[str, Any]]) -> list[Sequence[Mapping[str, Any]]]:
    """Part the rows into at most `MOST_ROWS` blocks of neighbours; the first and last row stand alone."""
    if len(rows) <= MOST_ROWS:
        return [[row] for row in rows]
    inner, parts = rows[1:-1], MOST_ROWS - 2
    edges = [round(i * len(inner) / parts) for i in range(parts + 1)]
    return [rows[:1], *(inner[a:b] for a, b in pairwise(edges)), rows[-1:]]


def _class_blocks(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Part the classes' rows into at most `MOST_CLASS_ROWS` blocks, each of which becomes its mean."""
    rows = [row for row in map(_plain_row, rows) if _is_class_row(row)]
    rows = [row for row in rows if len(row["images"]) == len(rows[-1]["images"])]
    parts = min(len(rows), MOST_CLASS_ROWS)
    edges = [round(i * len(rows) / parts) for i in range(parts + 1)] if parts else []
    return [_class_mean(rows[a:b]) for a, b in pairwise(edges)]


def _class_mean(block: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return several rows of classes as one.

    As where the rows are read (`class_means` of a report), a value counts by what it is a mean of: a class's
    images for `feature_gradient`, else the looks.
    """
    if len(block) == 1:
        return {
            name: [_short(each) for each in value] if isinstance(value, list) else value
            for name, value in block[0].items()
        }
    images = np.array([row["images"] for row in block], dtype=float)
    looks = np.array([[row["looks"]] for row in block], dtype=float)
    mean: dict[str, Any] = {name: block[-1][name] for name in _AT}
    mean["looks"] = sum(row["looks"] for row in block)
    mean["images"] = [sum(of_class) for of_class in zip(*(row["images"] for row in block), strict=True)]
    for name in dict.fromkeys(name for row in block for name in row if name not in (*_OF_ROW, "images")):
        lists = [row.get(name) or [None] * images.shape[1] for row in block]
        values = np.array(lists, dtype=float)  # None is NaN
        weights = np.where(np.isfinite(values), images if name == "feature_gradient" else looks, 0)
        total = weights.sum(axis=0)
        sums = (np.nan_to_num(values) * weights).sum(axis=0)
        means = [_short(float(s / n)) if n else None for s, n in zip(sums, total, strict=True)]
        mean[name] = None if all(row.get(name) is None for row in block) else means
    return mean


def _plain_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: [_number(v) for v in value] if isinstance(value, list | tuple) else value
        for name, value in row.items()
    }


def _number(value: object) -> float | int | None:
    return value if _is_number(value) else None  # type: ignore[return-value]


def _is_number(value: object) -> bool:
    return is_number(value) and abs(value) < 1e300 and math.isfinite(value)


def _is_step(value: object) -> bool:
    return type(value) is int and 0 <= value < _STEPS


def _is_value(name: object, value: object) -> bool:
    return isinstance(name, str) and name.isprintable() and len(name) <= _LONGEST_NAME and _is_number(value)


def _mean(values: Sequence[float | int | None]) -> float | int | None:
    known = [value for value in values if value is not None]
    return _short(math.fsum(known) / len(known) if len(known) > 1 else known[0]) if known else None


def _short(value: float | int | None) -> float | int | None:
    return value if value is None or isinstance(value, int) else float(f"{value:.6g}")


def _plain(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
