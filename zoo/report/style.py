"""The common style of all figures: white, small, readable in grey and for colour-blind people."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from zoo.report.subject import Subject

# Okabe & Ito 2008 without yellow, and three of Paul Tol's, ordered so that neighbours differ in lightness.
COLORS = (
    *("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9"),
    *("#882255", "#CC79A7", "#333333", "#999933", "#AA4499"),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h")
FAINT = "#8A8A8A"

Draw = Callable[[Sequence[Subject]], Figure]
# Fallback fonts for letters that matplotlib's own lacks, e.g. Chinese class names, if one is installed.
_FALLBACKS = ("Noto Sans CJK SC", "WenQuanYi Micro Hei", "Microsoft YaHei", "PingFang SC", "Arial Unicode MS")
_STYLE: dict[str, Any] = {
    "font.size": 8.5,
    "figure.titlesize": 9.5,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.edgecolor": FAINT,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#E4E4E4",
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 3.5,
    "text.parse_math": False,  # a class may be called "$"
    "svg.hashsalt": "zoo",
}
WIDTH = 3.4  # inches: a column of a paper


class Kind(NamedTuple):
    """A kind of figure: heading, explanation, test whether a subject has its data, what it lacks if not."""

    title: str
    reading: str
    has: Callable[[Subject], object]
    without: str
    draw: Draw


FIGURES: dict[str, Kind] = {}  # by function name, in the order of the report


def figure(title: str, has: Callable[[Subject], object], without: str) -> Callable[[Draw], Draw]:
    """Add a function to `FIGURES`, with its docstring as explanation, the common style and a legend."""

    def register(draw: Draw) -> Draw:
        @wraps(draw)
        def drawn(subjects: Sequence[Subject]) -> Figure:
            with styled():
                made = draw(subjects)
                handles: dict[str, Any] = {}
                for axes in made.axes:
                    for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                        handles.setdefault(label, handle)
                if len(handles) > 1:
                    columns = 2 if max(map(len, handles)) < 20 else 1
                    made.legend(handles.values(), handles, loc="outside lower left", ncols=columns)
            return made

        FIGURES[draw.__name__] = Kind(title, str(inspect.getdoc(draw)), has, without, drawn)
        return drawn

    return register


def styled() -> Any:
    """Return a context with only this style, independent of the user's matplotlib settings."""
    fonts = ["DejaVu Sans", *(name for name in _FALLBACKS if name in fontManager.get_font_names())]
    defaults = {key: value for key, value in mpl.rcParamsDefault.items() if key != "backend"}
    return mpl.rc_context({**defaults, **_STYLE, "font.family": fonts})


def panels(count: int, height: float, *, columns: int = 1, sharex: bool = False) -> tuple[Figure, list[Axes]]:
    """Return a figure and its panels, row by row, each `height` inches high."""
    rows = -(-count // columns)
    made = Figure((WIDTH, rows * height + 0.3), layout="constrained")
    axes_of = list(made.subplots(rows, columns, squeeze=False, sharex=sharex).ravel())
    for axes in axes_of[count:]:
        axes.remove()
    return made, axes_of[:count]


def groups_of(subjects: Sequence[Subject]) -> list[list[Subject]]:
    """Group subjects that differ only in the seed, in the order of their first ones."""
    found: dict[str, list[Subject]] = {}
    for subject in subjects:
        found.setdefault(subject.group, []).append(subject)
    return list(found.values())


def color_and_marker(place: int) -> dict[str, Any]:
    """Return a group's colour, and its marker, which distinguishes it in greyscale."""
    return {"color": COLORS[place % len(COLORS)], "marker": MARKERS[place % len(MARKERS)]}


def draw_lines(axes: Axes, lines: pd.DataFrame, place: int, label: str, dash: str = "-") -> None:
    """Draw the mean over a group's seeds (columns) as a line."""
    mean = lines.mean(axis=1)
    every = max(len(mean) // 6, 1)  # a few markers
    axes.plot(mean.index, mean, linestyle=dash, label=label, markevery=every, **color_and_marker(place))


def plain_log(axis: Any) -> None:
    """Label a logarithmic axis with plain numbers: 1, 2 and 5 of each decade."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
    axis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axis.set_minor_formatter(NullFormatter())
