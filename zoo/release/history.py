"""How a training went: the rows that its run recorded, thinned, as `history.json` of the release.

`{"format": 1, "rows": [R], "columns": {"step": [R], "epoch": [R], NAME: [R]}, "classes": [{...}]}`: `rows`
says of how many recorded rows each one is the mean; null in a column is a value that was not recorded.
`classes` are rows of classes.jsonl: `step`, `epoch`, how many `looks` it is of, lists of C values, or null.
"""

from __future__ import annotations

import json
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
        merged.setdefault(row["step"], {}).update(row)
    taken = [merged[step] for step in sorted(merged)]
    if not taken:
        return None
    blocks: list[Sequence[Any]] = [[row] for row in taken]
    if len(taken) > MOST_ROWS:
        blocks = [taken[:1], *_blocks(taken[1:-1], MOST_ROWS - 2), taken[-1:]]
    columns: dict[str, list[Any]] = {
        "step": [block[-1]["step"] for block in blocks],
        "epoch": [_short(block[-1]["epoch"]) for block in blocks],
    }
    for name in dict.fromkeys(name for row in taken for name in row if is_printable(name)):
        values = [_mean([row.get(name) for row in block]) for block in blocks]
        if name not in columns and any(value is not None for value in values):
            columns[name] = values
    classes = len(class_rows[-1]["images"]) if class_rows else 0
    known = [row for row in class_rows if len(row["images"]) == classes]
    return {
        "format": 1,
        "rows": [len(block) for block in blocks],
        "columns": columns,
        "classes": [_class_mean(block) for block in _blocks(known, min(len(known), MOST_CLASS_ROWS))],
    }


def rows_of(history: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a history as metrics.jsonl has them; what was not recorded is left out."""
    columns = history["columns"]
    rows = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def to_json(history: Mapping[str, Any]) -> str:
    """Return a history as its file holds it, a line for each column and each row of classes."""
    columns = ",\n".join(f"    {_plain(name)}: {_plain(v)}" for name, v in history["columns"].items())
    classes = ",\n".join(f"    {_plain(row)}" for row in history["classes"])
    parts = [
        '"format": 1',
        f'"rows": {_plain(history["rows"])}',
        f'"columns": {{\n{columns}\n  }}',
        f'"classes": [\n{classes}\n  ]',
    ]
    return "{\n  " + ",\n  ".join(parts) + "\n}\n"


def read(folder: Path) -> History | None:
    """Read and check `history.json` of the release in `folder`; None where there is none.

    Raises:
        ReleaseError: naming what in it `gather` does not make.
    """
    file = folder / format.HISTORY
    if not file.exists():
        return None
    history = format.read_json(file)
    schema.check(schema.History, history, str(file))
    columns, rows = history["columns"], history["rows"]
    if not {"step", "epoch"} <= columns.keys() or any(
        len(values) != len(rows) for values in columns.values()
    ):
        raise ReleaseError(f"{file}: columns: expected step, epoch and others, {len(rows)} values in each")
    return history


def _blocks(rows: Sequence[Any], count: int) -> list[Sequence[Any]]:
    """Part rows into blocks of neighbours, as even as can be."""
    edges = [round(i * len(rows) / count) for i in range(count + 1)] if count else []
    return [rows[a:b] for a, b in pairwise(edges)]


def _class_mean(block: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return several rows of classes as one.

    As where the rows are read (`class_means` of a report), a value counts by what it is a mean of: a class's
    images for `feature_gradient`, else the looks.
    """
    images = np.array([row["images"] for row in block], dtype=float)
    looks = np.array([[row["looks"]] for row in block], dtype=float)
    mean: dict[str, Any] = {name: block[-1][name] for name in ("step", "epoch")}
    mean["looks"] = sum(row["looks"] for row in block)
    mean["images"] = [sum(of_class) for of_class in zip(*(row["images"] for row in block), strict=True)]
    for name in dict.fromkeys(name for row in block for name in row if name not in mean):
        lists = [row.get(name) or [None] * images.shape[1] for row in block]
        values = np.array(lists, dtype=float)  # None is NaN
        weights = np.where(np.isfinite(values), images if name == "feature_gradient" else looks, 0)
        total, sums = weights.sum(axis=0), (np.nan_to_num(values) * weights).sum(axis=0)
        means = [_short(float(s / n)) if n else None for s, n in zip(sums, total, strict=True)]
        mean[name] = None if all(row.get(name) is None for row in block) else means
    return mean


def _mean(values: Sequence[object]) -> float | int | None:
    """Return the mean of those values that are finite numbers, None where there are none."""
    known = [value for value in values if is_number(value) and math.isfinite(value)]
    return _short(math.fsum(known) / len(known) if len(known) > 1 else known[0]) if known else None


def _short(value: float | int) -> float | int:
    return value if isinstance(value, int) else float(f"{value:.6g}")


def _plain(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
