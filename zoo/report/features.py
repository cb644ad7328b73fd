"""Figures of a sample of images: hardness, uniformity and tolerance, a map of features, neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch.nn.functional as F
from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor

from zoo import functional
from zoo.modules.centers import Centers
from zoo.report.look import Look, Neighbours
from zoo.report.overlay import draw_mean, groups_of, legend_of, mark, variant
from zoo.report.series import Array
from zoo.report.style import (
    COLORS,
    COLUMN,
    DASHED,
    DOTTED,
    FAINT,
    INK,
    MARKERS,
    PALE,
    SOLID,
    decades,
    panels,
    positive,
    shortened,
)
from zoo.report.subject import Subject, at_the_end
from zoo.seeding import derive_seed

FEWEST = 4
"""Features at least that a map is made of."""

_BINS = 50
_TAUS = (0.05, 0.1, 0.2, 0.5, 1.0)
_FEWEST_IN_BIN = 5  # negatives in a bin of scores whose mean penalty is drawn
_LANDMARKS = ("*", "d", "p", "8", "H")  # markers that no group has
_MOST_POINTS = 2000  # of more features, as many are drawn at random
_NAMED = 4  # of many classes, the centers of so many most and least frequent ones are named
_HALO = [withStroke(linewidth=2.2, foreground="white")]
_SIDE, _TEXT, _GAP = 0.92, 0.33, 0.12  # of an image, in columns; inches of its words, and between queries


def lacks_look(subject: Subject) -> str | None:
    """Say why nothing of its images can be drawn, if so."""
    return None if subject.look is not None else f"no images were looked at: {subject.without_look}"


def lacks_negatives(subject: Subject) -> str | None:
    """Say why no negatives can be drawn, if so."""
    if subject.look is None:
        return lacks_look(subject)
    return None if "other_class" in subject.look.pairs() else "the sample has images of one class alone"


def lacks_tolerance(subject: Subject) -> str | None:
    """Say why it has no place between uniformity and tolerance, if so."""
    if subject.look is None:
        return lacks_look(subject)
    return None if np.isfinite(subject.look.tolerance) else "no two images of the sample share a class"


def _look(subject: Subject) -> Look:
    assert subject.look is not None  # see `lacks_look`
    return subject.look


def tau_of(subject: Subject) -> float | None:
    """Return the temperature of a subject's recipe: at the end, where it is scheduled or learned."""
    objective = subject.recipe.get("objective")
    tau = objective.get("tau") if isinstance(objective, Mapping) else None
    if isinstance(tau, Mapping):
        recorded = at_the_end(subject.rows, "tau")
        tau = recorded if recorded is not None else tau.get("end", tau.get("start"))
    return float(tau) if isinstance(tau, int | float) and tau > 0 else None


def hardness(subjects: Sequence[Subject]) -> Figure:
    """Draw how much a negative of some score is pushed, and below it the scores of all kinds of pairs.

    Negatives are images of other classes, which are negatives to every objective. The weight is
    N exp(s/tau) / sum exp(s/tau) over an anchor's N negatives: 1 is the mean. One group is drawn at several
    temperatures and its own, several each at its own.
    """
    groups = groups_of(subjects)
    own = [tau_of(group.subjects[0]) for group in groups]
    legend: list[Artist]
    if len(groups) == 1:
        taus = sorted({*_TAUS, *(tau for tau in own if tau is not None)})
        drawn = [(groups[0]._replace(place=place), tau) for place, tau in enumerate(taus)]
        legend = [
            Line2D([], [], color=group.color, marker=group.marker, markersize=4, label=f"τ = {tau:g}")
            for group, tau in drawn
        ]
        if own[0] is not None:
            legend[taus.index(own[0])].set_label(f"τ = {own[0]:g}, its own")
    else:
        drawn = [(group, tau) for group, tau in zip(groups, own, strict=True) if tau is not None]
        legend = [*legend_of(groups, ["(no τ)" if tau is None else f"(τ = {tau:g})" for tau in own])]
    legend += [
        Patch(facecolor=PALE, edgecolor=FAINT, label="other classes"),
        variant("same class", DASHED),
        variant("two views", SOLID),
    ]
    edges, all_edges = _edges(subjects, ["other_class"]), _edges(subjects)
    middles = (edges[:-1] + edges[1:]) / 2
    figure, (above, *below) = panels([2.2, *[1.2] * len(groups)], legend, sharex=True)
    for group, tau in drawn:
        lines = [(middles, penalty(_look(subject), tau, edges)) for subject in group.subjects]
        draw_mean(above, group, lines, (middles, positive(np.mean([y for _, y in lines], axis=0))))
    mark(above, 1)
    above.set(yscale="log", title="weight of a negative by its score", ylabel="relative to the mean")
    decades(above.yaxis)
    for axes, group in zip(below, groups, strict=True):
        for kind, dash in (("other_class", None), ("same_class", DASHED), ("positive", SOLID)):
            found = [p for subject in group.subjects if (p := _look(subject).pairs().get(kind)) is not None]
            if not found:
                continue
            density = np.mean([_density(scores, all_edges) for scores in found], axis=0)
            if dash is None:
                axes.stairs(density, all_edges, fill=True, facecolor=PALE, edgecolor=FAINT)
            else:
                axes.stairs(density, all_edges, color=group.color, linewidth=1.4, linestyle=dash)
        axes.set(title="scores" if len(groups) == 1 else shortened(group.label, 44), ylabel="density")
    below[-1].set_xlabel("cosine of pooled features")
    return figure


