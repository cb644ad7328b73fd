"""What a sweep found: trends of the numbers that are watched, as tables, sentences and a record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from zoo.api.sweep_file import Watched
from zoo.api.sweeps.grid import RECIPE, Axis, Plan, Run
from zoo.errors import did_you_mean
from zoo.evaluation.diagnosis.page import Table
from zoo.evaluation.diagnosis.tables import COUNTS
from zoo.evaluation.results.comparison import Estimate, estimate
from zoo.evaluation.results.trend import Trend, in_words, trend

Numbers = Mapping[str, float]
"""`Subject.numbers` of one run."""

_ENCODER = "It is of pooled features of test images, before the projection that the loss acts on."
_LOSS = "It is of training views in the space that the loss acts on, mean over the last fifth of the records."
_USUAL = (
    Watched(
        number="recorded/uniformity",
        title="uniformity of what the loss sees (log)",
        meaning=f"log E exp(-2 |x - y|^2) over pairs: lower is more uniform. {_LOSS}",
    ),
    Watched(
        number="recorded/tolerance",
        title="tolerance of what the loss sees (cosine)",
        meaning=f"The mean cosine of images of one class. {_LOSS}",
    ),
    Watched(
        number="features/uniformity",
        title="uniformity of the encoder's features (log)",
        meaning=f"log E exp(-2 |x - y|^2) over pairs: lower is more uniform. {_ENCODER}",
    ),
    Watched(
        number="features/tolerance",
        title="tolerance of the encoder's features (cosine)",
        meaning=f"The mean cosine of images of one class. {_ENCODER}",
    ),
    Watched(
        number="features/alignment",
        title="alignment of the encoder's features (squared distance)",
        meaning=f"E |q - k|^2 of two views: 0 where both are mapped alike. {_ENCODER}",
    ),
    Watched(
        number="recorded/positive_score",
        title="positive score that training recorded (cosine)",
        meaning=f"The mean cosine of two views of an image. {_LOSS}",
    ),
    Watched(
        number="recorded/negative_score",
        title="negative score that training recorded (cosine)",
        meaning=f"The mean cosine of views of two images. {_LOSS}",
    ),
    Watched(
        number="recorded/negative_variance",
        title="variance of negative scores in training (squared cosine)",
        meaning=f"How much the negatives of a step differ in hardness. {_LOSS}",
    ),
    Watched(
        number="recorded/p_sup",
        title="P_sup (probability)",
        meaning="The probability of all centers together, mean over the last fifth of the records.",
    ),
)
_TITLES = {
    "beginning": ", first record",
    "deviation": ", deviation",
    "relative_deviation": ", relative deviation",
    "unsteadiness": ", unsteadiness (relative)",
    "features": " of the encoder's features",
    "balance": ", frequent by rare classes (ratio)",
}
_MOST = 10


class Found(NamedTuple):
    """What was found for one number.

    Attributes:
        watched: the number.
        trends: along the sweep's first axis, by the values of the others ("" where there is none).
        across: the same along each other axis of a grid, by the axis's title.
    """

    watched: Watched
    trends: dict[str, Trend]
    across: Mapping[str, Mapping[str, Trend]] = {}


def usual_numbers(finished: Sequence[Numbers]) -> tuple[Watched, ...]:
    """Return what is watched where nothing is asked for: accuracies and the usual measures, at most 10."""
    names = dict.fromkeys(name for numbers in finished for name in numbers)
    accuracies = [name for name in names if name.startswith("accuracy/") and name.count("/") == 1]
    chosen = [*map(watched_by_name, accuracies), *(each for each in _USUAL if each.number in names)]
    return tuple(chosen[:_MOST])


def watched_by_name(name: str) -> Watched:
    """Return a number with its title and meaning where it is a usual one, else a title made of its name."""
    usual = next((each for each in _USUAL if each.number == name), None)
    kind, _, rest = name.partition("/")
    stem, _, metric = rest.partition("/")
    words = stem.replace("_", " ").replace("p sup", "P_sup")
    if kind != "accuracy":
        return usual or Watched(number=name, title=f"{words}{_TITLES.get(kind, '')}")
    if not metric:
        return Watched(number=name, title=f"{words} accuracy (%)")
    unit = "" if metric in COUNTS else " (%)"
    return Watched(number=name, title=f"{words}, {metric.replace('_', ' ')}{unit}")


def along(plan: Plan) -> Axis:
    """Return the axis that figures have below: the first of numbers, else the first."""
    if not plan.axes:
        return Axis(RECIPE, dict.fromkeys(plan.points, None))
    return next((axis for axis in plan.axes if axis.numbers), plan.axes[0])


def findings(plan: Plan, numbers: Mapping[Run, Numbers], watch: Sequence[Watched]) -> list[Found]:
    """Summarise each number over the runs that have it.

    Args:
        plan: the sweep.
        numbers: of the finished runs.
        watch: the numbers.
    """
    axis = along(plan)
    others = [each for each in plan.axes if each is not axis]
    return [
        Found(
            watched,
            _trends(plan, axis, numbers, watched),
            {each.title: _trends(plan, each, numbers, watched) for each in others},
        )
        for watched in watch
    ]


def _trends(plan: Plan, axis: Axis, numbers: Mapping[Run, Numbers], watched: Watched) -> dict[str, Trend]:
    """Summarise a number along one axis, by the values of the others."""
    lines: dict[str, dict[str, dict[int, float]]] = {}
    for run in plan.runs:
        value = value_of(watched, numbers.get(run, {}))
        if value is None:
            continue
        label, line = _place(plan, axis, run)
        by_label = lines.setdefault(line, {label: {} for label in axis.values})
        by_label.setdefault(label, {})[run.seed] = value
    return {line: trend(runs, axis.numbers) for line, runs in lines.items()}


def value_of(watched: Watched, numbers: Numbers) -> float | None:
    """Return the number of one run, or None where it has none."""
    value = numbers.get(watched.number)
    if value is None and watched.instead is not None:
        value = numbers.get(watched.instead)
    if value is not None and watched.minus is not None:
        other = numbers.get(watched.minus)
        value = None if other is None else value - other
    return None if value is None or not math.isfinite(value) else value


def _place(plan: Plan, axis: Axis, run: Run) -> tuple[str, str]:
    """Return a run's label on the axis, and those on the others in one text."""
    if not plan.axes:
        return run.point, ""
    others = [
        label if each.key == RECIPE else f"{each.title} {label}"
        for each, label in zip(plan.axes, run.labels, strict=True)
        if each is not axis
    ]
    own = next(label for each, label in zip(plan.axes, run.labels, strict=True) if each is axis)
    return own, ", ".join(others)


