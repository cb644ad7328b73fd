"""The picture of a table of results: accuracy by shot of each method, every seed, and what was published."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes

from zoo.evaluation._figure import COLORS, FAINT, INK, figure_to, grid
from zoo.evaluation.results import GROUPS
from zoo.evaluation.results_table import Line

_MOST_ROWS = 40
_LETTERS = 40  # of a line of a row's name


def plot_results(shown: Sequence[Line], paths: Path | str | Sequence[Path]) -> bool:
    """Draw one line for each row and one panel for each metric that any row has.

    Args:
        shown: rows in words, in the order from top to bottom.
        paths: .png, .svg or .pdf, or several of them.

    Returns:
        Whether there was something to draw.
    """
    measured = [line for line in shown if line.row.figures]
    panels = [name for name in GROUPS if any(name in line.row.figures for line in measured)]
    if not measured:
        return False
    drawn, more = measured[:_MOST_ROWS], len(measured) - _MOST_ROWS
    names = labels(drawn)
    several = any(line.row.measured > 1 for line in drawn)
    data = dict.fromkeys(line.data for line in drawn)
    used = dict.fromkeys(line.row.evaluated.protocol for line in drawn if line.row.evaluated is not None)
    caption = f"{next(iter(data))}, test split" if len(data) == 1 else "Test splits"
    caption += f", measured by {' or '.join(used)}. Dots: single seeds"
    caption += "; diamonds: their means, bars: ± sample standard deviation" if several else ""
    if any(line.published for line in drawn):
        caption += "; orange strokes: published figures, for what differs see the table"
    if len(panels) > 1:
        caption += ". Many, medium, few: classes with > 100, 20 to 100, < 20 training images"
    caption += f". {more} more rows are in the table" if more > 0 else ""
    height = 0.13 + 0.13 * max(name.count("\n") + 1 for name in names)  # inches of a row
    size = (2.4 + 1.35 * max(len(panels), 2), max(0.9 + height * len(drawn), 1.6))
    with figure_to(paths, size, f"{caption}.", None) as figure:
        axes_of = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, metric in zip(axes_of, panels, strict=True):
            for place, line in enumerate(drawn):
                _draw(axes, place, line, metric)
            axes.set_title(GROUPS[metric], loc="left")
            axes.set_xlabel("top-1 accuracy (%)")
            low, high = axes.get_xlim()
            axes.set_xlim(max(low, -1.0), min(high, 101.0))
            grid(axes, "x")
        axes_of[0].set_yticks(range(len(names)), names, color=INK)
        axes_of[0].set_ylim(len(names) - 0.5, -0.5)
    return True


def _draw(axes: Axes, place: int, line: Line, metric: str) -> None:
    found, published = line.row.figures.get(metric), line.published
    if published is not None and published.metric == metric:
        axes.plot([published.value] * 2, [place - 0.36, place + 0.36], color=COLORS[3], linewidth=1.8)
    if found is None:
        return
    single = found.deviation is None
    axes.plot(
        found.values,
        [place] * len(found.values),
        "o",
        color=COLORS[0] if single else FAINT,
        markersize=4 if single else 2.8,
        zorder=3,
    )
    if not single:
        axes.errorbar(
            found.mean,
            place,
            xerr=found.deviation,
            fmt="D",
            color=COLORS[0],
            markersize=4,
            elinewidth=1.2,
            capsize=2,
        )


def labels(shown: Sequence[Line]) -> list[str]:
    """Return short names for rows: the method, and of data and recipe what tells them apart."""
    data = len({line.data for line in shown}) > 1
    found = [f"{line.method}, {line.data}" if data else line.method for line in shown]
    for text in {each for each in found if found.count(each) > 1}:
        places = [place for place, each in enumerate(found) if each == text]
        told = _told_apart([shown[place].recipe for place in places])
        for place, words in zip(places, told, strict=True):
            found[place] = f"{found[place]}, {words}" if words else f"{found[place]}, row {place + 1}"
    return [textwrap.fill(text, _LETTERS) for text in found]


def _told_apart(recipes: Sequence[str]) -> list[str]:
    """Leave out what all have: the architecture or the whole name, and values."""
    names = {each.partition(", ")[0] for each in recipes}
    alike = len({name.partition(".")[0] for name in names}) == 1
    words = [each.split(", ") for each in recipes]
    shared = {word for word in words[0] if all(word in each for each in words)}
    kept = [", ".join(word for word in each if word not in shared) for each in words]
    return [each.partition(".")[2] if alike and len(names) > 1 else each for each in kept]
