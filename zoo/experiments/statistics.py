"""Statistics over seeds and over test images.

`±` stands for one thing: the sample standard deviation over seeds. What the choice of the test images, or of
the seeds, makes uncertain is an interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from zoo.evaluation.metrics import mean_interval


class Summary(NamedTuple):
    """One figure over seeds.

    Attributes:
        values: of each run.
        mean: of them.
        deviation: sample standard deviation; None for a single run.
    """

    values: tuple[float, ...]
    mean: float
    deviation: float | None

    def __str__(self) -> str:
        return self.text(1)

    def text(self, decimals: int) -> str:
        """Return `mean ± standard deviation`, or the mean of a single run."""
        spread = "" if self.deviation is None else f" ± {self.deviation:.{decimals}f}"
        return f"{self.mean:z.{decimals}f}{spread}"


def summarize(values: Sequence[float]) -> Summary:
    """Return mean and sample standard deviation of one or more values."""
    spread = statistics.stdev(values) if len(values) > 1 else None
    return Summary(tuple(values), statistics.fmean(values), spread)


class Difference(NamedTuple):
    """A difference of two means.

    Attributes:
        mean: of the differences.
        half_width: of the 95 % interval of the mean; None where the values say nothing of it.
    """

    mean: float
    half_width: float | None

    @property
    def interval(self) -> str:
        """`[low, high]`, or `-`."""
        if self.half_width is None:
            return "-"
        return f"[{figures(self.mean - self.half_width)}, {figures(self.mean + self.half_width)}]"


def paired(values: Sequence[float], others: Sequence[float]) -> Difference:
    """Return the mean of `values - others`, seed by seed, with its 95 % interval (Student's t).

    Runs of one seed share the images' order and the initial weights. The interval is of one comparison:
    nothing corrects for the number of comparisons.
    """
    differences = [round(a - b, 9) for a, b in zip(values, others, strict=True)]  # without rounding's share
    return Difference(*mean_interval(differences))


def paired_images(right: NDArray[np.bool_], other: NDArray[np.bool_]) -> Difference:
    """Return the difference of two accuracies on the same test images, in points, with its 95 % interval.

    The interval is 1.96 standard errors over the images: of the choice of these images alone. Another seed
    gives other weights, which is no part of it.

    Args:
        right: which images the one classifies correctly `[N]`.
        other: the same of the other `[N]`.
    """
    each = 100 * (right.astype(float) - other.astype(float))
    return Difference(float(each.mean()), float(1.96 * each.std(ddof=1) / math.sqrt(len(each))))


def tolerance(share: float, images: int, spread: tuple[float, int] | None, family: int, risk: float) -> float:
    """Return how far a share of one training may lie from that of another which is equally good.

    The standard error of the difference of two shares p of n images is sqrt(2 p (1 - p) / n). Two trainings
    differ besides by their seeds and by rounding: with their standard deviation s over k seeds the squared
    standard error grows by 2 s^2, and the quantile is Student's with k - 1 degrees of freedom. All figures
    are judged together (Bonferroni): an equally good training fails in any of them with a probability of
    `risk` at most.

    Args:
        share: p, from 0 to 1.
        images: n; 0 for a number that is no share of images.
        spread: standard deviation s of the share over seeds, and k; None where it is not known.
        family: how many figures are judged.
        risk: of all of them together.
    """
    share = min(max(share, 0.0), 1.0)
    variance = 2 * share * (1 - share) / images if images else 0.0
    chance = 1 - risk / (2 * family)
    if spread is None:
        return float(stats.norm.ppf(chance)) * math.sqrt(variance)
    deviation, seeds = spread
    return float(stats.t.ppf(chance, seeds - 1)) * math.sqrt(variance + 2 * deviation**2)


def figures(value: float) -> str:
    """Write a number with three significant figures."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if not 1e-4 <= abs(value) < 1e6:
        return f"{value:.2e}"
    return f"{value:.{min(max(2 - math.floor(math.log10(abs(value))), 0), 6)}f}"


def duration(seconds: float) -> str:
    """Write a time with two or three figures."""
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
