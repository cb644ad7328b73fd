"""How a training went: the rows that its run recorded, thinned, as `history.json` of the release."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import ConfigDict, Field, model_validator

from zoo.config import Config, is_number, parse
from zoo.errors import ReleaseError, is_printable
from zoo.release import format, schema

FORMAT = 1
MOST_ROWS = 400  # more than a figure shows, in 100 kB
MOST_CLASS_ROWS = 8
_AT = ("step", "epoch")

_Step = Annotated[int, Field(ge=0, lt=1 << 53)]
_Positive = Annotated[int, Field(gt=0)]
_Column = list[float | None]

History = dict[str, Any]
"""`{"format": 1, "rows": [R], "columns": {"step": [R], "epoch": [R], NAME: [R]}, "classes": [{...}]}`.

`rows` says of how many recorded rows each one is the mean; null in a column is a value that was not recorded.
`classes` are rows of classes.jsonl, each with `step`, `epoch`, how many `looks` it is of, and lists of C
values, or null for a list.
"""


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
        for name, values in self.__pydantic_extra__.items():
            if values is not None and len(values) != len(self.images):
                raise ValueError(f'"{name}": found {len(values)} values, expected {len(self.images)}')
        return self


class _Columns(Config):
    """A list with a value for each row."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, _Column] = Field(init=False)

    step: Annotated[list[_Step], Field(min_length=1, max_length=MOST_ROWS)]
    epoch: _Column


class _History(Config):
    """The file as a whole."""

    format: Literal[1]
    rows: list[_Positive]
    columns: _Columns
    classes: Annotated[list[_ClassRow], Field(max_length=MOST_CLASS_ROWS)]

    @model_validator(mode="after")
    def _same_length(self) -> _History:
        columns = self.columns
        lists: list[tuple[str, Sequence[object]]] = [*columns.__pydantic_extra__.items()]
        for name, values in [*lists, ("epoch", columns.epoch), ("rows", self.rows)]:
            if len(values) != len(columns.step):
                raise ValueError(f'"{name}": found {len(values)} values, expected {len(columns.step)}')
        if any(b <= a for a, b in pairwise(columns.step)):
            raise ValueError('"step": expected each above the one before')
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
        if type(step := row.get("step")) is int and 0 <= step < 1 << 53:
            merged.setdefault(step, {}).update(row)
    taken = [merged[step] for step in sorted(merged)]
    if not taken:
        return None
    blocks = _blocks(taken)
    names = dict.fromkeys(
        name
        for row in taken
        for name, value in row.items()
        if is_printable(name) and _number(value) is not None
    )
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


def read(folder: Path) -> History | None:
    """Read and check `history.json` of the release in `folder`; None where there is none.

    Raises:
        ReleaseError: naming what in it `gather` does not make.
    """
    file = folder / format.HISTORY
    if not os.path.lexists(file):
        return None
    history = format.read_json(file)
    check(history, str(file))
    return history


def check(history: Mapping[str, Any], where: str) -> None:
    """Make sure that `history` is one that `gather` could have made.

    Raises:
        ReleaseError: beginning with `where`, and naming what was found and what was expected.
    """
    schema.check_words(history, where)
    parse(_History, history, where, ReleaseError)


def _blocks(rows: Sequence[Mapping[str, Any]]) -> list[Sequence[Mapping[str, Any]]]:
    """Part the rows into at most `MOST_ROWS` blocks of neighbours; the first and last row stand alone."""
    if len(rows) <= MOST_ROWS:
        return [[row] for row in rows]
    return [rows[:1], *_parts(rows[1:-1], MOST_ROWS - 2), rows[-1:]]


def _parts(rows: Sequence[Mapping[str, Any]], count: int) -> list[Sequence[Mapping[str, Any]]]:
    edges = [round(i * len(rows) / count) for i in range(count + 1)]
    return [rows[a:b] for a, b in pairwise(edges)]


def _class_blocks(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Part the classes' rows into at most `MOST_CLASS_ROWS` blocks, each of which becomes its mean."""
    rows = [row for row in map(_plain_row, rows) if _is_class_row(row)]
    rows = [row for row in rows if len(row["images"]) == len(rows[-1]["images"])]
    count = min(len(rows), MOST_CLASS_ROWS)
    return [_class_mean(block) for block in _parts(rows, count)] if rows else []


def _is_class_row(row: Mapping[str, Any]) -> bool:
    try:
        schema.check_words(row, "")
        parse(_ClassRow, row, "", ReleaseError)
    except ReleaseError:
        return False
    return True


def _class_mean(block: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return several rows of classes as one.

    As where the rows are read (`class_means` of a report), a value counts by what it is a mean of: a class's
    images for `feature_gradient`, else the looks.
    """
    images = np.array([row["images"] for row in block], dtype=float)
    looks = np.array([[row["looks"]] for row in block], dtype=float)
    mean: dict[str, Any] = {name: block[-1][name] for name in _AT}
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


def _plain_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: [_number(v) for v in value] if isinstance(value, list | tuple) else value
        for name, value in row.items()
    }


def _number(value: object) -> float | int | None:
    return value if is_number(value) and abs(value) < 1e300 else None  # neither nan nor inf


def _mean(values: Sequence[float | int | None]) -> float | int | None:
    known = [value for value in values if value is not None]
    return _short(math.fsum(known) / len(known) if len(known) > 1 else known[0]) if known else None


def _short(value: float | int | None) -> float | int | None:
    return value if value is None or isinstance(value, int) else float(f"{value:.6g}")


def _plain(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
