"""How a training went: the rows that its run recorded, thinned, as `history.json` of the release.

`{"format": 1, "rows": [R], "columns": {"step": [R], "epoch": [R], NAME: [R]}, "classes": [{...}]}`: `rows` says
of how many recorded rows each one is the mean; null in a column is a value that was not recorded. `classes`
are rows of classes.jsonl, each with `step`, `epoch`, how many `looks` it is of, and lists of C values, or null.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import ConfigDict, Field, ValidationError, model_validator

from zoo.config import Config, is_number
from zoo.errors import is_printable
from zoo.release import format, schema

MOST_ROWS = 400  # more than a figure shows, in 100 kB
MOST_CLASS_ROWS = 8

_Step = Annotated[int, Field(ge=0, lt=1 << 53)]
_Positive = Annotated[int, Field(gt=0)]
_Column = list[float | None]

History = dict[str, Any]


class _ClassRow(Config):
    """A row of classes, whose other keys hold a list with a value for each class, or nothing."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, _Column | None] = Field(init=False)

    step: _Step
    epoch: float
    looks: _Positive
    images: Annotated[list[Annotated[float, Field(ge=0)]], Field(min_length=1)]

    @model_validator(mode="after")
    def _same_length(self) -> _ClassRow:
        if any(
            values is not None and len(values) != len(self.images)
            for values in self.__pydantic_extra__.values()
        ):
            raise ValueError(f"expected {len(self.images)} values in each list, one for each class")
        return self


class _History(Config):
    """The file as a whole."""

    format: Literal[1]
    rows: list[_Positive]
    columns: dict[str, _Column]
    classes: Annotated[list[_ClassRow], Field(max_length=MOST_CLASS_ROWS)]

    @model_validator(mode="after")
    def _same_length(self) -> _History:
        steps = self.columns.get("step", [])
        if not {"step", "epoch"} <= self.columns.keys() or None in steps or not 0 < len(steps) <= MOST_ROWS:
            raise ValueError(f'"columns": expected step and epoch, of 1 to {MOST_ROWS} rows')
        if any(len(values) != len(steps) for values in [self.rows, *self.columns.values()]):
            raise ValueError(f'"columns": expected {len(steps)} values in each and in "rows"')
        return self


def gather(rows: Sequence[Mapping[str, Any]], class_rows: Sequence[Mapping[str, Any]] = ()) -> History | None:
    """Make the history of what a run recorded, or None of nothing.

    Above 400 rows the first and the last stay as they are, and of the others every block of neighbours
    becomes its mean, at the step of its last, as each row is the mean of the steps before it. The classes'
    rows become 8 such blocks of the whole training. Numbers keep six digits.

    Args:
        rows: of metrics.jsonl, in order; rows of one step (a look at the validation part) become one.
        class_rows: of classes.jsonl, in order; damaged ones are left out.
    """
    merged: dict[int, dict[str, Any]] = {}
    for row in rows:
        if isinstance(step := row.get("step"), int):
            merged.setdefault(step, {}).update(row)
    taken = [merged[step] for step in sorted(merged)]
    if not taken:
        return None
    blocks = [[row] for row in taken]
    if len(taken) > MOST_ROWS:
        blocks = [taken[:1], *_blocks(taken[1:-1], MOST_ROWS - 2), taken[-1:]]
    known = {
        name
        for row in taken
        for name, value in row.items()
        if is_printable(name) and _finite(value) is not None
    }
    names = dict.fromkeys(name for row in taken for name in row if name in known)
    columns: dict[str, list[Any]] = {
        "step": [block[-1]["step"] for block in blocks],
        "epoch": [_short(_finite(block[-1].get("epoch"))) for block in blocks],
    }
    for name in (name for name in names if name not in columns):
        columns[name] = [_mean([_finite(row.get(name)) for row in block]) for block in blocks]
    return {
        "format": 1,
        "rows": [len(block) for block in blocks],
        "columns": columns,
        "classes": _class_blocks(class_rows),
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
    if not os.path.lexists(file):
        return None
    history = format.read_json(file)
    schema.check(_History, history, str(file))
    return history


def _blocks(rows: Sequence[Any], count: int) -> list[Sequence[Any]]:
    edges = [round(i * len(rows) / count) for i in range(count + 1)]
    return [rows[a:b] for a, b in pairwise(edges)]


def _class_blocks(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Part the classes' rows into at most `MOST_CLASS_ROWS` blocks, each of which becomes its mean."""
    sound = []
    for row in rows:
        plain = {
            k: [_finite(v) for v in value] if isinstance(value, list) else value for k, value in row.items()
        }
        try:
            _ClassRow.model_validate(plain)
        except ValidationError:
            continue
        sound.append(plain)
    sound = [row for row in sound if len(row["images"]) == len(sound[-1]["images"])]
    return [_class_mean(block) for block in _blocks(sound, min(len(sound), MOST_CLASS_ROWS))] if sound else []


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


def _finite(value: object) -> float | int | None:
    return value if is_number(value) and abs(value) < 1e300 else None  # neither nan nor inf


def _mean(values: Sequence[float | int | None]) -> float | int | None:
    known = [value for value in values if value is not None]
    return _short(math.fsum(known) / len(known) if len(known) > 1 else known[0]) if known else None


def _short(value: float | int | None) -> float | int | None:
    return value if value is None or isinstance(value, int) else float(f"{value:.6g}")


def _plain(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