def _edges(subjects: Sequence[Subject], kinds: Sequence[str] = ()) -> Array:
    """Return the edges of bins over the scores of these kinds of pairs, or of all `[bins + 1]`."""
    pairs = [pair for subject in subjects for pair in _look(subject).pairs().items()]
    found = [scores.double().numpy() for kind, scores in pairs if not kinds or kind in kinds]
    low, high = min(each.min() for each in found), max(each.max() for each in found)
    return np.linspace(low, max(high, low + 1e-3), _BINS + 1)


def _density(scores: Tensor, edges: Array) -> Array:
    counts, _ = np.histogram(scores.double().numpy(), edges)
    return np.asarray(counts / (len(scores) * np.diff(edges)), dtype=float)


def penalty(look: Look, tau: float, edges: Array) -> Array:
    """Return the mean relative penalty of negatives by score `[bins]`, NaN where there are too few."""
    apart = look.apart
    weights = functional.relative_penalty(look.scores.double(), tau=tau, valid=apart)
    weights = weights * apart.sum(dim=1, keepdim=True)
    scores = look.scores[apart].double().numpy()
    counts, _ = np.histogram(scores, edges)
    sums, _ = np.histogram(scores, edges, weights=weights[apart].numpy())
    return np.where(counts >= _FEWEST_IN_BIN, sums / np.maximum(counts, 1), np.nan)


def plane(subjects: Sequence[Subject]) -> Figure:
    """Draw tolerance against uniformity, with raw pixels and a random encoder beside it."""
    groups = groups_of(subjects)
    landmarks = {
        mark: name for subject in subjects for name, mark in _look(subject).landmarks.items()
    }  # several of one name: of other data or another architecture
    black: dict[str, Any] = {"color": INK, "linestyle": "", "mec": "white", "mew": 0.6}
    shapes = {
        name: _LANDMARKS[i % len(_LANDMARKS)] for i, name in enumerate(dict.fromkeys(landmarks.values()))
    }
    legend = legend_of(groups, [" "] * len(groups), line="")
    legend += [
        Line2D([], [], marker=shape, markersize=6, label=name, **black) for name, shape in shapes.items()
    ]
    figure, (axes,) = panels([2.6], legend)
    for at, name in landmarks.items():
        axes.plot(*at, marker=shapes[name], markersize=7, zorder=4, **black)
    for group in groups:
        points = np.array([(_look(s).uniformity, _look(s).tolerance) for s in group.subjects])
        own: dict[str, Any] = {"color": group.color, "marker": group.marker, "linestyle": ""}
        if len(points) > 1:
            axes.plot(*points.T, markersize=3.5, alpha=0.5, mew=0, **own)
        axes.plot(*points.mean(axis=0), markersize=8, mec="white", **own)
    axes.margins(0.22, 0.18)
    axes.set_ylabel("tolerance, mean cosine in a class")
    axes.set_xlabel("uniformity, log E exp(−2 |x − y|²)\n(left: more even)")
    return figure


