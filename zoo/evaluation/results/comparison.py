"""Several methods over several seeds: means, intervals, and which of them the seeds tell apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scipy import stats

from zoo.errors import ZooError
from zoo.markdown import markdown_table
from zoo.release.evaluations import ACCURACIES

COLUMNS = {**ACCURACIES, "calibration_error": "calibration error"}
"""What a comparison shows of a classifier's metrics, all in percent, with its heading."""

RANKED_BY = "balanced_accuracy"
LEVEL = 0.95
_ROUNDING = 1e-9  # of a number's size: what is closer than that is the same

Runs = Mapping[str, Mapping[int, Mapping[str, Any]]]
"""Metrics by method and seed."""


class Estimate(NamedTuple):
    """A mean over seeds and what the seeds say of its certainty.

    Attributes:
        mean: of the values.
        half_width: of the 95 % interval of the mean (Student's t); None where seeds say nothing of it:
            for one value, or the same one with every seed.
        values: by seed.
    """

    mean: float
    half_width: float | None
    values: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.mean:z.1f}" + ("" if self.half_width is None else f" ± {self.half_width:.1f}")

    def in_figures(self) -> str:
        """As `in_figures` writes it: of a number that is no percentage."""
        return in_figures(self.mean, self.half_width)


class Summary(NamedTuple):
    """One method of a comparison.

    Attributes:
        metrics: for each of `COLUMNS`; None where a run has no value, e.g. for a group without classes.
        to_best: its balanced accuracy minus the best method's, seed by seed; None for the best itself.
    """

    metrics: dict[str, Estimate | None]
    to_best: Estimate | None

    @property
    def tied(self) -> bool | None:
        """Whether the interval of `to_best` reaches 0; None where seeds cannot tell, or for the best."""
        if self.to_best is None:
            return None
        if self.to_best.half_width is None:
            return True if len(self.to_best.values) > 1 and self.to_best.mean == 0 else None
        return self.to_best.mean + self.to_best.half_width >= 0

    @property
    def verdict(self) -> str:
        """`to_best` in words: a difference without interval says why seeds cannot judge it."""
        if self.to_best is None:
            return "best"
        if self.tied is None:
            return f"{self.to_best} ({'no spread' if len(self.to_best.values) > 1 else 'one seed'})"
        return f"{self.to_best}" + (" (tie)" if self.tied else "")


def estimate(values: Sequence[float]) -> Estimate:
    """Return mean and 95 % interval: t(0.975, n - 1) s / sqrt(n), s the sample's standard deviation."""
    count = len(values)
    mean = math.fsum(values) / count
    if len({*values}) == 1:  # a deterministic method's figure is not certain: its test images are a sample
        return Estimate(mean, None, tuple(values))
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    quantile = float(stats.t.ppf((1 + LEVEL) / 2, count - 1))
    return Estimate(mean, quantile * deviation / math.sqrt(count), tuple(values))


def differences(values: Sequence[float], first: Sequence[float]) -> list[float]:
    """Return each value minus its own of `first`, without what is rounding's alone.

    Accuracies of counted images differ by the same count and yet in the last digits, which would be an
    interval: differences that only those tell apart are the same one, and 0 where they are nothing else.
    """
    found = [value - other for value, other in zip(values, first, strict=True)]
    least = _ROUNDING * max(map(abs, [*values, *first]))
    if max(found) - min(found) <= least:
        found = [found[0]] * len(found)
    return [0.0 if abs(value) <= least else value for value in found]


def in_figures(value: float, half_width: float | None = None) -> str:
    """Write a number with three significant figures, or to the second figure of its interval."""
    return _in_figures(value, half_width).replace("-", "\N{MINUS SIGN}")


def _in_figures(value: float, half_width: float | None) -> str:
    size = abs(value) if half_width is None else half_width
    if size == 0 or not math.isfinite(size):
        return f"{value:g}"
    if not 1e-4 <= max(abs(value), size) < 1e6:
        return f"{value:.2e}" + ("" if half_width is None else f" ± {half_width:.1e}")
    figures = 2 if half_width is None else 1
    decimals = min(max(figures - math.floor(math.log10(size)), 0), 6)
    return f"{value:.{decimals}f}" + ("" if half_width is None else f" ± {half_width:.{decimals}f}")


def summarize(runs: Runs) -> dict[str, Summary]:
    """Summarise each method, best mean of balanced accuracy first.

    Differences to the best are taken seed by seed, since methods of one seed share images and initial
    weights. The intervals are of one comparison each: nothing corrects for their number, nor for the best
    having been chosen among them.

    Raises:
        ZooError: when there is no method, or methods were run with other seeds.
    """
    if not runs:
        raise ZooError("comparison: found no method, expected at least one")
    seeds = {name: tuple(sorted(by_seed)) for name, by_seed in runs.items()}
    first, expected = next(iter(seeds.items()))
    for name, found in seeds.items():
        if found != expected or not found:
            raise ZooError(f"comparison: {name} has the seeds {found}, but {first} has {expected}")
    metrics = {name: {key: _over_seeds(by_seed, key) for key in COLUMNS} for name, by_seed in runs.items()}
    ranked = {name: row[RANKED_BY] for name, row in metrics.items()}
    absent = [name for name, value in ranked.items() if value is None]
    if absent:
        raise ZooError(f"comparison: {absent[0]} has no {RANKED_BY}")
    order = sorted(runs, key=lambda name: -(ranked[name] or Estimate(0, None, ())).mean)
    best = ranked[order[0]]
    return {
        name: Summary(metrics[name], None if name == order[0] else _paired(ranked[name], best))
        for name in order
    }


def _over_seeds(by_seed: Mapping[int, Mapping[str, Any]], key: str) -> Estimate | None:
    values = [by_seed[seed].get(key) for seed in sorted(by_seed)]
    present = [float(value) for value in values if value is not None]
    return estimate(present) if len(present) == len(values) else None


def _paired(mine: Estimate | None, best: Estimate | None) -> Estimate:
    assert mine is not None and best is not None
    return estimate(differences(mine.values, best.values))


def as_rows(summaries: Mapping[str, Summary]) -> list[list[str]]:
    """Return headings and one line of cells per method; a metric that no method has is left out."""
    shown = [key for key in COLUMNS if any(summary.metrics[key] for summary in summaries.values())]
    lines = [["method", *(COLUMNS[key] for key in shown), "balanced, to the best"]]
    for name, summary in summaries.items():
        values = [summary.metrics[key] for key in shown]
        lines.append([name, *("-" if value is None else str(value) for value in values), summary.verdict])
    return lines


def as_markdown(summaries: Mapping[str, Summary]) -> str:
    """Return the same as a table in Markdown."""
    head, *lines = as_rows(summaries)
    return markdown_table(head, lines) + "\n"
