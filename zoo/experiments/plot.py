"""Pictures of a table, a comparison and a sweep: every run as a dot, means with their standard deviation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.figure import Figure

from zoo.experiments.statistics import Summary, summarize

if TYPE_CHECKING:
    from zoo.experiments.table import Results

_DOT, _MEAN, _PUBLISHED = "#8a8a8a", "#0072b2", "#d55e00"  # told apart by who is colour-blind


def plot_rows(results: Results, files: Sequence[Path]) -> bool:
    """Draw a line for each row of a table, and a panel for each accuracy; return whether there is one."""
    rows = [row for row in results.rows if row.figures]
    if rows:
        frame = results.frame()
        frame = frame.loc[[index for index, row in enumerate(results.rows) if row.figures]]
        names = frame["method"] + ", " + frame["recipe"].str.partition(".")[2] + "\n" + frame["data"]
        beside = [results.beside(row) for row in rows]
        published = [(each.metric, each.value) if each else None for each in beside]
        draw_rows(list(names), [row.figures for row in rows], files, published)
    return bool(rows)


def draw_rows(
    names: Sequence[str],
    rows: Sequence[dict[str, Summary]],
    files: Sequence[Path],
    published: Sequence[tuple[str, float] | None] = (),
) -> None:
    """Draw a line for each row and a panel for each metric.

    Args:
        names: of the rows.
        rows: percentages by metric.
        files: .png or .svg.
        published: metric and value of each row, where there is one.
    """
    metrics = list(dict.fromkeys(metric for row in rows for metric in row))
    figure = Figure(figsize=(4.0 + 1.6 * len(metrics), 0.9 + 0.36 * len(rows)), layout="constrained")
    panels = figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
    for axes, metric in zip(panels, metrics, strict=True):
        for place, row in enumerate(rows):
            if metric in row:
                axes.plot(
                    row[metric].values, [place] * len(row[metric].values), "o", color=_DOT, markersize=3
                )
                mean, deviation = row[metric].mean, row[metric].deviation
                axes.errorbar(mean, place, xerr=deviation, fmt="D", color=_MEAN, markersize=4, capsize=2)
            beside = published[place] if published else None
            if beside is not None and beside[0] == metric:
                axes.plot([beside[1]] * 2, [place - 0.35, place + 0.35], color=_PUBLISHED)
        axes.set_title(metric.replace("_", " "), fontsize=9)
        axes.set_xlabel("%", fontsize=8)
        axes.grid(axis="x", alpha=0.3)
        axes.tick_params(labelsize=7)
    panels[0].set_yticks(range(len(rows)), names, fontsize=7)
    panels[0].set_ylim(len(rows) - 0.5, -0.5)
    legend = "dots: seeds; diamonds: mean ± standard deviation"
    figure.supxlabel(legend + ("; strokes: published" if any(published) else ""), fontsize=7)
    for file in files:
        figure.savefig(file, dpi=200)


def plot_sweep(numbers: pd.DataFrame, files: Sequence[Path]) -> None:
    """Draw a panel for each number: every run, and each point's mean ± standard deviation.

    Args:
        numbers: by point and seed, see `zoo.experiments.sweep.numbers`.
        files: .png or .svg.
    """
    points = list(dict.fromkeys(numbers.index.get_level_values("point")))
    count = len(numbers.columns)
    figure = Figure(figsize=(3.4 * min(count, 3), 2.6 * -(-count // 3)), layout="constrained")
    panels = figure.subplots(-(-count // 3), min(count, 3), squeeze=False).flat
    for axes in panels:
        axes.set_visible(False)
    for axes, (name, values) in zip(panels, numbers.items(), strict=False):
        axes.set_visible(True)
        for place, point in enumerate(points):
            there = values.xs(point, level="point").dropna()
            if len(there):
                mean = summarize(list(there))
                axes.plot([place] * len(there), there, "o", color=_DOT, markersize=3)
                axes.errorbar(
                    place, mean.mean, yerr=mean.deviation, fmt="D", color=_MEAN, markersize=4, capsize=2
                )
        axes.set_title(str(name), fontsize=8)
        axes.set_xticks(range(len(points)), points, fontsize=7, rotation=30 if len(points) > 4 else 0)
        axes.tick_params(axis="y", labelsize=7)
        axes.grid(axis="y", alpha=0.3)
    for file in files:
        figure.savefig(file, dpi=200)
