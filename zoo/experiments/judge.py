"""Whether a training that was repeated agrees with the recorded one, all figures judged together."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from zoo.experiments.record import RunRecord
from zoo.experiments.statistics import tolerance
from zoo.functional import frequency_groups

RISK = 0.01
"""How often an equally good training may fail in any of its figures."""

FEWEST_SEEDS = 5
"""Of which a spread is known well enough to judge by."""

SCALARS = ("loss", "accuracy", "positive_score", "negative_score", "uniformity", "alignment", "p_sup")
"""What a training recorded of itself that is judged where its spread over seeds is known."""

_CLASS_MEANS = ("balanced_accuracy", "many", "medium", "few")

Number = int | float


class Images(NamedTuple):
    """How many images of each class were measured on, and trained on, both `[C]`."""

    test: NDArray[np.int64]
    train: NDArray[np.int64]


@dataclass(frozen=True)
class Figure:
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
        """`same` is equal to the last bit; `missing` has no number on one of the two sides."""
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


class Pair(NamedTuple):
    """A number before it is judged, see `Figure`, and the rule by which it will be."""

    of: str
    name: str
    recorded: Number | None
    reproduced: Number | None
    rule: Rule


Rule = Callable[["Pair", int], float | None]
"""From a pair of numbers and how many are judged together, how far apart they may be."""


def pairs(of: str, recorded: Mapping[str, Any], reproduced: Mapping[str, Any], rule: Rule) -> Iterator[Pair]:
    """Yield every number of a nested record with that under the same path in another.

    What only `reproduced` has was not measured then and is left out.
    """
    new = dict(_numbers(reproduced))
    for name, was in _numbers(recorded):
        if was is not None or new.get(name) is not None:
            yield Pair(of, name, was, new.get(name), rule)


def judged(found: Sequence[Pair]) -> list[Figure]:
    """Return the figures with their tolerances, which allow for how many are judged together."""
    whole = [isinstance(each.recorded, int) for each in found]
    family = sum(not w and each.rule(each, 1) is not None for w, each in zip(whole, found, strict=True))
    return [
        Figure(*each[:4], 0.0 if None in each[2:4] else each.rule(each, max(family, 1))) for each in found
    ]


def points(allowed: float) -> Rule:
    """Allow percentages to differ by so many points; counts are equal."""
    return lambda pair, _: None if _is_speed(pair.name) else 0.0 if _whole(pair) else allowed


def same_weights(images: Images) -> Rule:
    """Allow one test image: another processor may round a borderline image to the other side."""
    return lambda pair, _: 0.0 if _whole(pair) else _one_image(pair.name, images)


def equal_trainings(metrics: Mapping[str, Any], images: Images, seeds: Sequence[Mapping[str, float]]) -> Rule:
    """Judge an evaluation of two trainings: by test images, and the spread over seeds where it is known.

    The calibration error, a difference of accuracy and confidence, has the accuracy's share. An interval over
    a few draws is known to a third, so two of them may differ by the wider one. Accuracies of single classes
    are not judged by themselves: groups of classes are.

    Args:
        metrics: the recorded section, for its `accuracy`.
        images: of the data that was measured on.
        seeds: metrics of the same evaluation of trainings with other seeds.
    """

    def rule(pair: Pair, family: int) -> float | None:
        recorded, reproduced = float(pair.recorded or 0), float(pair.reproduced or 0)
        if _whole(pair):
            return 0.0
        if "interval" in pair.name:
            return max(recorded, reproduced)
        if pair.name.rpartition(".")[2].isdigit():
            return None
        accuracy = metrics.get("accuracy") if "calibration" in pair.name else None
        percent = (recorded + reproduced) / 2 if accuracy is None else accuracy
        spread = _spread([each.get(pair.name) for each in seeds])
        share = None if spread is None else (spread[0] / 100, spread[1])
        count = int(_behind(pair.name, images).sum())
        return max(_one_image(pair.name, images), 100 * tolerance(percent / 100, count, share, family, RISK))

    return rule


def training_facts(images: int, *, stopped_early: bool) -> Rule:
    """Judge facts of two trainings on so many images: counts are equal, unless a training may stop early.

    Shares of the training images (at most 1) and percentages are judged as those of test images are. How fast
    it was is not judged.
    """

    def rule(pair: Pair, family: int) -> float | None:
        if _is_speed(pair.name):
            return None
        if _whole(pair):
            return None if stopped_early else 0.0
        recorded, reproduced = float(pair.recorded or 0), float(pair.reproduced or 0)
        unit = 1 if max(recorded, reproduced) <= 1 else 100
        share = (recorded + reproduced) / 2 / unit
        return unit * max(1 / images, tolerance(share, images, None, family, RISK))

    return rule


def recorded_scalars(seeds: Sequence[Mapping[str, float]]) -> Rule:
    """Judge what two trainings recorded of themselves by its spread over seeds; not without one.

    Args:
        seeds: `RunRecord.figures` of trainings with other seeds.
    """

    def rule(pair: Pair, family: int) -> float | None:
        spread = _spread([each.get(f"recorded/{pair.name}") for each in seeds])
        return None if spread is None else tolerance(0.0, 0, spread, family, RISK)

    return rule


def scalars(figures: Mapping[str, float]) -> dict[str, float]:
    """Return those of a run's figures that are judged, by the names of `SCALARS`."""
    return {name: figures[f"recorded/{name}"] for name in SCALARS if f"recorded/{name}" in figures}


def metrics_of(seeds: Sequence[RunRecord], entry: Mapping[str, Any]) -> list[Mapping[str, float]]:
    """Return the metrics of the evaluation `entry` in records of other seeds."""
    test = (entry.get("test_set") or {}).get("sha256")
    return [
        each.metrics
        for record in seeds
        for each in record.evaluations
        if (each.protocol, each.settings, each.test_sha256)
        == (entry["protocol"], entry.get("settings") or {}, test)
    ]


def _spread(values: Sequence[float | None]) -> tuple[float, int] | None:
    known = [value for value in values if value is not None]
    return (statistics.stdev(known), len(known)) if len(known) >= FEWEST_SEEDS else None


def _numbers(record: Any, path: str = "") -> Iterator[tuple[str, Number | None]]:
    """Yield the numbers and nulls in nested plain values, with their paths."""
    if isinstance(record, Mapping | list):
        items = record.items() if isinstance(record, Mapping) else enumerate(record)
        for key, value in items:
            yield from _numbers(value, f"{path}.{key}" if path else str(key))
    elif record is None or (isinstance(record, Number) and not isinstance(record, bool)):
        yield path, record


def _whole(pair: Pair) -> bool:
    return isinstance(pair.recorded, int) and isinstance(pair.reproduced, int)


def _is_speed(name: str) -> bool:
    return "second" in name or name == "ranks"


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


def _one_image(name: str, images: Images) -> float:
    """Return by how many points one image, of the smallest class, can move a figure."""
    counts = _behind(name, images)
    if name in _CLASS_MEANS:
        return 100 / (len(counts) * int(counts.min()))
    return 100 / int(counts.sum())