def point_words(plan: Plan, run: Run) -> str:
    """Return a point's values as a person reads them, e.g. `tau 0.1`."""
    texts = [
        label if axis.key == RECIPE else f"{axis.title} {label}"
        for axis, label in zip(plan.axes, run.labels, strict=True)
    ]
    return ", ".join(texts) or run.point


def table(plan: Plan, numbers: Mapping[Run, Numbers], watch: Sequence[Watched]) -> Table:
    """Return a row for each point: mean and interval of each number over the seeds that have it."""
    rows = []
    for point in plan.points:
        runs = [run for run in plan.runs if run.point == point]
        cells = [runs[0].labels[0] if len(plan.axes) == 1 else point_words(plan, runs[0])]
        for watched in watch:
            values = [value_of(watched, numbers.get(run, {})) for run in runs]
            there = [value for value in values if value is not None]
            missing = f" (n={len(there)})" if there and len(there) < len(runs) else ""
            cells.append(estimate(there).in_figures() + missing if there else "-")
        rows.append(cells)
    seeds = "seed " if len(plan.seeds) == 1 else "mean ± 95 % interval over seeds "
    heading = " and ".join(axis.title for axis in plan.axes) or RECIPE
    return Table(
        f"Every point: {seeds}{', '.join(map(str, plan.seeds))}",
        [heading, *(watched.title for watched in watch)],
        rows,
    )


def sentences(plan: Plan, found: Sequence[Found], numbers: Mapping[Run, Numbers]) -> list[str]:
    """Return a paragraph for each number: what the runs say, how it reads, what the source expects."""
    axis = along(plan)
    texts = []
    ordered = {each.title: each.numbers is not None for each in plan.axes}
    for watched, trends, across in found:
        name = watched.title.partition(" (")[0]
        if not trends:
            names = {each for by_run in numbers.values() for each in by_run}
            missing = next(
                (n for n in (watched.number, watched.minus) if n and n not in names), watched.number
            )
            texts.append(f'No finished run has the number "{missing}".{did_you_mean(missing, names)}')
            continue
        alone = [line for line, each in trends.items() if each.ends is None]
        for line, each in trends.items():
            if line in alone[1:]:
                continue
            words = in_words(
                each, number=name, along=axis.title, expects=watched.expects, ordered=axis.numbers is not None
            )
            texts.append(f"{line}: {words}" if line else words)
        if alone[1:]:
            texts.append(f"At one {axis.title} alone there are also runs of: {'; '.join(alone[1:])}.")
        for title, lines in across.items():  # what the source expects is said of the first axis
            for line, each in lines.items():
                if each.ends is not None:
                    words = in_words(each, number=name, along=title, ordered=ordered[title])
                    texts.append(f"{line}: {words}")
        if watched.meaning:
            texts[-1] += f" {watched.meaning}"
    return texts


def as_record(found: Sequence[Found]) -> list[dict[str, Any]]:
    """Return the same as plain values."""
    return [
        {
            **watched.model_dump(mode="json"),
            "trends": {line: _as_record(each) for line, each in trends.items()},
            "across": {
                title: {line: _as_record(each) for line, each in lines.items()}
                for title, lines in across.items()
            },
        }
        for watched, trends, across in found
    ]


def _as_record(found: Trend) -> dict[str, Any]:
    return {
        "points": {
            label: {"mean": e.mean, "half_width": e.half_width, "values": list(e.values)}
            for label, e in found.points.items()
        },
        "changes": [
            {
                "value": change.value,
                "verdict": change.verdict,
                "agree": change.agree,
                **({} if change.difference is None else _plain(change.difference)),
            }
            for change in found.changes
        ],
        "spearman": found.correlation,
        "runs": found.runs,
    }


def _plain(difference: Estimate) -> dict[str, Any]:
    """Return a paired difference as plain values."""
    return {
        "difference": difference.mean,
        "half_width": difference.half_width,
        "by_seed": list(difference.values),
    }
