"""How a training went: the rows that its run recorded, thinned, as `history.json` of the release.

`{"format": 1, "rows": [R], "columns": {"step": [R], "epoch": [R], NAME: [R]}, "classes": [{...}]}`: `rows`
says of how many recorded rows each one is the mean; null in a column is a value that was not recorded.
`classes` are rows of classes.jsonl: `step`, `epoch`, how many `looks` it is of, lists of C values, or null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from zoo.config import is_number
from zoo.errors import ReleaseError, is_printable
from zoo.release import format, schema

MOST_ROWS = 400  # more than a figure shows, in 100 kB
MOST_CLASS_ROWS = 8

History = dict[str, Any]


def gather(rows: Sequence[Mapping[str, Any]], class_rows: Sequence[Mapping[str, Any]] = ()) -> History | None:
    """Make the history of `rows` of metrics.jsonl and `class_rows` of classes.jsonl; None if there are none.

    Above 400 rows the first and the last stay as they are, and of the others every block of neighbours
    becomes its mean, at the step of its last, as each row is the mean of the steps before it. The classes'
    rows become 8 such blocks of the whole training. Numbers keep six digits.
    """
    merged: dict[int, dict[str, Any]] = {}
    for row in rows:
        merged.setdefault(row["step"], {}).update(row)
    taken = [merged[step] for step in sorted(merged)]
    if not taken:
        return None
    blocks: list[Sequence[Any]] = [[row] for row in taken]
    if len(taken) > MOST_ROWS:
        blocks = [taken[:1], *_blocks(taken[1:-1], MOST_ROWS - 2), taken[-1:]]
    names = dict.fromkeys(["step", "epoch", *(name for row in taken for name in row if is_printable(name))])
    columns = {name: [_mean(block, name) for block in blocks] for name in names}
    classes = len(class_rows[-1]["images"]) if class_rows else 0
    known = [row for row in class_rows if len(row["images"]) == classes]
    return {
        "format": 1,
        "rows": [len(block) for block in blocks],
        "columns": {name: values for name, values in columns.items() if any(v is not None for v in values)},
        "classes": [_class_mean(block) for block in _blocks(known, min(len(known), MOST_CLASS_ROWS))],
    }


def rows_of(history: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a history as metrics.jsonl has them; what was not recorded is left out."""
    columns = history["columns"]
    rows = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def read(folder: Path) -> History | None:
    """Read `history.json` in `folder`, None if there is none; a `ReleaseError` names the wrong key."""
    file = folder / format.HISTORY
    if not file.exists():
        return None
    history = format.read_json(file)
    schema.check(schema.History, history, str(file))
    columns, rows = history["columns"], len(history["rows"])
    if not {"step", "epoch"} <= columns.keys() or {len(values) for values in columns.values()} != {rows}:
        raise ReleaseError(f"{file}: columns: expected step, epoch and others, {rows} values in each")
    return history


def _blocks(rows: Sequence[Any], count: int) -> list[Sequence[Any]]:
    """Split rows into blocks of neighbours of about equal size."""
    edges = [round(i * len(rows) / count) for i in range(count + 1)] if count else []
    return [rows[a:b] for a, b in pairwise(edges)]


def _mean(block: Sequence[Mapping[str, Any]], name: str) -> float | int | None:
    """Return the mean of a column's finite numbers in a block of rows; of step and epoch the last."""
    values = [row.get(name) for row in (block[-1:] if name in ("step", "epoch") else block)]
    known = [value for value in values if is_number(value) and math.isfinite(value)]
    return _short(math.fsum(known) / len(known) if len(known) > 1 else known[0]) if known else None


def _class_mean(block: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean of rows of classes, each value weighted by what it is a mean of: images, or looks."""
    images = np.array([row["images"] for row in block], dtype=float)
    looks = np.array([[row["looks"]] for row in block], dtype=float)
    mean: dict[str, Any] = {name: block[-1][name] for name in ("step", "epoch")}
    mean |= {"looks": int(looks.sum()), "images": [int(count) for count in images.sum(axis=0)]}
    for name in dict.fromkeys(name for row in block for name in row if name not in mean):
        values = np.array([row.get(name) or [None] * images.shape[1] for row in block], dtype=float)
        weights = np.where(np.isfinite(values), images if name == "feature_gradient" else looks, 0)
        total, sums = weights.sum(axis=0), (np.nan_to_num(values) * weights).sum(axis=0)
        means = [_short(float(s / n)) if n else None for s, n in zip(sums, total, strict=True)]
        mean[name] = None if all(row.get(name) is None for row in block) else means
    return mean


def _short(value: float | int) -> float | int:
    return value if isinstance(value, int) else float(f"{value:.6g}")
