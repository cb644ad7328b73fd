"""Figures of features and classes: hardness, uniformity and tolerance, maps, accuracies, neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor

from zoo.data.batches import derive_seed
from zoo.functional import FEW_BELOW, MANY_ABOVE
from zoo.report import style
from zoo.report.sample import SMALLEST, Sample
from zoo.report.subject import Array, Subject

_TAUS = (0.05, 0.1, 0.2, 0.5, 1.0)
_MOST_POINTS = 2000  # if there are more features, this many are drawn at random
_MOST_NAMES = 30  # limit of classes for which a map of centers shows names


def _sample(subject: Subject) -> Sample:
    assert subject.sample is not None  # figures are drawn only for subjects that have their data
    return subject.sample


@style.figure(
    "How hard negatives count at each temperature",
    lambda subject: subject.sample is not None and "other_class" in subject.sample.pairs,
    "no sample of images of several classes",
)
def hardness(subjects: Sequence[Subject]) -> Figure:
    """N exp(s/τ) / Σ exp(s/τ) over an anchor's N negatives, which are images of other classes; 1 is the mean.

    One training is shown at several τ, several at their own (Wang and Liu 2021, arXiv 2012.09740, 3.2).
    """
    groups = style.groups_of(subjects)
    taus = [(group[0].recipe.get("objective") or {}).get("tau") or _TAUS[1] for group in groups]
    drawn = [(group, f"{group[0].group}, ", group[0].place) for group in groups]
    if len(groups) == 1:
        taus = sorted({*_TAUS, taus[0]})
        drawn = [(groups[0], "", place) for place in range(len(taus))]
    negatives = np.concatenate([_sample(subject).pairs["other_class"].numpy() for subject in subjects])
    edges = np.linspace(negatives.min(), max(negatives.max(), negatives.min() + 1e-3), 51)
    middles = (edges[:-1] + edges[1:]) / 2
    made, (axes,) = style.panels(1, 2.6)
    for (group, name, place), tau in zip(drawn, taus, strict=True):
        lines = [pd.Series(penalty(_sample(subject), tau, edges), middles) for subject in group]
        style.draw_lines(axes, pd.concat(lines, axis=1), place, f"{name}τ = {tau:g}")
    axes.axhline(1, color=style.FAINT, linewidth=0.8)
    axes.set_yscale("log", nonpositive="mask")
    axes.set(ylabel="weight relative to the mean", xlabel="cosine of pooled features")
    style.plain_log(axes.yaxis)
    return made


def penalty(sample: Sample, tau: float, edges: Array) -> Array:
    """Return the mean relative penalty of negatives by score `[bins]`, NaN for bins with fewer than 5."""
    apart = sample.apart
    # a negative's share in the gradient: https://arxiv.org/abs/2012.09740, section 3.2
    weights = (sample.scores.double() / tau).masked_fill(~apart, -np.inf).softmax(dim=1)
    weights = weights * apart.sum(dim=1, keepdim=True)
    scores = sample.scores[apart].double().numpy()
    counts, _ = np.histogram(scores, edges)
    sums, _ = np.histogram(scores, edges, weights=weights[apart].numpy())
    return np.where(counts >= 5, sums / np.maximum(counts, 1), np.nan)


@style.figure(
    "Uniformity and tolerance",
    lambda subject: subject.sample is not None and np.isfinite(subject.sample.numbers["tolerance"]),
    "no sample with two images of a class",
)
def plane(subjects: Sequence[Subject]) -> Figure:
    """Both for pooled features; a training records them for projections (Wang and Liu 2021)."""
    made, (axes,) = style.panels(1, 2.6)
    for group in style.groups_of(subjects):
        numbers = [_sample(subject).numbers for subject in group]
        points = np.array([(each["uniformity"], each["tolerance"]) for each in numbers])
        label, own = group[0].group, style.color_and_marker(group[0].place)
        axes.plot(*points.mean(axis=0), linestyle="", markersize=8, label=label, **own)
    axes.margins(0.2)
    axes.set(ylabel="tolerance (mean cosine)", xlabel="uniformity, log E exp(−2 |x − y|²)\n(left: more even)")
    return made


@style.figure(
    "A map of the test features",
    lambda subject: subject.sample is not None and len(subject.sample.features) >= SMALLEST,
    f"no sample of {SMALLEST} images",
)
def features(subjects: Sequence[Subject]) -> Figure:
    """t-SNE, with learned class centers as stars. Distances between clusters and their sizes mean little."""
    groups = style.groups_of(subjects)
    made, axes_of = style.panels(len(groups), 3.3)
    for axes, group in zip(axes_of, groups, strict=True):
        _draw_map(axes, group[0])
        axes.set(title=group[0].group, xticks=[], yticks=[], xlabel="t-SNE 1", ylabel="t-SNE 2")
        axes.set_aspect("equal", adjustable="datalim")
    return made


def _draw_map(axes: Axes, subject: Subject) -> None:
    sample, centers, seed = _sample(subject), subject.centers, subject.seed or 0
    names, counts = sample.class_names, sample.class_counts.numpy().clip(min=1)
    rows = np.arange(len(sample.features))
    if len(rows) > _MOST_POINTS:
        rng = np.random.default_rng(derive_seed("plots", seed))
        rows = np.sort(rng.choice(rows, _MOST_POINTS, replace=False))
    vectors, shown = directions(sample.features[rows.tolist()]), sample.labels.numpy()[rows]
    if centers is not None and tuple(names) == tuple(subject.class_names):  # only centers of the same classes
        vectors = np.concatenate([vectors, directions(centers.weight)])
    if vectors.shape[1] == 1:
        vectors = np.pad(vectors, ((0, 0), (0, 1)))
    tsne = TSNE(2, perplexity=min(30.0, (len(vectors) - 1) / 3), init="pca", random_state=seed % 2**32)
    with threadpool_limits(1):  # threads sum forces in varying order, and t-SNE amplifies the rounding
        embedded = tsne.fit_transform(vectors)
    (x, y), (at_x, at_y) = embedded[: len(rows)].T, embedded[len(rows) :].T
    star: dict[str, Any] = {"marker": "*", "edgecolors": "black", "zorder": 4}
    if len(names) <= len(style.COLORS):
        for c, name in enumerate(names):
            own: dict[str, Any] = {"color": style.COLORS[c], "marker": style.MARKERS[c], "label": name}
            axes.scatter(x[shown == c], y[shown == c], s=14, alpha=0.7, **own)
        axes.scatter(at_x, at_y, s=170, color=style.COLORS[: len(at_x)], **star)
        return
    norm = LogNorm(counts.min(), max(counts.max(), counts.min() + 1))
    scale: dict[str, Any] = {"cmap": "viridis", "norm": norm}
    drawn = axes.scatter(x, y, s=9, c=counts[shown], alpha=0.8, **scale)
    axes.scatter(at_x, at_y, s=60, c=counts[: len(at_x)], **scale, **star)
    axes.figure.colorbar(drawn, ax=axes, label="training images of the class", location="bottom")


def directions(vectors: Tensor) -> NDArray[np.float32]:
    """Subtract the mean of `[N, D]`, which adds the same to every logit, and return unit rows."""
    vectors = vectors.detach().float().cpu()
    unit: NDArray[np.float32] = F.normalize(vectors - vectors.mean(dim=0), dim=1).numpy()
    return unit


@style.figure(
    "Similarity of centers",
    lambda s: s.centers and 2 <= len(s.centers.weight) <= 1000 and s.centers.weight.isfinite().all(),
    "no class centers, or more than 1,000",
)
def centers(subjects: Sequence[Subject]) -> Figure:
    """Cosines of all pairs of learned class centers, similar ones side by side; only the first seed."""
    groups = style.groups_of(subjects)
    made, axes_of = style.panels(len(groups), 3.8)
    for axes, group in zip(axes_of, groups, strict=True):
        found, names = group[0].centers, group[0].class_names
        assert found is not None  # figures are drawn only for subjects that have their data
        similarity = found.similarity().detach().double().cpu().numpy()
        order = cluster(similarity)
        shown = similarity[np.ix_(order, order)]
        np.fill_diagonal(shown, np.nan)
        image = axes.imshow(shown, cmap="cividis_r")  # looks the same to colour-blind people
        made.colorbar(image, ax=axes, label="cosine", location="bottom", shrink=0.7)
        axes.grid(visible=False)
        words = [names[c] for c in order] if len(order) <= _MOST_NAMES else []
        axes.set_yticks(range(len(words)), words)
        axes.set_xticks(range(len(words)), words, rotation=90)
        axes.set_title(group[0].group)
    return made


def cluster(similarity: Array) -> NDArray[np.int64]:
    """Return an order of the classes `[C]` in which similar ones are neighbours, by average linkage."""
    distance = 1 - (similarity + similarity.T) / 2
    np.fill_diagonal(distance, 0)
    pairs = squareform(distance.clip(min=0), checks=False)
    tree = linkage(pairs, "average", optimal_ordering=len(distance) <= 200)  # ordering takes cubic time
    return np.asarray(leaves_list(tree), dtype=np.int64)


def accuracies(subject: Subject) -> dict[str, pd.Series]:
    """Return recorded class accuracies in percent, indexed by the class's training images, by protocol."""
    found: dict[str, pd.Series] = {}
    for entry in subject.evaluations if subject.counted else ():
        values = entry["metrics"].get("per_class") or []
        if entry.get("data", subject.data) == subject.data and len(values) == len(subject.class_counts):
            series = pd.Series(values, subject.class_counts.numpy(), dtype=float)
            found.setdefault(str(entry["protocol"]), series)
    return found


