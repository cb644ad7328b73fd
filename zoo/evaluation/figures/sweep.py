"""The picture of a sweep: every run, and each point's mean with its interval, against what was varied."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes

from zoo.evaluation.figures.style import COLORS, COLUMN, MARKERS, caption_height, figure_to, grid
from zoo.evaluation.results.comparison import LEVEL
from zoo.evaluation.results.trend import Trend

_WIDTH, _HEIGHT = COLUMN, 2.3  # inches of a panel
_STYLES = ("-", "--", ":", "-.")
_LETTERS = 26  # of a line beside an axis
_MOST_LINES = 8
_MOST_TICKS = 8
_CHARACTERS = 34  # of all tick labels side by side
_DECADE = 10.0


def plot_sweep(
    panels: Mapping[str, Mapping[str, Trend]],
    paths: Path | str | Sequence[Path],
    *,
    axis: str,
    labels: Sequence[str],
    values: Mapping[str, float] | None = None,
    about: str = "",
    title: str | None = None,
    columns: int | None = None,
) -> str:
    """Draw one panel for each number, and in it a line for each value of a second axis; return the caption.

    Args:
        panels: trends by line, by the words for the number, with its unit.
        paths: .png, .svg or .pdf, or several of them.
        axis: what was varied.
        labels: its values, in order.
        values: what they stand for, where they are numbers. They are laid on a logarithmic axis where they
            span a decade or more, or their distances from 1 do, as those of momenta.
        about: data, seeds and the like, for the caption.
        title: heading of the figure.
        columns: of panels; by their number when None.
    """
    columns = columns or (1 if len(panels) <= 3 else 2)
    rows = math.ceil(max(len(panels), 1) / columns)
    lines = list(dict.fromkeys(line for trends in panels.values() for line in trends))
    drawn = lines[:_MOST_LINES]
    seeds = max(
        (len(e.values) for ts in panels.values() for t in ts.values() for e in t.points.values()), default=1
    )
    caption = f"{about}. " if about else ""
    caption += f"Dots: each of {seeds} seeds; marks: their means" if seeds > 1 else "One seed"
    caption += f"; bars: their {LEVEL:.0%} intervals (Student's t)." if seeds > 1 else "."
    if len(lines) > len(drawn):
        caption += f" Left out: {', '.join(lines[_MOST_LINES:])}."
    places, name, ticks = _places(axis, labels, values)
    legend = 0.25 * math.ceil(len(drawn) / 2) if len(drawn) > 1 else 0.0
    size = (_WIDTH * columns, _HEIGHT * rows + caption_height(caption, _WIDTH * columns) + legend)
    with figure_to(paths, size, caption, title) as figure:
        grid_of = figure.subplots(rows, columns, squeeze=False)
        flat = [axes for row in grid_of for axes in row]
        for axes in flat[len(panels) :]:
            axes.remove()
        for axes, (words, trends) in zip(flat, panels.items(), strict=False):
            for number, line in enumerate(drawn):
                if line in trends:
                    _draw(axes, trends[line], places, number, len(drawn), line, joined=values is not None)
            axes.set_ylabel(textwrap.fill(words, _LETTERS))
            axes.set_xlabel(name)
            axes.set_xticks([places[label] for label in ticks], ticks)
            axes.set_xticks([], minor=True)
            span = max(places.values()) - min(places.values()) or 1.0
            aside = span * (0.2 if values is None else 0.08)  # words need more room than numbers
            axes.set_xlim(min(places.values()) - aside, max(places.values()) + aside)
            axes.margins(y=0.12)
            if "%" in words:  # an interval may reach beyond what can be
                low, high = axes.get_ylim()
                axes.set_ylim(max(low, -2.0), min(high, 102.0))
            grid(axes, "y")
        figure.align_ylabels()
        if len(drawn) > 1:
            handles, names = flat[0].get_legend_handles_labels()
            figure.legend(handles, names, loc="outside upper left", ncols=2)
    return caption


def _draw(
    axes: Axes, trend: Trend, places: Mapping[str, float], number: int, count: int, line: str, *, joined: bool
) -> None:
    """Draw what belongs to one value of the second axis, a little beside the others; `joined` by a line."""
    span = max(places.values()) - min(places.values()) or 1.0
    aside = 0.015 * span * (number - (count - 1) / 2)
    color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
    at = [places[label] + aside for label in trend.points]
    for place, found in zip(at, trend.points.values(), strict=True):
        axes.plot(
            [place + 0.02 * span] * len(found.values),
            found.values,
            "o",
            color=color,
            alpha=0.45,
            markersize=2.6,
            markeredgewidth=0,
        )
    axes.errorbar(
        at,
        [found.mean for found in trend.points.values()],
        yerr=[found.half_width or 0.0 for found in trend.points.values()],
        color=color,
        marker=marker,
        linestyle=_STYLES[number % len(_STYLES)] if joined else "none",
        linewidth=1.1,
        markersize=4,
        elinewidth=0.9,
        capsize=2,
        label=line or None,
    )


def _places(
    axis: str, labels: Sequence[str], values: Mapping[str, float] | None
) -> tuple[dict[str, float], str, list[str]]:
    """Return where each value lies, the axis's name, and which values are written below it."""
    if values is None:
        return {label: float(place) for place, label in enumerate(labels)}, axis, list(labels)
    ordered = sorted(labels, key=lambda label: values[label])
    low, high = values[ordered[0]], values[ordered[-1]]
    if low > 0 and high / low >= _DECADE:
        places, scale = {label: math.log10(values[label]) for label in ordered}, " (log scale)"
    elif low >= 0 and high < 1 and (1 - low) / (1 - high) >= _DECADE:
        places = {label: -math.log10(1 - values[label]) for label in ordered}
        scale = f" (log scale of 1 - {axis})"
    elif low >= 0 and high / min((v for v in values.values() if v > 0), default=high) >= _DECADE:
        places, scale = {label: float(place) for place, label in enumerate(ordered)}, " (not to scale)"
    else:
        places, scale = {label: values[label] for label in ordered}, ""
    return places, f"{axis}{scale}", _ticks(ordered, places)


def _ticks(ordered: Sequence[str], places: Mapping[str, float]) -> list[str]:
    """Return the values that can be written without touching: the ends, and between them what fits."""
    span = places[ordered[-1]] - places[ordered[0]] or 1.0
    kept = [ordered[0]]
    for label in ordered[1:]:
        room = (places[label] - places[kept[-1]]) / span * _CHARACTERS
        if room >= (len(label) + len(kept[-1])) / 2 + 1.5 and len(kept) < _MOST_TICKS:
            kept.append(label)
    if kept[-1] != ordered[-1]:
        if len(kept) > 1:
            kept.pop()
        kept.append(ordered[-1])
    return kept