def feature_map(subjects: Sequence[Subject]) -> Figure:
    """Draw the features of each group's first subject in two dimensions, with the learned centers in them."""
    groups = groups_of(subjects)
    figure, axes_of = panels([3.3] * len(groups))
    for axes, group in zip(axes_of, groups, strict=True):
        subject = group.subjects[0]
        look, centers = _look(subject), subject.centers
        if tuple(look.class_names) != tuple(subject.class_names):  # the centers are of others
            centers = None
        draw_map(
            axes, look.features, look.labels, look.class_names, centers, look.class_counts, seed=look.seed
        )
        if len(groups) > 1:
            axes.set_title(shortened(group.label, 44))
    return figure


def draw_map(
    axes: Axes,
    features: Tensor,
    labels: Tensor,
    class_names: Sequence[str],
    centers: Centers | None,
    class_counts: Tensor,
    *,
    seed: int,
) -> None:
    """Draw features, and the directions of the class centers as stars, embedded jointly by t-SNE.

    Up to ten classes have a colour, a marker and their name; more have a colour by their number of training
    images. What all features share, and what all centers share, adds the same to every logit, so it is
    removed (the mean is subtracted from each) before both are brought to unit norm.

    Args:
        axes: where.
        features: `[N, D]`, of the test set.
        labels: `[N]`.
        class_names: of the C classes.
        centers: in the space of `features`, or None.
        class_counts: training images of each class `[C]`.
        seed: of t-SNE and of the choice of points.
    """
    rows = np.arange(len(features))
    if len(rows) > _MOST_POINTS:
        rng = np.random.default_rng(derive_seed("plots", seed))
        rows = np.sort(rng.choice(rows, _MOST_POINTS, replace=False))
    vectors = directions(features[rows.tolist()])
    stars = vectors[:0] if centers is None else directions(centers.weight)
    embedded = _embed(np.concatenate([vectors, stars]), seed)
    points, stars, shown = embedded[: len(rows)], embedded[len(rows) :], labels.numpy()[rows]
    named: Sequence[int] = range(len(class_names))
    if len(class_names) <= len(COLORS):
        style: dict[str, Any] = {"linewidths": 0.3, "edgecolors": "white", "alpha": 0.75}
        for c in named:
            axes.scatter(
                points[shown == c][:, 0],
                points[shown == c][:, 1],
                s=14,
                c=COLORS[c],
                marker=MARKERS[c],
                **style,
            )
        if len(stars):
            axes.scatter(
                stars[:, 0],
                stars[:, 1],
                s=170,
                c=COLORS[: len(stars)],
                marker="*",
                edgecolors="black",
                zorder=4,
            )
    else:
        counts = class_counts.numpy().clip(min=1)
        cmap = LinearSegmentedColormap.from_list(
            "frequency", colormaps["viridis"](np.linspace(0.0, 0.9, 256))
        )
        level = counts.min() == counts.max()
        norm = Normalize(0, counts.max()) if level else LogNorm(counts.min(), counts.max())
        axes.scatter(
            points[:, 0], points[:, 1], s=9, c=counts[shown], cmap=cmap, norm=norm, alpha=0.8, linewidths=0
        )
        axes.scatter(stars[:, 0], stars[:, 1], s=60, c=counts[: len(stars)], cmap=cmap, norm=norm, marker="*",
                     linewidths=0.6, edgecolors="black", zorder=4)  # fmt: skip
        label = "training images of the class"
        bar = axes.figure.colorbar(
            ScalarMappable(norm, cmap), ax=axes, label=label, location="bottom", aspect=30
        )
        if not level:
            decades(bar.ax.xaxis)
        order = np.argsort(-counts, kind="stable")
        named = [*order[:_NAMED], *order[-_NAMED:]]
    for c in named:
        own = points[shown == c]
        if len(stars) or len(own):
            at = stars[c] if len(stars) else np.median(own, axis=0)
            words: dict[str, Any] = {
                "fontstyle": "italic",
                "path_effects": _HALO,
                "zorder": 6,
                "clip_on": True,
            }
            axes.annotate(shortened(class_names[c], 16), at, (5, 4), textcoords="offset points", **words)
    axes.set(xticks=[], yticks=[], xlabel="t-SNE 1", ylabel="t-SNE 2")
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.08)


