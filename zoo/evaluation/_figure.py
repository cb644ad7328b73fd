"""The look shared by every figure: white, small, readable in grey and by colour-blind people."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from zoo.errors import ZooError, did_you_mean
from zoo.files import write_atomic

# Okabe & Ito 2008 without its yellow (invisible on white), ordered so that neighbours differ in lightness,
# then three of Paul Tol's "muted" set. Ten classes at most are told apart by colour.
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
INK, FAINT = "#222222", "#8A8A8A"

# Set explicitly, so that a user's matplotlibrc or style cannot change a published figure.
_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 8.0,
    "axes.titlesize": 9.0,
    "axes.labelsize": 8.0,
    "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "savefig.facecolor": "white",
    "savefig.bbox": None,
    "axes.facecolor": "white",
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.grid": False,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "text.usetex": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.6,
    "pdf.fonttype": 42,
    "svg.fonttype": "path",  # looks the same where the font is not installed
    "svg.hashsalt": "zoo",
}
# What would make two equal figures differ as files.
_METADATA = {".png": {"Software": None}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}


@contextmanager
def figure_to(
    path: Path | str | Sequence[Path], size: tuple[float, float], caption: str, title: str | None
) -> Iterator[Figure]:
    """Give an empty figure of `size` inches, then write it to `path` (.png, .svg or .pdf) in one step.

    With several paths the same figure is written to each.

    Raises:
        ZooError: for a file of another kind, before anything is drawn; if it cannot be written.
    """
    paths = [Path(path)] if isinstance(path, (str, Path)) else [*path]
    for each in paths:
        if each.suffix not in _METADATA:
            hint = did_you_mean(each.suffix, _METADATA)
            found = f'figure "{each}": found the ending "{each.suffix}"'
            raise ZooError(f"{found}, expected .png, .svg or .pdf.{hint}")
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=size, dpi=200, layout="constrained")
        FigureCanvasAgg(figure)
        if title:
            figure.suptitle(title, fontsize=10, fontweight="bold", x=0.01, ha="left")
        caption = textwrap.fill(caption, int(17 * size[0]))  # characters of this font per inch
        figure.supxlabel(caption, fontsize=7, color="#555555", x=0.01, ha="left")
        yield figure
        for each in paths:
            _write(figure, each)
            _settle(figure)


def _settle(figure: Figure) -> None:
    """Leave everything where it was drawn: the next file shows the same, and nothing is computed again.

    Rounded, since the solver's last digits differ from run to run, and SVG's names are made of them.
    """
    figure.set_layout_engine("none")
    for axes in figure.axes:
        left, bottom, width, height = (round(edge, 6) for edge in axes.get_position(original=True).bounds)
        axes.set_position((left, bottom, width, height))


def _write(figure: Figure, path: Path) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix[1:], metadata=_METADATA[path.suffix])
    try:
        write_atomic(path, lambda temporary: temporary.write_bytes(buffer.getvalue()))
    except OSError as error:
        raise ZooError(f'figure "{path}" cannot be written: {error.strerror or error}') from None


def grid(axes: Axes, axis: Literal["both", "x", "y"] = "both") -> None:
    """Draw faint lines behind the data."""
    axes.grid(True, axis=axis)
    axes.tick_params(length=2)
