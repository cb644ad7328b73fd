"""Means with intervals as the report of `zoo.diagnose` writes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from zoo.evaluation.metrics import mean_interval
from zoo.release.evaluations import ACCURACIES

COLUMNS = {**ACCURACIES, "calibration_error": "calibration error"}
"""What a comparison shows of a classifier's metrics, all in percent, with its heading."""


class Estimate(NamedTuple):
    """A mean over seeds, half the width of its 95 % interval (None where there is none), and the values."""

    mean: float
    half_width: float | None
    values: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.mean:z.1f}" + ("" if self.half_width is None else f" ± {self.half_width:.1f}")

    def in_figures(self) -> str:
        """Write it with three significant figures, or to the second figure of its interval."""
        return in_figures(self.mean, self.half_width)


def estimate(values: Sequence[float]) -> Estimate:
    """Return mean and 95 % interval (Student's t)."""
    return Estimate(*mean_interval(values), tuple(values))


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