def directions(vectors: Tensor) -> NDArray[np.float32]:
    """Return unit rows of vectors `[N, D]` without their mean."""
    vectors = vectors.detach().float().cpu()
    unit: NDArray[np.float32] = F.normalize(vectors - vectors.mean(dim=0), dim=1).numpy()
    return unit


def _embed(vectors: NDArray[np.float32], seed: int) -> NDArray[Any]:
    if vectors.shape[1] == 1:
        vectors = np.pad(vectors, ((0, 0), (0, 1)))
    tsne = TSNE(2, perplexity=min(30.0, (len(vectors) - 1) / 3), init="pca", random_state=seed % 2**32)
    # Several threads add up forces in an order of their own, and t-SNE amplifies what rounding differs.
    with threadpool_limits(1):
        embedded: NDArray[Any] = tsne.fit_transform(vectors)
    return embedded


def neighbours(subjects: Sequence[Subject]) -> Figure:
    """Draw query images, their nearest training images and their hardest negatives, each with its cosine.

    First row of each query: it and its nearest; second row: the most similar test images of other classes.
    """
    groups = groups_of(subjects)
    looks = [_look(group.subjects[0]) for group in groups]
    columns = 1 + max(len(query.nearest[1]) for look in looks for query in look.neighbours)
    column = (COLUMN - 0.12) / columns  # inches
    legend = [
        Patch(facecolor="white", edgecolor=COLORS[0], linewidth=1.8, label="the query's class"),
        Patch(facecolor="white", edgecolor=COLORS[3], linewidth=1.8, linestyle=DOTTED, label="another class"),
    ]
    tall = 2 * (_SIDE * column + _TEXT) + _GAP
    figure, axes_of = panels([tall * len(look.neighbours) + 0.25 for look in looks], legend)
    for axes, group, look in zip(axes_of, groups, looks, strict=True):
        axes.axis("off")
        if len(groups) > 1:
            axes.set_title(shortened(group.label, 44))
        for place, query in enumerate(look.neighbours):
            _draw_query(axes, query, -place * tall / column, look.class_names, _TEXT / column)
        axes.set(
            xlim=(-0.03, columns), ylim=(-tall / column * len(look.neighbours) - 0.03, 0.05), anchor="NW"
        )
    return figure


def lacks_neighbours(subject: Subject) -> str | None:
    """Say why there are no neighbours to draw, if so."""
    if subject.look is None:
        return lacks_look(subject)
    return None if subject.look.neighbours else "the sample gave no query image"


def _draw_query(axes: Axes, query: Neighbours, top: float, names: Sequence[str], text: float) -> None:
    """Draw two rows of images, one column being a unit wide."""
    _draw_image(axes, 0, top - text, query.image, f"query\n{shortened(names[query.label], 9)}", INK, SOLID)
    axes.text(0, top - 1.5 * (_SIDE + text), "hardest\nnegatives", va="center")
    for row, found in enumerate((query.nearest, query.hardest)):
        for place, (image, label, score) in enumerate(zip(*found, strict=True), 1):
            right = int(label) == query.label
            color, dash = (COLORS[0], SOLID) if right else (COLORS[3], DOTTED)
            words = f"{shortened(names[int(label)], 9)}\n{float(score):.2f}"
            _draw_image(axes, place, top - row * (_SIDE + text) - text, image, words, color, dash)


def _draw_image(axes: Axes, x: float, y: float, image: Tensor, words: str, color: str, dash: Any) -> None:
    low = y - _SIDE
    axes.imshow(image.permute(1, 2, 0).numpy(), interpolation="nearest", extent=(x, x + _SIDE, low, y))
    frame: dict[str, Any] = {"fill": False, "edgecolor": color, "linewidth": 1.8, "linestyle": dash}
    axes.add_patch(Rectangle((x, low), _SIDE, _SIDE, **frame))
    axes.text(x, y + 0.05, words, va="bottom")
