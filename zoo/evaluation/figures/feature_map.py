"""A 2-D map of features with the class centers drawn in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch.nn.functional as F
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
from numpy.typing import NDArray
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor

from zoo.errors import DataError
from zoo.evaluation.figures.names import fitted_names
from zoo.evaluation.figures.style import (
    COLORS,
    COLUMN,
    FAINT,
    INK,
    MARKERS,
    caption_height,
    figure_to,
    title_height,
)
from zoo.functional.checks import check_features, check_labels
from zoo.modules.centers import Centers
from zoo.seeding import derive_seed

FEWEST = 4
"""Features at least that a map is made of."""
_MOST = 2000  # of more, as many are drawn at random
_HALO = [withStroke(linewidth=2.2, foreground="white")]
_BESIDE, _ABOVE, _LINE = 5.0, 4.0, 10.5  # points from a star to its name, and from there to the line above
_LEGEND = 0.63  # inches of a name in it
_NAMED = 5  # of many classes, the centers of this many most and least frequent ones are named


def plot_features(
    features: Tensor,
    labels: Tensor,
    class_names: Sequence[str],
    centers: Centers | None,
    path: Path | str,
    *,
    seed: int = 0,
    title: str | None = None,
    data: str = "",
) -> None:
    """Draw features, and the directions of the class centers as stars, embedded jointly.

    Up to ten classes have a colour, a marker and their name: at the center, without centers at the class's
    median. More have a colour by their number of training images (`centers.class_counts`), and of their
    centers the five most and the five least frequent are named; without centers ten of the classes, evenly
    chosen by their index, have a colour each, and the others are grey.

    What all features share, and what all centers share, adds the same to every logit, so it is removed
    (the mean is subtracted from each) before both are brought to unit norm.

    Args:
        features: `[N, D]`, of the test set.
        labels: `[N]`, integer.
        class_names: of the C classes.
        centers: in the space of `features`, or None.
        path: .png or .pdf.
        seed: of t-SNE and of the choice of points.
        title: heading of the figure; name the data set and the model.
        data: what the features are of, and what the encoder was trained on, for the caption.

    Raises:
        DataError: for fewer than four features, or tensors that do not fit each other.
    """
    mapped = map_features(features, labels, class_names, centers, seed=seed)
    caption = f"{mapped.caption}; stars: {mapped.star_words}" if len(mapped.stars) else mapped.caption
    caption = f"{data}. {caption}" if data else caption
    height = 3.2 + caption_height(caption, COLUMN) + title_height(title or "", COLUMN)
    with figure_to(path, (COLUMN, height), caption, title) as figure:
        draw_feature_map(figure.subplots(), mapped)


class FeatureMap(NamedTuple):
    """Features in two dimensions.

    Attributes:
        points: `[N, 2]`.
        labels: their classes `[N]`.
        stars: the class centers `[C, 2]`, or `[0, 2]`.
        class_names: of the C classes.
        counts: training images of each class `[C]`, where there are centers.
        caption: how it was made.
        star_words: what the stars are; empty without.
    """

    points: NDArray[Any]
    labels: NDArray[Any]
    stars: NDArray[Any]
    class_names: Sequence[str]
    counts: NDArray[Any] | None
    caption: str
    star_words: str


def map_features(
    features: Tensor,
    labels: Tensor,
    class_names: Sequence[str],
    centers: Centers | None,
    *,
    seed: int = 0,
) -> FeatureMap:
    """Embed features, and the class centers jointly, as `plot_features` draws them.

    Raises:
        DataError: for fewer than four features, or tensors that do not fit each other.
    """
    check_features(
        features, "feature map: features", dim=None if centers is None else centers.weight.shape[1]
    )
    check_labels(labels, "feature map: labels", count=len(features), num_classes=len(class_names))
    if centers is not None and len(centers.weight) != len(class_names):
        raise DataError(f"feature map: found {len(centers.weight)} centers for {len(class_names)} classes")
    if len(features) < FEWEST:
        raise DataError(f"feature map: found {len(features)} points, expected four or more")
    rows = np.arange(len(features))
    rng = np.random.default_rng(derive_seed("plots", seed))
    if len(rows) > _MOST:
        rows = np.sort(rng.choice(rows, _MOST, replace=False))
    vectors = _directions(features[rows.tolist()])
    stars = vectors[:0] if centers is None else _directions(centers.weight)
    embedded, how = _embed(np.concatenate([vectors, stars]), seed)
    points, stars = embedded[: len(rows)], embedded[len(rows) :]
    shown = labels.cpu().numpy()[rows]
    counts = None if centers is None else centers.class_counts.cpu().numpy()
    if counts is not None and len(class_names) > len(COLORS) and counts.min() < 0:
        raise DataError(
            "feature map: the centers' class_counts are unknown (-1), and they colour more than "
            f"{len(COLORS)} classes; convert the checkpoint again with --class-counts, or give no centers"
        )
    of = f"all {len(rows):,}" if len(rows) == len(features) else f"{len(rows):,} of {len(features):,}"
    caption = f"{how} of {of} features (D = {features.shape[1]}; centred, unit norm), seed {seed}"
    if counts is None and len(class_names) > len(COLORS):
        caption += f"; in colours {len(COLORS)} of the {len(class_names)} classes, evenly chosen by index"
    words = f"the {len(stars)} class centers ({_named(counts)}), embedded jointly" if len(stars) else ""
    return FeatureMap(points, shown, stars, tuple(class_names), counts, caption, words)


def _named(counts: NDArray[Any] | None) -> str:
    """Say which centers have their names."""
    if counts is None or len(counts) <= len(COLORS):
        return "names in italics"
    if counts.min() == counts.max():
        return f"in italics the names of the first and the last {_NAMED} classes"
    return f"in italics the names of the {_NAMED} most and the {_NAMED} least frequent"


def draw_feature_map(axes: Axes, mapped: FeatureMap) -> None:
    """Draw what `map_features` made."""
    parts = mapped.points, mapped.labels, mapped.stars, mapped.class_names
    named: Sequence[int] = ()
    if len(mapped.class_names) <= len(COLORS):
        named = _draw_few(axes, *parts)
    elif mapped.counts is None:
        _draw_some(axes, mapped.points, mapped.labels, mapped.class_names)
    else:
        named = _draw_many(axes, *parts, counts=mapped.counts)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.06)
    axes.set_xlabel("t-SNE 1")
    axes.set_ylabel("t-SNE 2")
    _name_stars(axes, [(mapped.stars[c], mapped.class_names[c]) for c in named])


def _directions(vectors: Tensor) -> NDArray[np.float32]:
    vectors = vectors.detach().float().cpu()
    unit: NDArray[np.float32] = F.normalize(vectors - vectors.mean(dim=0), dim=1).numpy()
    return unit


def _embed(vectors: NDArray[np.float32], seed: int) -> tuple[NDArray[Any], str]:
    """Return `[N, 2]` and how it was made."""
    if vectors.shape[1] == 1:
        vectors = np.pad(vectors, ((0, 0), (0, 1)))
    perplexity = min(30.0, (len(vectors) - 1) / 3)
    tsne = TSNE(2, perplexity=perplexity, init="pca", random_state=seed % 2**32)
    # Several threads add up forces in an order of their own, and t-SNE amplifies what rounding differs.
    with threadpool_limits(1):
        return tsne.fit_transform(vectors), f"t-SNE (perplexity {perplexity:.0f})"


def _draw_few(
    axes: Axes, points: NDArray[Any], labels: NDArray[Any], stars: NDArray[Any], names: Sequence[str]
) -> Sequence[int]:
    """Draw up to ten classes, named where no star is, and return which stars are to be named: all."""
    for c in range(len(names)):
        _draw_class(axes, points[labels == c], c)
    for c in range(len(stars)):
        x, y = stars[c]
        axes.scatter(x, y, s=170, c=COLORS[c], marker="*", linewidths=0.9, edgecolors="black", zorder=4)
    for c, name in enumerate(names):
        own = points[labels == c]
        if len(own) and not len(stars):
            x, y = np.median(own, axis=0)
            place: dict[str, Any] = {"ha": "center", "va": "center", "zorder": 6, "parse_math": False}
            axes.text(x, y, name, fontsize=10, weight="bold", path_effects=_HALO, **place)
    return range(len(stars))


def _draw_some(axes: Axes, points: NDArray[Any], labels: NDArray[Any], names: Sequence[str]) -> None:
    """Draw more classes, ten of them in colours: a hundred are not told apart, and no scale orders them."""
    chosen = np.linspace(0, len(names) - 1, len(COLORS)).round().astype(int)
    x, y = points[~np.isin(labels, chosen)].T
    axes.scatter(x, y, s=6, c=FAINT, alpha=0.3, linewidths=0)
    for place, c in enumerate(chosen):
        _draw_class(axes, points[labels == c], place)
    shown = fitted_names([names[c] for c in chosen], _LEGEND)
    drawn = axes.collections[1:]  # given with their names: matplotlib leaves out those that begin with "_"
    legend = axes.legend(
        drawn, shown, loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=3, frameon=False
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def _draw_class(axes: Axes, points: NDArray[Any], place: int) -> None:
    """Draw the points of a class in the colour and with the marker of that place."""
    style: dict[str, Any] = {"marker": MARKERS[place], "linewidths": 0.3, "edgecolors": "white", "zorder": 2}
    x, y = points.T
    axes.scatter(x, y, s=14, c=COLORS[place], alpha=0.75, **style)


def _draw_many(
    axes: Axes,
    points: NDArray[Any],
    labels: NDArray[Any],
    stars: NDArray[Any],
    names: Sequence[str],
    *,
    counts: NDArray[Any],
) -> Sequence[int]:
    """Draw more classes, by their training images, and return which stars are to be named."""
    # viridis is even in lightness; its palest end would vanish on white
    cmap = LinearSegmentedColormap.from_list("frequency", colormaps["viridis"](np.linspace(0.0, 0.9, 256)))
    value = counts.clip(min=1)
    norm = LogNorm(value.min(), value.max()) if value.min() < value.max() else Normalize(0, value.max())
    x, y = points.T
    axes.scatter(x, y, s=9, c=value[labels], cmap=cmap, norm=norm, alpha=0.8, linewidths=0)
    place: dict[str, Any] = {"location": "bottom", "shrink": 0.8, "aspect": 30, "pad": 0.02}
    label = "training images of the class"
    bar = axes.figure.colorbar(ScalarMappable(norm, cmap), ax=axes, label=label, **place)
    if isinstance(norm, LogNorm):
        bar.locator = LogLocator(subs=(1, 2, 5) if value.max() < 300 * value.min() else (1,))
        bar.formatter = StrMethodFormatter("{x:,g}")  # an exponent would be smaller than other letters
        bar.minorformatter = NullFormatter()
    x, y = stars.T
    style: dict[str, Any] = {"marker": "*", "linewidths": 0.6, "edgecolors": "black", "zorder": 4}
    axes.scatter(x, y, s=60, c=value, cmap=cmap, norm=norm, **style)
    order = np.argsort(-counts, kind="stable")
    return [*order[:_NAMED], *order[-_NAMED:]]


def _name_stars(axes: Axes, stars: Sequence[tuple[NDArray[Any], str]]) -> None:
    """Write each name beside its star; one that would cover another goes above or below, with a line."""
    if not stars:
        return
    figure = axes.figure.canvas.figure
    for _ in range(2):  # only what is laid out knows how large a name is in it; once leaves it 9 pixels apart
        figure.draw_without_rendering()
    bottom, top = axes.get_window_extent().intervaly
    taken = [text.get_window_extent() for text in axes.texts]
    style: dict[str, Any] = {
        **{"fontstyle": "italic", "color": INK, "path_effects": _HALO},
        "parse_math": False,  # a class may be called "$"
    }
    line = {"arrowstyle": "-", "color": FAINT, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 0}

    def write(star: NDArray[Any], name: str, up: int, side: int) -> Annotation:
        found: Annotation = axes.annotate(
            name,
            (star[0], star[1]),
            (side * _BESIDE, _ABOVE + up * _LINE),
            textcoords="offset points",
            ha="left" if side > 0 else "right",
            zorder=5,  # above all stars: of a hundred others, many lie where the names do
            arrowprops=line if abs(up) > 1 else None,
            **style,
        )
        found.set_in_layout(False)  # else the map shrinks, and all names come to lie elsewhere
        return found

    for star, name in sorted(stars, key=lambda each: float(each[0][1])):
        for side in (1, -1):  # to the left of its star where it would leave the picture
            tried = write(star, name, 0, side)
            box = tried.get_window_extent()
            tried.remove()
            if box.x1 <= figure.bbox.x1:
                break
        step = _LINE * figure.dpi / 72
        up, away = 0, 1 if box.y0 < bottom + 0.7 * (top - bottom) else -1  # into the map, not out of it
        while any(box.translated(0, up * step).overlaps(other) for other in taken):
            up += away
        write(star, name, up, side)
        taken.append(box.translated(0, up * step))
