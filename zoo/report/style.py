"""The look that all figures share: white, small, readable in grey and by colour-blind people."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, fontManager
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

from zoo.errors import ZooError
from zoo.files import write_atomic, writing

# Okabe & Ito 2008 without its yellow (invisible on white), ordered so that neighbours differ in lightness,
# then three of Paul Tol's "muted" set. Ten classes at most are told apart by colour, in grey by the marker.
COLORS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#56B4E9",
    "#882255",
    "#CC79A7",
    "#333333",
    "#999933",
    "#AA4499",
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h")
INK, FAINT, PALE = "#222222", "#8A8A8A", "#D9D9D9"
SOLID, DASHED, DOTTED = "-", (0, (4, 1.5)), (0, (1, 1.2))

COLUMN = 3.4
"""Inches of a figure's width: a column of a paper. A telephone 360 CSS pixels wide has 326 for it."""
LETTERS, CELLS = 8.5, 7.6
"""Points of the smallest letters, and of numbers in cells: 11 and 10 CSS pixels on that telephone."""

_DPI = 200
# For letters that matplotlib's own font lacks, class names in Chinese for one, where one is installed.
_FALLBACKS = ("Noto Sans CJK SC", "WenQuanYi Micro Hei", "Microsoft YaHei", "PingFang SC", "Arial Unicode MS")
# Set explicitly, so that a user's matplotlibrc or style cannot change a published figure.
_STYLE: dict[str, Any] = {
    "font.size": LETTERS,
    "figure.titlesize": 9.5,
    "figure.titleweight": "bold",
    "axes.titlesize": 9.0,
    "axes.titlelocation": "left",
    "axes.labelsize": LETTERS,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": LETTERS,
    "ytick.labelsize": LETTERS,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 2,
    "ytick.major.size": 2,
    "legend.fontsize": LETTERS,
    "legend.frameon": False,
    "legend.borderpad": 0,
    "legend.labelspacing": 0.25,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.6,
    "text.color": INK,
    "text.parse_math": False,  # a class may be called "$"
    "svg.fonttype": "path",  # looks the same where the font is not installed
    "svg.hashsalt": "zoo",
}
# What would make two equal figures differ as files.
_METADATA: dict[str, dict[str, Any]] = {
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None},
    ".svg": {"Date": None},
}


def write_figure(make: Callable[[], Figure | None], *paths: Path, title: str | None = None) -> bool:
    """Write the figure that `make` returns to every path (.png, .svg or .pdf), each in one step.

    Equal figures are equal files, whatever the user's own settings of matplotlib.

    Returns:
        Whether there was a figure.

    Raises:
        ZooError: for another kind of file, or one that cannot be written.
    """
    for path in paths:
        if path.suffix not in _METADATA:
            raise ZooError(f'figure: found "{path}", expected a file that ends in {", ".join(_METADATA)}')
    fonts = ["DejaVu Sans", *(name for name in _FALLBACKS if name in fontManager.get_font_names())]
    defaults = {key: value for key, value in mpl.rcParamsDefault.items() if key != "backend"}
    with mpl.rc_context({**defaults, **_STYLE, "font.family": fonts}):
        figure = make()
        if figure is None:
            return False
        if title:
            title = "\n".join(textwrap.fill(line, 36) for line in title.splitlines())
            if figure.legends:  # the layout would put a figure's title on top of its legend
                (legend,) = figure.legends
                legend.set_title(title, FontProperties(weight="bold", size=_STYLE["figure.titlesize"]))
                legend.set_alignment("left")
            else:
                figure.suptitle(title, x=0.01, ha="left")
        for path in paths:
            buffer = io.BytesIO()
            figure.savefig(buffer, format=path.suffix[1:], dpi=_DPI, metadata=_METADATA[path.suffix])
            with writing(f'figure "{path}"'):
                write_atomic(path, partial(Path.write_bytes, data=buffer.getvalue()))
            # the layout's last digits differ from run to run, and names in an SVG are made of them
            figure.set_layout_engine("none")
            for axes in figure.axes:
                bounds = [round(edge, 6) for edge in axes.get_position(original=True).bounds]
                axes.set_position((bounds[0], bounds[1], bounds[2], bounds[3]))
    return True


def panels(
    heights: Sequence[float], legend: Sequence[Any] = (), *, columns: int = 1, sharex: bool = False
) -> tuple[Figure, list[Axes]]:
    """Return a figure, and its panels row by row: rows of so many inches each, under a legend."""
    labels = [str(handle.get_label()) for handle in legend]
    beside = 2 if all(len(label) <= 20 for label in labels) else 1
    above = 0.17 * -(-len(labels) // beside)
    figure = Figure((COLUMN, sum(heights) + above), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(heights), columns, squeeze=False, height_ratios=heights, sharex=sharex)
    if legend:
        figure.legend(handles=list(legend), loc="outside upper left", ncols=beside, handlelength=2.4)
    return figure, list(axes.ravel())


def decades(axis: Any) -> None:
    """Write plain numbers along a logarithmic axis: 1, 2 and 5 of each decade, of many decades the 1."""
    low, high = sorted(axis.get_view_interval())
    if high / low < 6:
        axis.set_major_locator(MaxNLocator(4))
    else:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 300 else (1,), numticks=12))
    axis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axis.set_minor_formatter(NullFormatter())


def positive(values: Any) -> Any:
    """Return values with what is not positive as NaN, for a logarithmic axis."""
    values = np.asarray(values, dtype=float)
    return np.where(values > 0, values, np.nan)


def shortened(text: str, longest: int) -> str:
    """Return a text of so many characters at most; what is too long ends in an ellipsis."""
    return text if len(text) <= longest else f"{text[: longest - 1].rstrip()}…"
