"""A picture of what a training step costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from zoo.evaluation.figures.style import COLORS, INK, figure_to, grid


def plot_profile(parts: Mapping[str, float], path: Path | str, *, title: str, caption: str) -> None:
    """Draw the parts of a step as bars from top to bottom, in the order in which they happen.

    Args:
        parts: seconds of each, by what to call it.
        path: .png or .pdf.
        title: heading of the figure.
        caption: what was measured, and where.
    """
    names, values = list(parts), [1e3 * seconds for seconds in parts.values()]
    total = sum(values)
    with figure_to(path, (6.4, 0.32 * len(parts) + 1.1), caption, title) as figure:
        axes = figure.subplots()
        axes.barh(range(len(parts)), values, color=COLORS[0], height=0.7)
        for row, value in enumerate(values):
            axes.annotate(
                f"{value:,.1f} ms  {value / total:.1%}",
                (value, row),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
                color=INK,
            )
        axes.set_yticks(range(len(parts)), names)
        axes.invert_yaxis()
        axes.set_xlim(0, 1.25 * max(values))
        axes.set_xlabel("ms a step")
        grid(axes, "x")
