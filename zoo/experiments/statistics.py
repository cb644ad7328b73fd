"""Statistics over seeds, and their picture.

`±` stands for one thing: the sample standard deviation over seeds. What the choice of the seeds, or of the
test images, makes uncertain is an interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from zoo.evaluation.metrics import mean_interval

_DOT, _MEAN = "#8a8a8a", "#0072b2"  # told apart by who is colour-blind


def mean_text(values: Sequence[float] | pd.Series, form: str = ".3g") -> str:
    """Return `mean ± sample standard deviation`, the mean of a single value, or `-` for none; NaN is none."""
    known = pd.Series(values, dtype=float).dropna()
    if known.empty:
        return "-"
    return f"{known.mean():{form}}" + (f" ± {known.std():{form}}" if len(known) > 1 else "")


def differences(numbers: pd.DataFrame, to: str) -> pd.DataFrame:
    """Return the mean difference of each point to the point `to`, seed by seed, as `-2.8 [-5.6, 0.0]`.

    Runs of one seed share the images' order and the initial weights. In brackets is the 95 % interval of the
    mean (Student's t), where there are several seeds that differ. Each is of one comparison: nothing corrects
    for their number. One that holds 0 does not tell two points apart. `numbers` has a row for each run,
    indexed by `point` and `seed`.
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
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def draw_numbers(numbers: pd.DataFrame, file: Path) -> None:
    """Draw a line for each point and a panel for each number: every run as a dot, and means.

    `numbers` are as for `differences`; the file is .png or .svg.
    """
    points = numbers.groupby(level="point", sort=False)
    means, deviations = points.mean(), points.std()
    size = (4.0 + 1.6 * len(means.columns), 0.9 + 0.36 * len(means))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(means.columns), sharey=True, squeeze=False)[0]
    for axes, name in zip(panels, numbers, strict=True):
        axes.plot(numbers[name], numbers.index.get_level_values("point"), "o", color=_DOT, markersize=3)
        bars = {"fmt": "D", "color": _MEAN, "markersize": 4, "capsize": 2}
        axes.errorbar(means[name], means.index, xerr=deviations[name], **bars)
        axes.set_title(str(name).replace("_", " "), fontsize=8, wrap=True)
        axes.grid(axis="x", alpha=0.3)
        axes.tick_params(labelsize=7)
    panels[0].set_ylim(len(means) - 0.5, -0.5)  # which all panels share
    figure.supxlabel("dots: seeds; diamonds: mean ± standard deviation", fontsize=7)
    figure.savefig(file, dpi=200)
