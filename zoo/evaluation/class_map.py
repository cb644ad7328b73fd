"""A map of which classes a model holds to be alike: the cosine similarity of their learned centers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from numpy.typing import NDArray
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from zoo.errors import DataError
from zoo.evaluation._figure import INK, figure_to
from zoo.modules.centers import Centers

_WRITTEN = 20  # of so many classes at most, the numbers are written into the cells
_NAMED = 200  # of so many at most, every class has its name
_NAMELESS = 5.0  # inches of a map without names, a thousand pixels
_LONGEST_NAME = 24
MOST_DRAWN = 1000
"""Classes up to which a training draws this by itself: time and memory grow with their square."""


def plot_class_map(
    centers: Centers,
    path: Path | str,
    *,
    class_names: Sequence[str] | None = None,
    title: str | None = None,
    data: str = "",
) -> None:
    """Draw the cosine similarity of every two class centers, similar classes beside each other.

    The order is that of average linkage; up to 200 classes, its branches are turned so that neighbours are
    as alike as the tree allows, and every class is named.
    Behind each name stands the number of its training images, where it is known. The diagonal is left
    empty, so that the colours spread over what differs.

    Args:
        centers: of two classes or more.
        path: .png or .pdf.
        class_names: C of them; by default those of `centers`.
        title: heading of the figure; name the model.
        data: what it was trained on, for the caption.

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
    caption += "; in brackets: training images" if counts_shown(counts) else ""
    side = min(max(2.6, 0.115 * classes), 16.0)
    if classes > _NAMED:  # without names to be read, larger is only slower to load
        side = _NAMELESS
    with figure_to(path, (side + 1.9, side + 1.1), caption, title) as figure:
        draw_class_map(figure.subplots(), similarity, order, names, counts)


def counts_shown(counts: Sequence[int]) -> bool:
    """Whether a map of classes with so many training images each has the numbers behind their names."""
    return min(counts) >= 0 and len(counts) <= _NAMED


def draw_class_map(
    axes: Axes,
    similarity: NDArray[np.float64],
    order: NDArray[np.int64],
    names: Sequence[str],
    counts: Sequence[int],
    *,
    named: int = _NAMED,
    written: int = _WRITTEN,
    smallest: float = 5.5,
) -> None:
    """Draw cosines into axes, with their own colour bar.

    Args:
        axes: where.
        similarity: `[C, C]`.
        order: of the classes from the top, `[C]`.
        names: of the C classes.
        counts: training images of each; -1 where not known.
        named: classes up to which each has its name.
        written: classes up to which each cell has its number.
        smallest: points of the letters where there are many names.
    """
    shown = similarity[np.ix_(order, order)]
    np.fill_diagonal(shown, np.nan)
    low, high = float(np.nanmin(shown)), float(np.nanmax(shown))
    # made to look the same to colour-blind people; what is alike is dark
    cmap = colormaps["cividis_r"].with_extremes(bad="white")
    image = axes.imshow(shown, cmap=cmap, vmin=low, vmax=high, interpolation="antialiased")
    _name_axes(axes, [_label(names[c], counts[c]) for c in order], named, smallest)
    if len(order) <= written:
        _write(axes, shown, (low + high) / 2, max(smallest, 6.0))
    axes.figure.colorbar(image, ax=axes, label="cosine", shrink=0.6, aspect=25, pad=0.02)


def cluster(similarity: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return an order of the classes `[C]` in which similar ones are neighbours, from cosines `[C, C]`."""
    distance = 1 - (similarity + similarity.T) / 2
    np.fill_diagonal(distance, 0)
    pairs = squareform(distance.clip(min=0), checks=False)
    tree = linkage(pairs, "average", optimal_ordering=len(distance) <= _NAMED)  # turning takes a cubic time
    order: NDArray[np.int64] = leaves_list(tree).astype(np.int64)
    return order


def _label(name: str, count: int) -> str:
    short = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
    return f"{short} ({count:,})" if count >= 0 else short


def _name_axes(axes: Axes, labels: Sequence[str], named: int, smallest: float) -> None:
    for spine in axes.spines.values():
        spine.set_visible(False)
    if len(labels) > named:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_xlabel(f"{len(labels)} classes")
        return
    size = 7.5 if len(labels) <= _WRITTEN else smallest
    ticks = range(len(labels))
    style: dict[str, Any] = {"fontsize": size, "parse_math": False}
    axes.set_yticks(ticks, labels, **style)
    upright = max(map(len, labels)) > 3
    bottom = [label.rpartition(" (")[0] or label for label in labels]
    axes.set_xticks(ticks, bottom, rotation=90 if upright and max(map(len, bottom)) > 3 else 0, **style)
    axes.tick_params(length=0)


def _write(axes: Axes, shown: NDArray[np.float64], middle: float, size: float) -> None:
    for row, column in np.argwhere(np.isfinite(shown)):
        value = shown[row, column]
        color = "white" if value > middle else INK  # on the dark half of the colours
        text = f"{value:.2f}".replace("0.", ".", 1).replace("-", "−")
        axes.text(column, row, text, ha="center", va="center", fontsize=size, color=color)
