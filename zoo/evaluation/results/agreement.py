"""Whether a measurement that was repeated agrees with the recorded one, figure by figure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from zoo.functional import frequency_groups

RISK = 0.05
"""How often two equally good models may differ by more than the default tolerance."""
_CLASS_MEANS = ("balanced_accuracy", "many", "medium", "few")

Number = int | float


class Images(NamedTuple):
    """How many images of each class were measured on, and trained on, both `[C]`."""

    test: NDArray[np.int64]
    train: NDArray[np.int64]


class Figure(NamedTuple):
    """One number, as recorded and as reproduced.

    Attributes:
        of: the evaluation, or `training`.
        name: path in its section, e.g. `accuracy`, `per_class.3`.
        recorded: None where null was recorded.
        reproduced: None where there is no such number.
        tolerance: how far apart the two may be; None where that is not judged.
    """

    of: str
    name: str
    recorded: Number | None
    reproduced: Number | None
    tolerance: float | None

    @property
    def difference(self) -> Number | None:
        """Reproduced minus recorded."""
        return None if self.recorded is None or self.reproduced is None else self.reproduced - self.recorded

    @property
    def verdict(self) -> Literal["same", "within", "differs", "missing", "not judged"]:
        """`same` is judged and equal to the last bit; `missing` has no number on one of the two sides."""
        if self.tolerance is None:  # equal by chance, such a figure says nothing of the reproduction
            return "not judged"
        if self.recorded == self.reproduced:
            return "same"
        if self.difference is None:
            return "missing"
        rounding = 1 + 1e-9  # of the subtraction; nothing at tolerance 0
        return "within" if abs(self.difference) <= self.tolerance * rounding else "differs"

    @property
    def agrees(self) -> bool:
        """Whether this figure was reproduced, or is not judged."""
        return self.verdict not in ("differs", "missing")


Tolerance = Callable[[str, Number, Number, int], float | None]
"""From a figure's name, its two values, and how many figures of a list it stands among."""


def compare(
    of: str, recorded: Mapping[str, Any], reproduced: Mapping[str, Any], tolerance: Tolerance
) -> list[Figure]:
    """Compare every number in a nested record with that under the same path in another.

    What only `reproduced` has was not measured then and is left out; a number that it lacks is `missing`.
    """
    old, new = dict(_numbers(recorded)), dict(_numbers(reproduced))
    lists = Counter(_list_of(name) for name in old)
    figures = []
    for name, was in old.items():
        now = new.get(name)
        if was is None and now is None:
            continue
        allowed: float | None = 0.0
        if was is not None and now is not None:
            allowed = tolerance(name, was, now, lists[_list_of(name)] if _list_of(name) else 1)
        figures.append(Figure(of, name, was, now, allowed))
    return figures


def _numbers(record: Any, path: str = "") -> Iterator[tuple[str, Number | None]]:
    """Yield the numbers and nulls in nested plain values, with their paths."""
    if isinstance(record, Mapping | list):
        items = record.items() if isinstance(record, Mapping) else enumerate(record)
        for key, value in items:
            yield from _numbers(value, f"{path}.{key}" if path else str(key))
    elif record is None or (isinstance(record, Number) and not isinstance(record, bool)):
        yield path, record


def _list_of(name: str) -> str:
    """Return the path of the list that a number stands in, or ''."""
    parent, _, last = name.rpartition(".")
    return parent if last.isdigit() else ""


def same_model(images: Images) -> Tolerance:
    """Return the tolerance between two measurements of the same weights: one test image.

    Another processor or version may round a borderline image to the other side, and nothing more.
    """

    def tolerance(name: str, recorded: Number, reproduced: Number, family: int) -> float:
        return 0.0 if _whole(recorded, reproduced) else _one_image(name, _behind(name, images))

    return tolerance


def equal_models(metrics: Mapping[str, Any], images: Images) -> Tolerance:
    """Return the tolerance between percentages of two models that are equally good, of two trainings.

    That is the 95 % interval of the difference of two shares p, each measured on n images,
    1.96 sqrt(2 p (1 - p) / n), and at least one image. p is the mean of the two, n the test images of the
    classes that the figure is about: of a group for `many`, `medium` and `few`, of a class for each of
    `per_class`. For a list the 95 % hold for all of it together (Bonferroni). The calibration error, a
    difference of accuracy and confidence, has the accuracy's p. An interval over a few draws is known to a
    third (the deviation of 5 draws to 1 / sqrt(8)), so two of them may differ by the wider one. Whole numbers
    are counts: they are equal.

    Args:
        metrics: the recorded section that the figures are of, for its `accuracy`.
        images: of the data that they were measured on.
    """

    def tolerance(name: str, recorded: Number, reproduced: Number, family: int) -> float:
        if _whole(recorded, reproduced):
            return 0.0
        counts = _behind(name, images)
        if "interval" in name:
            return max(recorded, reproduced)
        accuracy = metrics.get("accuracy") if "calibration" in name else None
        percent = (recorded + reproduced) / 2 if accuracy is None else accuracy
        return max(_one_image(name, counts), 100 * spread(percent / 100, int(counts.sum()), family))

    return tolerance


def training_facts(images: int, *, exact: bool, stopped_early: bool) -> Tolerance:
    """Return the tolerance between facts of two trainings on so many `images`.

    Counts are equal, unless a training may stop early; shares of the training images (at most 1) and
    percentages are judged as those of test images are. How fast it was is not judged.

    Args:
        images: training images.
        exact: whether both ended in the same weights.
        stopped_early: whether the recipe has the number of epochs depend on what is measured.
    """

    def tolerance(name: str, recorded: Number, reproduced: Number, family: int) -> float | None:
        if "second" in name or name == "ranks":
            return None
        if _whole(recorded, reproduced):
            return None if stopped_early else 0.0
        unit = 1 if max(recorded, reproduced) <= 1 else 100
        share = (recorded + reproduced) / 2 / unit
        return unit * max(1 / images, 0.0 if exact else spread(share, images, family))

    return tolerance


def within(points: float) -> Tolerance:
    """Return a tolerance of so many points for every percentage; counts are equal."""

    def tolerance(name: str, recorded: Number, reproduced: Number, family: int) -> float | None:
        if "second" in name or name == "ranks":
            return None
        return 0.0 if _whole(recorded, reproduced) else points

    return tolerance


def spread(share: float, images: int, family: int = 1) -> float:
    """Return by how much two measurements of the same `share`, on so many images each, may differ."""
    z = NormalDist().inv_cdf(1 - RISK / (2 * family))
    share = min(max(share, 0.0), 1.0)
    return z * math.sqrt(2 * share * (1 - share) / max(images, 1))


def _whole(recorded: Number, reproduced: Number) -> bool:
    return isinstance(recorded, int) and isinstance(reproduced, int)


def _behind(name: str, images: Images) -> NDArray[np.int64]:
    """Return the test images of each class that a figure is about."""
    first, _, last = name.partition(".")
    chosen = np.full(len(images.test), True)
    groups = frequency_groups(torch.tensor(images.train))
    if first in groups:
        chosen = groups[first].numpy()
    if first == "per_class" and last.isdigit():
        chosen = np.arange(len(images.test)) == int(last)
    counts = images.test[chosen & (images.test > 0)]
    return counts if len(counts) else images.test[images.test > 0]


def _one_image(name: str, counts: NDArray[np.int64]) -> float:
    """Return by how many points one image, of the smallest class, can move a figure."""
    if name in _CLASS_MEANS:
        return 100 / (len(counts) * int(counts.min()))
    return 100 / int(counts.sum())