@style.figure("Accuracy of each class against its training images", accuracies, "no record of it")
def accuracy(subjects: Sequence[Subject]) -> Figure:
    """As recorded in the release; dotted lines: 20 and 100 training images (few, medium, many)."""
    made, (axes,) = style.panels(1, 2.6)
    level = all(each.index.nunique() == 1 for s in subjects for each in accuracies(s).values())
    for group in style.groups_of(subjects):
        found = pd.DataFrame([accuracies(subject) for subject in group])
        for protocol in found:
            mean = pd.concat(found[protocol].dropna().tolist(), axis=1).mean(axis=1).dropna()
            x, y = np.maximum(mean.index.to_numpy(), 0.5), mean.to_numpy()  # no training images: at 0.5
            if level:
                x, y = np.arange(1, len(y) + 1), np.sort(y)
            label, own = f"{group[0].group}, {protocol}", style.color_and_marker(len(axes.lines))
            axes.plot(x, y, linestyle="", alpha=0.7, label=label, **own)
    axes.set(ylim=(-4, 104), ylabel="top-1 accuracy (%)", xlabel="classes, from the worst to the best")
    if not level:
        axes.set(xscale="log", xlabel="training images of the class")
        style.plain_log(axes.xaxis)
        for edge in (FEW_BELOW, MANY_ABOVE):
            axes.axvline(edge, color=style.FAINT, linewidth=0.8, linestyle=":")
    return made


