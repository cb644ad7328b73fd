"""The look shared by every figure: white, small, readable in grey and by colour-blind people."""

from __future__ import annotations

import functools
import io
import math
import re
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, fontManager, get_font
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Text
from matplotlib.textpath import TextPath
from matplotlib.transforms import Bbox

from zoo.errors import ZooError, ZooWarning, did_you_mean
from zoo.files import write_atomic, writing

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
INK, QUIET, FAINT = "#222222", "#555555", "#8A8A8A"

COLUMN = 3.4
"""Inches of a figure's width: a column of a paper. A telephone 360 CSS pixels wide has 326 for it."""

SMALL, CELL = 8.5, 7.6
"""Points of the smallest letters, and of numbers in cells: 11 and 10 CSS pixels on that telephone."""

BARE = ".bare"
"""Ends the stem of a file that is written without title and caption, as in `scores.bare.svg`."""

_DPI = 200
_TITLE = 9.5  # points
_MARGIN = 0.01  # of the width, left of title and caption

_FAMILY = "DejaVu Sans"  # comes with matplotlib
# For letters that it lacks, where one is installed: of Linux, Windows and macOS.
_FALLBACKS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans SC",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Droid Sans Fallback",
    "Microsoft YaHei",
    "SimHei",
    "Malgun Gothic",
    "PingFang SC",
    "PingFang HK",
    "Hiragino Sans GB",
    "Heiti TC",
    "Apple SD Gothic Neo",
    "Noto Sans Devanagari",
    "Noto Sans Thai",
    "Nirmala UI",
    "Arial Unicode MS",
)

