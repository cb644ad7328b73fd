"""A map of which classes a model holds to be alike: the cosine similarity of their learned centers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from numpy.typing import NDArray
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from zoo.errors import DataError
from zoo.evaluation.figures.names import fitted_names, shortened
from zoo.evaluation.figures.style import (
    CELL,
    COLUMN,
    INK,
    SMALL,
    caption_height,
    figure_to,
    title_height,
)
from zoo.modules.centers import Centers

_WRITTEN = 20  # of so many classes at most, the numbers are written into the cells
_NAMED = 200  # of so many at most, every class has its name
_NAMELESS = 5.0  # inches of a map without names, a thousand pixels
_LONGEST_NAME = 24
_IN_COLUMN, _CELLS = 16, 10  # classes up to which a column's width has room for names, and for numbers
_NAME = 0.95  # inches of a name beside a map in a column
_LETTER = 0.08  # inches of a digit
_PAIRS = 6  # of more classes, so many pairs that are most alike are named below
MOST_DRAWN = 1000
"""Classes up to which a training draws this by itself: time and memory grow with their square."""


def plot_class_map(
    centers: Centers,
    path: Path | str,
    *,
    class_names: Sequence[str] | None = None,
    title: str | None = None,
    data: str = "",
    whole: bool = True,
) -> None:
    """Draw the cosine similarity of every two class centers, similar classes beside each other.

    The order is that of average linkage; up to 200 classes, its branches are turned so that neighbours are
    as alike as the tree allows, and every class is named.
    Behind each name stands the number of its training images, where it is known. The diagonal is left
    empty, so that the colours spread over what differs. Up to 16 classes the figure is as wide as a column
    of a paper; of more it is as wide as their names take, or a column too where it need not be `whole`.

    Args:
        centers: of two classes or more.
        path: .png or .pdf.
        class_names: C of them; by default those of `centers`.
        title: heading of the figure; name the model.
        data: what it was trained on, for the caption.
        whole: whether every one of more than 16 classes is named, which telephones cannot show; else those
            are that are most alike.

    Raises:
        DataError: for fewer than two classes, other than C names, or centers that are not finite.
    """
    names = list(centers.class_names if class_names is None else class_names)
    classes, dim = centers.weight.shape
    if classes < 2:
        raise DataError(f"class map: found {classes} class, expected at least 2")
    if len(names) != classes:
        raise DataError(f"class map: found {len(names)} names for {classes} centers")
    if not bool(centers.weight.isfinite().all()):
        raise DataError("class map: the centers hold NaN or infinity; has the training diverged?")
    similarity = centers.similarity().detach().double().cpu().numpy()
    order = cluster(similarity)
    counts = centers.class_counts.tolist()
    caption = f"Cosine similarity of the {classes} learned class centers (D = {dim})"
    caption += f", {data}" if data else ""
    caption += "; order: average linkage, similar classes beside each other"
    narrow = classes <= _IN_COLUMN or not whole
    caption += "; in brackets: training images" if counts_shown(counts, narrow=narrow) else ""
    if narrow:
        heights = column_heights(names, counts)
        total = sum(heights) + caption_height(caption, COLUMN) + title_height(title or "", COLUMN)
        with figure_to(path, (COLUMN, total), caption, title) as figure:
            grid_of = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)
            draw_in_column([*grid_of[:, 0]], similarity, order, names, counts)
        return
    side = min(max(2.6, 0.115 * classes), 16.0)
    if classes > _NAMED:  # without names to be read, larger is only slower to load
        side = _NAMELESS
    with figure_to(path, (side + 1.9, side + 1.1), caption, title) as figure:
        draw_class_map(figure.subplots(), similarity, order, names, counts)


def column_heights(names: Sequence[str], counts: Sequence[int]) -> list[float]:
    """Return the inches of each panel that `draw_in_column` needs for these classes."""
    if len(names) > _IN_COLUMN:
        return [3.4, 0.147 * (_PAIRS + 1) + 0.1]
    rows, columns, turned = _labels_in_column(names, counts)
    side = COLUMN - 0.2 - _LETTER * max(map(len, rows))
    return [side + (_LETTER * max(map(len, columns)) if turned else 0.2) + 0.55]


def draw_in_column(
    panels: Sequence[Axes],
    similarity: NDArray[np.float64],
    order: NDArray[np.int64],
    names: Sequence[str],
    counts: Sequence[int],
) -> None:
    """Draw cosines in the width of a column, with letters that a telephone shows at a readable size.

    Args:
        panels: as many as `column_heights` gives: a map, and where there are many classes, words below it.
        similarity: `[C, C]`.
        order: of the classes from the top, `[C]`.
        names: of the C classes.
        counts: training images of each; -1 where not known.
    """
    axes = panels[0]
    shown = _draw(axes, similarity, order, shrink=0.7, location="bottom")
    axes.tick_params(length=0)
    if len(panels) > 1:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_xlabel(f"{len(names)} classes")
        _name_pairs(panels[1], similarity, names)
        return
    beside, below, turned = _labels_in_column(names, counts)
    rows, columns = ([words[c] for c in order] for words in (beside, below))
    style: dict[str, Any] = {"fontsize": SMALL, "parse_math": False}
    axes.set_yticks(range(len(rows)), rows, **style)
    axes.set_xticks(range(len(rows)), columns, rotation=90 if turned else 0, **style)
    if len(order) <= _CELLS:
        _write(axes, shown, CELL)


def _labels_in_column(names: Sequence[str], counts: Sequence[int]) -> tuple[list[str], list[str], bool]:
    """Return the words beside the rows and below the columns, and whether the latter are turned.

    Numbers of images stand where there is more room for them.
    """
    short = fitted_names(names, _NAME)
    with_counts = [f"{name} ({n:,})" if n >= 0 else name for name, n in zip(short, counts, strict=True)]
    longest = max(map(len, short))
    turned = longest * len(names) * _LETTER > 2.2
    return (short, with_counts, True) if turned else (with_counts, short, False)


def _name_pairs(axes: Axes, similarity: NDArray[np.float64], names: Sequence[str]) -> None:
    """Write which classes are most alike."""
    axes.axis("off")
    rows, columns = np.triu_indices(len(names), 1)
    cosines = similarity[rows, columns]
    best = np.argsort(-cosines, kind="stable")[:_PAIRS]
    short = fitted_names(names, 1.35)
    pairs = [[short[place[i]] for place in (rows, columns)] for i in best]
    lines = [f"{cosines[i]:.2f}  {', '.join(pair)}" for i, pair in zip(best, pairs, strict=True)]
    text = "\n".join(["most alike", *lines])
    axes.text(0, 1, text, va="top", parse_math=False, transform=axes.transAxes)


def counts_shown(counts: Sequence[int], *, narrow: bool = False) -> bool:
    """Whether a map of classes with so many training images each has the numbers behind their names."""
    return min(counts) >= 0 and len(counts) <= (_IN_COLUMN if narrow else _NAMED)


def draw_class_map(
    axes: Axes,
    similarity: NDArray[np.float64],
    order: NDArray[np.int64],
    names: Sequence[str],
    counts: Sequence[int],
) -> None:
    """Draw cosines into axes as large as the names take, with their own colour bar.

    Args:
        axes: where.
        similarity: `[C, C]`.
        order: of the classes from the top, `[C]`.
        names: of the C classes.
        counts: training images of each; -1 where not known.
    """
    shown = _draw(axes, similarity, order, shrink=0.6, location="right")
    short = shortened(names, _cut)
    _name_axes(axes, [f"{short[c]} ({counts[c]:,})" if counts[c] >= 0 else short[c] for c in order])
    if len(order) <= _WRITTEN:
        _write(axes, shown, 6.0)


def _draw(
    axes: Axes,
    similarity: NDArray[np.float64],
    order: NDArray[np.int64],
    *,
    shrink: float,
    location: Literal["right", "bottom"],
) -> NDArray[np.float64]:
    """Draw the cells and their colour bar, and return what they show, NaN along the diagonal."""
    shown: NDArray[np.float64] = similarity[np.ix_(order, order)]
    np.fill_diagonal(shown, np.nan)
    low, high = float(np.nanmin(shown)), float(np.nanmax(shown))
    # made to look the same to colour-blind people; what is alike is dark
    cmap = colormaps["cividis_r"].with_extremes(bad="white")
    image = axes.imshow(shown, cmap=cmap, vmin=low, vmax=high, interpolation="antialiased")
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.figure.colorbar(
        image, ax=axes, label="cosine", shrink=shrink, aspect=25, pad=0.02, location=location
    )
    return shown


def cluster(similarity: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return an order of the classes `[C]` in which similar ones are neighbours, from cosines `[C, C]`."""
    distance = 1 - (similarity + similarity.T) / 2
    np.fill_diagonal(distance, 0)
    pairs = squareform(distance.clip(min=0), checks=False)
    tree = linkage(pairs, "average", optimal_ordering=len(distance) <= _NAMED)  # turning takes a cubic time
    order: NDArray[np.int64] = leaves_list(tree).astype(np.int64)
    return order


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def _name_axes(axes: Axes, labels: Sequence[str]) -> None:
    if len(labels) > _NAMED:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_xlabel(f"{len(labels)} classes")
        return
    size = 7.5 if len(labels) <= _WRITTEN else 5.5
    ticks = range(len(labels))
    style: dict[str, Any] = {"fontsize": size, "parse_math": False}
    axes.set_yticks(ticks, labels, **style)
    upright = max(map(len, labels)) > 3
    bottom = [label.rpartition(" (")[0] or label for label in labels]
    axes.set_xticks(ticks, bottom, rotation=90 if upright and max(map(len, bottom)) > 3 else 0, **style)
    axes.tick_params(length=0)


def _write(axes: Axes, shown: NDArray[np.float64], size: float) -> None:
    middle = (float(np.nanmin(shown)) + float(np.nanmax(shown))) / 2
    for row, column in np.argwhere(np.isfinite(shown)):
        value = shown[row, column]
        color = "white" if value > middle else INK  # on the dark half of the colours
        text = f"{value:.2f}".replace("0.", ".", 1)
        axes.text(column, row, text, ha="center", va="center", fontsize=size, color=color)
