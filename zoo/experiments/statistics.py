"""Statistics over seeds, and their picture.

`±` stands for one thing: the sample standard deviation over seeds. What the choice of the seeds, or of the
test images, makes uncertain is an interval.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from zoo.evaluation.metrics import mean_interval

_DOT, _MEAN = "#8a8a8a", "#0072b2"  # told apart by who is colour-blind


def mean_text(values: Sequence[float], form: str) -> str:
    """Return `mean ± sample standard deviation` in a format, the mean of a single value, or `-` for none."""
    if not values:
        return "-"
    spread = f" ± {statistics.stdev(values):{form}}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):{form}}{spread}"


def means(numbers: pd.DataFrame, form: str) -> pd.DataFrame:
    """Return the `mean_text` of each point: a row for each run, indexed by `point` and `seed`, came in."""
    return numbers.groupby(level="point", sort=False).agg(lambda each: mean_text(list(each.dropna()), form))


def differences(numbers: pd.DataFrame, to: str) -> pd.DataFrame:
    """Return the mean difference of each point to the point `to`, seed by seed, as `-2.8 [-5.6, 0.0]`.

    Runs of one seed share the images' order and the initial weights. In brackets is the 95 % interval of the
    mean (Student's t), where there are several seeds that differ. Each is of one comparison: nothing corrects
    for their number. One that holds 0 does not tell two points apart. `numbers` are as for `means`.
    """
    base = numbers.xs(to, level="point")

    def cell(column: pd.Series) -> str:
        apart = (column.droplevel("point") - base[column.name]).dropna().round(9)
        if not len(apart) or column.index.get_level_values("point")[0] == to:
            return "-"
        mean, half = mean_interval(list(apart))
        return f"{mean:z.3g}" + ("" if half is None else f" [{mean - half:.3g}, {mean + half:.3g}]")

    return numbers.groupby(level="point", sort=False).agg(cell)


def duration(seconds: float) -> str:
    """Write a time with two or three figures."""
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def draw_numbers(numbers: pd.DataFrame, file: Path) -> None:
    """Draw a line for each point and a panel for each number: every run as a dot, and means.

    `numbers` are as for `means`; the file is .png or .svg.
    """
    places, points = pd.factorize(numbers.index.get_level_values("point"))
    seeds = numbers.groupby(level="point", sort=False)
    size = (4.0 + 1.6 * len(numbers.columns), 0.9 + 0.36 * len(points))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(numbers.columns), sharey=True, squeeze=False)[0]
    for axes, name in zip(panels, numbers, strict=True):
        mean, deviation = seeds[name].mean(), seeds[name].std()
        axes.plot(numbers[name], places, "o", color=_DOT, markersize=3)
        axes.errorbar(mean, range(len(points)), xerr=deviation, fmt="D", color=_MEAN, markersize=4, capsize=2)
        axes.set_title(str(name).replace("_", " "), fontsize=8, wrap=True)
        axes.grid(axis="x", alpha=0.3)
        axes.tick_params(axis="x", labelsize=7)
    panels[0].set_yticks(range(len(points)), points, fontsize=7)
    panels[0].set_ylim(len(points) - 0.5, -0.5)
    figure.supxlabel("dots: seeds; diamonds: mean ± standard deviation", fontsize=7)
    figure.savefig(file, dpi=200)