# Set explicitly, so that a user's matplotlibrc or style cannot change a published figure.
_STYLE = {
    "font.family": _FAMILY,
    "font.size": SMALL,
    "axes.titlesize": 9.0,
    "axes.labelsize": SMALL,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
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

    With several paths the same figure is written to each; to one whose stem ends in `BARE` without title and
    caption, for a page that has them as text. Letters that no font has, of others' class names, say, become
    boxes; a `UserWarning` says so once for each script.

    Raises:
        ZooError: for a file of another kind, before anything is drawn; if it cannot be written.
    """
    paths = [Path(path)] if isinstance(path, (str, Path)) else [*path]
    for each in paths:
        if each.suffix not in _METADATA:
            hint = did_you_mean(each.suffix, _METADATA)
            found = f'figure "{each}": found the ending "{each.suffix}"'
            raise ZooError(f"{found}, expected .png, .svg or .pdf.{hint}")
    with mpl.rc_context(_STYLE | {"font.family": [*_families()]}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # one for each letter: see `_tell_boxes`
        width, height = (math.ceil(_DPI * inches) / _DPI for inches in size)  # whole pixels
        figure = Figure(figsize=(width, height), dpi=_DPI, layout="constrained")
        FigureCanvasAgg(figure)
        style: dict[str, Any] = {"x": _MARGIN, "ha": "left", "parse_math": False}
        above = None
        if title:
            above = figure.suptitle(folded(title, size[0]), fontsize=_TITLE, fontweight="bold", **style)
        below = figure.supxlabel(wrapped(caption, size[0]), fontsize=SMALL, color=QUIET, **style)
        yield figure
        for each in sorted(paths, key=_is_bare):  # nothing comes back that was taken away
            _write(figure, each, _without(figure, above, below) if _is_bare(each) else None)
            _settle(figure)
    _tell_boxes(figure)


def _families() -> tuple[str, ...]:
    """Return the fonts that letters are looked for in, in this order: of those that are installed."""
    installed = {*fontManager.get_font_names()}
    return (_FAMILY, *(name for name in _FALLBACKS if name in installed))


def _tell_boxes(figure: Figure) -> None:
    """Warn of letters that no font has, once for each script: a report has many figures of the same names."""
    every = {letter for text in figure.findobj(Text) for letter in text.get_text() if not letter.isspace()}
    lacking: dict[str, list[str]] = {}
    for letter in sorted(every - _letters(_families())):
        script = unicodedata.name(letter, "UNKNOWN").partition(" ")[0]  # CJK, HANGUL, ...
        lacking.setdefault("symbols" if unicodedata.category(letter) == "So" else script, []).append(letter)
    new = {script: letters for script, letters in lacking.items() if script not in _told}
    if new:
        _told.update(new)
        found = "; ".join(f'{script} ("{"".join(letters[:10])}")' for script, letters in new.items())
        warnings.warn(
            f"figures: found letters that no installed font has: {found}; they are drawn as boxes. "
            f"Expected, where they are wanted, one of the fonts {', '.join(_FALLBACKS)}; once it is "
            f"installed, delete matplotlib's list of fonts (fontlist-*.json in {mpl.get_cachedir()}).",
            ZooWarning,
            stacklevel=4,
        )


_told: set[str] = set()


@functools.lru_cache(8)
def _letters(families: tuple[str, ...]) -> frozenset[str]:
    """Return all letters of some fonts."""
    fonts = [get_font(fontManager.findfont(FontProperties(family=name))) for name in families]
    return frozenset(chr(code) for font in fonts for code in font.get_charmap())


def caption_height(caption: str, width: float) -> float:
    """Return the inches that a caption takes up below a figure of `width` inches."""
    return 0.147 * len(wrapped(caption, width).splitlines()) + 0.1


def title_height(title: str, width: float) -> float:
    """Return the inches that a title takes up above a figure of `width` inches."""
    return 0.165 * len(folded(title, width).splitlines()) + 0.1


def folded(title: str, width: float, points: float | None = None) -> str:
    """Break a title into lines that a figure has room for, names of weights at a dot or an underscore.

    Args:
        title: or another text of few words, then with the `points` of its letters.
        width: inches.
        points: of letters that are not bold; without, those of a title, which are.
    """
    bold, points = points is None, _TITLE if points is None else points
    broken: list[str] = []
    for line in title.split("\n"):
        parts = re.findall(r"[^\s_.]+[_.]*|[_.]+|\s+", line)
        broken += _lines(parts, width, points, between="", bold=bold) or [line]
    return "\n".join(broken)


def wrapped(text: str, width: float, points: float = SMALL) -> str:
    """Break a text into lines that a figure, or a part of one, of `width` inches has room for."""
    return "\n".join(_lines(text.split(), width, points))


def fitted(text: str, inches: float, points: float = SMALL) -> str:
    """Return a text that is no wider: what is too long ends in an ellipsis."""
    for length in range(len(text), 0, -1):
        shown = text if length == len(text) else f"{text[:length].rstrip()}…"
        if _inches(shown, points) <= inches:
            return shown
    return text[:1]


def _lines(
    words: Sequence[str], width: float, points: float, *, between: str = " ", bold: bool = False
) -> list[str]:
    """Put words into lines that a figure of `width` inches has room for."""
    room = 0.97 * (width - 2 * _MARGIN * width)  # a letter begins at a whole pixel: a little further right
    found: list[str] = []
    taken = 0.0
    for word in (piece for each in words for piece in _pieces(each, room, points, bold=bold)):
        needed = _inches(word, points, bold=bold)
        joined = taken + needed + (_inches(between, points) if between else 0.0)
        if found and joined <= room:
            found[-1] += between + word
            taken = joined
        elif word.strip():
            found.append(word)
            taken = needed
    return [line.rstrip() for line in found]


def _pieces(word: str, room: float, points: float, *, bold: bool) -> Iterator[str]:
    """Cut a word that is wider than a line, a path, say."""
    while len(word) > 1 and _inches(word, points, bold=bold) > room:
        fits = range(len(word) - 1, 1, -1)
        end = next((n for n in fits if _inches(word[:n], points, bold=bold) <= room), 1)
        yield word[:end]
        word = word[end:]
    yield word


def _inches(text: str, points: float, *, bold: bool = False) -> float:
    """Return about how wide a text is: the sum of its letters."""
    families = _families()
    return sum(_advance(letter, bold, families) for letter in text) * points / 72


@functools.lru_cache(4096)
def _advance(letter: str, bold: bool, families: tuple[str, ...]) -> float:
    """Return how far a letter moves the next one, in ems."""
    font = FontProperties(family=[*families], weight="bold" if bold else "normal")
    # between two others, since a path ends with its ink
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        ends = [
            float(TextPath((0, 0), each.replace("$", r"\$"), size=1, prop=font).get_extents().x1)
            for each in (f"l{letter}l", "ll")
        ]
    return ends[0] - ends[1]


def _is_bare(path: Path) -> bool:
    return path.stem.endswith(BARE)


def _settle(figure: Figure) -> None:
    """Leave everything where it was drawn: the next file shows the same, and nothing is computed again.

    Rounded, since the solver's last digits differ from run to run, and SVG's names are made of them.
    """
    figure.set_layout_engine("none")
    for axes in figure.axes:
        left, bottom, width, height = (round(edge, 6) for edge in axes.get_position(original=True).bounds)
        axes.set_position((left, bottom, width, height))


def _write(figure: Figure, path: Path, area: Bbox | None) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix[1:], metadata=_METADATA[path.suffix], bbox_inches=area)
    with writing(f'figure "{path}"'):
        write_atomic(path, lambda temporary: temporary.write_bytes(buffer.getvalue()))


def _without(figure: Figure, above: Text | None, below: Text) -> Bbox:
    """Hide title and caption once all is laid out, and return where the rest is, in inches."""
    if isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine):
        figure.draw_without_rendering()
        _settle(figure)
    width, height = figure.get_size_inches()
    bottom, top = below.get_window_extent().y1, height * figure.dpi
    below.set_visible(False)
    if above is not None:
        top = above.get_window_extent().y0
        above.set_visible(False)
    # whole pixels, so that what is left looks as it did
    return Bbox([[0.0, math.ceil(bottom) / figure.dpi], [float(width), math.floor(top) / figure.dpi]])


def grid(axes: Axes, axis: Literal["both", "x", "y"] = "both") -> None:
    """Draw faint lines behind the data."""
    axes.grid(True, axis=axis)
    axes.tick_params(length=2)
