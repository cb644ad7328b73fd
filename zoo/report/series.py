"""What was recorded, as arrays: scalars over steps, and gradients over classes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zoo import config

Row = Mapping[str, Any]
"""Of metrics.jsonl or classes.jsonl."""

Array = NDArray[np.float64]

GROUPS = ("many", "medium", "few")
"""Classes by their training images."""

VARIANTS = ("optimum", "ft")
"""A quantity's theoretical optimum, and what it is after feature transformation."""


class Scalar(NamedTuple):
    """What a recorded scalar is: of which quantity, which variant of it or '', of which classes or ''."""

    quantity: str
    variant: str
    group: str

    @classmethod
    def of(cls, name: str) -> Scalar:
        """Read a name, `QUANTITY[_optimum|_ft][_many|_medium|_few]`."""
        group = next((each for each in GROUPS if name.endswith(f"_{each}")), "")
        stem = name.removesuffix(f"_{group}") if group else name
        variant = next((each for each in VARIANTS if stem.endswith(f"_{each}")), "")
        return cls(stem.removesuffix(f"_{variant}") if variant else stem, variant, group)


class Curve(NamedTuple):
    """One scalar of a run: the steps at which it was recorded `[T]`, and its values `[T]`, all finite."""

    steps: Array
    values: Array


def curve(rows: Sequence[Row], name: str) -> Curve:
    """Return the recorded values of a scalar in the order of steps; of a step recorded twice, the last."""
    found = {
        row["step"]: row[name] for row in rows if is_number(row.get("step")) and is_number(row.get(name))
    }
    ordered = sorted(found)
    return Curve(np.array(ordered, dtype=float), np.array([found[step] for step in ordered], dtype=float))


def steps(rows: Iterable[Row]) -> list[int]:
    """Return the steps that any row is of, in order."""
    return sorted({row["step"] for row in rows if is_number(row.get("step"))})


def ending(rows: Sequence[Row], name: str, share: float) -> tuple[Array, Array]:
    """Return the last records of a scalar `[T]`, and for how many steps each of them stands `[T]`.

    A row is the mean of the steps since the row before it: where a training was stopped and went on, or in a
    release's history, that is not the same number for all. Together they are of at least `share` of the steps
    that the scalar has records of.
    """
    found = curve(rows, name)
    lengths = {step: max(step - before, 1) for before, step in pairwise([0, *steps(rows)])}
    weights = np.array([lengths[step] for step in found.steps], dtype=float)
    reached = np.cumsum(weights[::-1])
    count = int(np.searchsorted(reached, (share - 1e-9) * weights.sum())) + 1
    return found.values[-count:], weights[-count:]


def names(rows: Iterable[Row]) -> list[str]:
    """Return the scalars that any row has, in alphabetical order."""
    found = {key for row in rows for key, value in row.items() if is_number(value)}
    return sorted(found - {"step", "epoch"})


def is_number(value: object) -> bool:
    """Whether a value of a row is a finite number."""
    return config.is_number(value) and math.isfinite(value)


def smooth(found: Curve, window: int) -> Curve:
    """Return running means over `window` records, of steps and values alike."""
    if window < 2 or len(found.values) <= window:
        return found
    kernel = np.ones(window) / window
    return Curve(*(np.convolve(values, kernel, mode="valid") for values in found))


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """Return the mean of several runs' curves, over the steps that all of them reach."""
    if len(curves) == 1:
        return curves[0]
    first = max(each.steps[0] for each in curves)
    last = min(each.steps[-1] for each in curves)
    shared = np.unique(np.concatenate([each.steps for each in curves]))
    shared = shared[(shared >= first) & (shared <= last)]
    if not len(shared):  # one ended before another began
        return Curve(shared, shared)
    return Curve(shared, np.mean([np.interp(shared, *each) for each in curves], axis=0))


def class_means(class_rows: Sequence[Row], key: str, classes: int) -> Array | None:
    """Return a quantity of each class over a whole training `[C]`, from the rows of classes.jsonl.

    A row's value counts by what it is a mean of: images of the class for `feature_gradient`, steps that were
    looked at for everything else. NaN for a class that was never observed.

    Args:
        class_rows: may be empty.
        key: of the rows.
        classes: C; a row of another number is left out.

    Returns:
        None where no row has the key.
    """
    total, weights = np.zeros(classes), np.zeros(classes)
    any_row = False
    for row in class_rows:
        values, images = _numbers(row.get(key), classes), _numbers(row.get("images"), classes)
        if values is None or images is None or not is_number(row.get("looks")):
            continue
        any_row = True
        images = np.nan_to_num(images)
        weight = images if key == "feature_gradient" else np.full(classes, float(row["looks"]))
        known = np.isfinite(values)
        total[known] += (values * weight)[known]
        weights[known] += weight[known]
    if not any_row:
        return None
    means: Array = np.divide(total, weights, out=np.full(classes, np.nan), where=weights > 0)
    return means


def _numbers(values: Any, classes: int) -> Array | None:
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != classes:
        return None
    return np.array([value if is_number(value) else math.nan for value in values], dtype=float)


def most_frequent_first(counts: Array) -> NDArray[np.int64]:
    """Return the classes `[C]` from the most to the least frequent."""
    return np.argsort(-counts, kind="stable").astype(np.int64)


def head_to_tail(values: Array, counts: Array) -> float | None:
    """Return a quantity's mean over the most frequent third of the classes by that over the rarest third.

    Args:
        values: `[C]`; classes with NaN are left out.
        counts: training images `[C]`; -1 where not known.

    Returns:
        None for fewer than two classes, unknown counts, or nothing in the rarest third.
    """
    third = max(len(values) // 3, 1)
    if len(values) < 2 or counts.min() < 0:
        return None
    ordered = values[most_frequent_first(counts)]
    head, tail = (part[np.isfinite(part)] for part in (ordered[:third], ordered[-third:]))
    if not len(head) or not len(tail) or tail.mean() <= 0:
        return None
    return float(head.mean() / tail.mean())