@style.figure("Neighbours and hardest negatives", lambda s: s.sample and s.sample.neighbours, "no sample")
def neighbours(subjects: Sequence[Subject]) -> Figure:
    """Queries, the most similar training images and, below, test images of other classes; with cosines."""
    samples = {group[0].group: _sample(group[0]) for group in style.groups_of(subjects)}
    count = max(len(sample.neighbours) for sample in samples.values())
    made = Figure((style.WIDTH, len(samples) * (1.5 * count + 0.3)), layout="constrained")
    parts = made.subfigures(len(samples), squeeze=False).ravel()
    for part, (name, sample) in zip(parts, samples.items(), strict=True):
        part.suptitle(name)
        columns = 1 + max(len(query.nearest[1]) for query in sample.neighbours)
        rows = part.subplots(2 * len(sample.neighbours), columns, squeeze=False)
        for axes in rows.ravel():
            axes.axis("off")
        for query, above, below in zip(sample.neighbours, rows[::2], rows[1::2], strict=True):
            above[0].imshow(query.image.permute(1, 2, 0).numpy())
            above[0].set_title(f"query: {sample.class_names[query.label]}", fontsize=7)
            for places, found in ((above[1:], query.nearest), (below[1:], query.hardest)):
                for axes, image, label, score in zip(places, *found, strict=False):
                    axes.imshow(image.permute(1, 2, 0).numpy())
                    color = style.COLORS[0] if int(label) == query.label else style.COLORS[3]
                    words = f"{sample.class_names[int(label)]}\n{float(score):.2f}"
                    axes.set_title(words, fontsize=7, color=color)
    return made
