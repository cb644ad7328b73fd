"""Figures of classes: which are alike, and what a class's accuracy owes to its training images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from zoo import hub
from zoo.data.config import data_words
from zoo.errors import DataError
from zoo.functional import FEW_BELOW, MANY_ABOVE, class_means
from zoo.modules.centers import Centers
from zoo.release import Release
from zoo.report.features import lacks_look
from zoo.report.overlay import Group, groups_of, legend_of
from zoo.report.series import Array, is_number
from zoo.report.style import CELLS, COLUMN, DOTTED, FAINT, INK, decades, panels, shortened, write_figure
from zoo.report.subject import Subject, counts_of

MOST_DRAWN = 1000
"""Classes up to which a map of them is drawn: time and memory grow with their square."""
_NAMED = 16  # classes up to which a map in a column has room for their names
_WRITTEN = 10  # and for numbers in its cells
_PAIRS = 6  # of more classes, so many pairs that are most alike are named
_JOINED = 20  # classes up to which a line joins their accuracies
_BINS = 10  # of training images, over which accuracies of more classes are averaged
_PROTOCOLS = 4  # further ones would hide each other


def lacks_classes(subject: Subject) -> str | None:
    """Say why no map of its classes can be drawn, if so."""
    if subject.centers is None and subject.look is None:
        return f"no centers, and {lacks_look(subject)}"
    if subject.centers is not None and not bool(subject.centers.weight.isfinite().all()):
        return "its centers hold NaN or infinity"
    found = similarity_of(subject)[1]
    return (
        None if 2 <= len(found) <= MOST_DRAWN else f"{len(found):,} classes, found 2 to {MOST_DRAWN:,} drawn"
    )


def similarity_of(subject: Subject) -> tuple[Array, list[str]]:
    """Return cosines of the learned centers `[C, C]` and the classes' names.

    Without centers they are of the classes' mean features, from which the mean of these is taken.
    """
    if subject.centers is not None:
        return cosines(subject.centers), list(subject.class_names or subject.centers.class_names)
    look = subject.look
    assert look is not None  # see `lacks_classes`
    present = torch.bincount(look.labels, minlength=len(look.class_names)) > 0
    means = class_means(F.normalize(look.features, dim=1), look.labels, len(look.class_names))[present]
    unit = F.normalize(means, dim=1)
    unit = F.normalize(unit - unit.mean(dim=0), dim=1).double()
    names = [name for name, there in zip(look.class_names, present.tolist(), strict=True) if there]
    return (unit @ unit.T).clamp(-1, 1).numpy(), names


def cosines(centers: Centers) -> Array:
    """Return the cosine of every two centers `[C, C]`."""
    similarity: Array = centers.similarity().detach().double().cpu().numpy()
    return similarity


def center_map(subjects: Sequence[Subject]) -> Figure:
    """Draw which classes are alike, similar ones side by side; of each group its first subject."""
    groups = groups_of(subjects)
    found = [similarity_of(group.subjects[0]) for group in groups]
    figure, axes_of = panels([_height(len(names)) for _, names in found])
    for axes, group, (similarity, names) in zip(axes_of, groups, found, strict=True):
        draw_similarity(axes, similarity, names)
        if len(groups) > 1:
            axes.set_title(shortened(group.label, 44))
    return figure


def draw_centers(centers: Centers, path: Path, *, title: str) -> None:
    """Write a map of which classes are alike by their learned centers.

    Raises:
        DataError: for fewer than two classes, more than 1,000, or centers that are not finite.
        ZooError: for a file that cannot be written.
    """
    names, count = centers.class_names, len(centers.weight)
    if not 2 <= count <= MOST_DRAWN or not bool(centers.weight.isfinite().all()):
        found = "NaN or infinity" if 2 <= count <= MOST_DRAWN else f"{count:,} classes"
        raise DataError(f"class map: found {found}, expected 2 to {MOST_DRAWN:,} finite centers")

    def make() -> Figure:
        figure, (axes,) = panels([_height(count)])
        draw_similarity(axes, cosines(centers), names)
        return figure

    write_figure(make, path, title=title)


def _height(count: int) -> float:
    """Return the inches that a map of so many classes takes, with their names beside it or pairs below."""
    return COLUMN + 0.4 if count <= _NAMED else 3.4 + 0.16 * _PAIRS


def cluster(similarity: Array) -> NDArray[np.int64]:
    """Return an order of the classes `[C]` in which similar ones are neighbours, by average linkage."""
    distance = 1 - (similarity + similarity.T) / 2
    np.fill_diagonal(distance, 0)
    pairs = squareform(distance.clip(min=0), checks=False)
    tree = linkage(pairs, "average", optimal_ordering=len(distance) <= 200)  # turning takes a cubic time
    return np.asarray(leaves_list(tree), dtype=np.int64)


def draw_similarity(axes: Axes, similarity: Array, names: Sequence[str]) -> None:
    """Draw cosines `[C, C]`, dark where classes are alike; the diagonal is left empty.

    Up to 16 classes are named beside the map; of more, the pairs that are most alike below it.
    """
    order = cluster(similarity)
    shown = similarity[np.ix_(order, order)]
    np.fill_diagonal(shown, np.nan)
    cmap = colormaps["cividis_r"].with_extremes(bad="white")  # looks the same to colour-blind people
    image = axes.imshow(shown, cmap=cmap, interpolation="antialiased")
    axes.figure.colorbar(image, ax=axes, label="cosine", location="bottom", shrink=0.7, aspect=25)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    if len(names) <= _NAMED:
        words = [shortened(names[c], 14) for c in order]
        axes.set_yticks(range(len(words)), words)
        axes.set_xticks(range(len(words)), words, rotation=90 if max(map(len, words)) > 2 else 0)
    else:
        rows, columns = np.triu_indices(len(names), 1)
        best = np.argsort(-similarity[rows, columns], kind="stable")[:_PAIRS]
        pairs = [
            f"{similarity[rows[i], columns[i]]:.2f}  "
            f"{shortened(names[rows[i]], 18)}, {shortened(names[columns[i]], 18)}"
            for i in best
        ]
        axes.set(xticks=[], yticks=[], xlabel="\n".join([f"{len(names)} classes; most alike:", *pairs]))
    if len(names) <= _WRITTEN:
        middle = (np.nanmin(shown) + np.nanmax(shown)) / 2
        for row, column in np.argwhere(np.isfinite(shown)):
            value = shown[row, column]
            color = "white" if value > middle else INK  # on the dark half of the colours
            text = f"{value:.2f}".replace("0.", ".", 1)
            axes.text(column, row, text, ha="center", va="center", fontsize=CELLS, color=color)


def accuracy(subjects: Sequence[Subject]) -> Figure:
    """Draw each class's accuracy in the sample against its training images."""
    members = []
    for group in groups_of(subjects):
        every = [s.look.per_class.double().numpy() for s in group.subjects if s.look is not None]
        same = [each for each in every if len(each) == len(every[0])]
        members.append((group, counts_of(group.subjects[0]), np.asarray(np.mean(same, axis=0))))
    return _accuracies(members)


def recorded_accuracy(subject: Subject, entries: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Draw what each protocol has measured on a release's own test images; None without such a record.

    Of several evaluations by one protocol the first is drawn, as the recipe asked for it.

    Args:
        subject: gives training images and data.
        entries: of metrics.json; those with an accuracy of every class are drawn, four at most.
    """
    counts = subject.class_counts.double().numpy()
    found: dict[str, Array] = {}
    for entry in entries:
        values = (entry.get("metrics") or {}).get("per_class")
        own = entry.get("data", subject.data) == subject.data
        if own and isinstance(values, list) and len(values) == len(counts) > 1 and counts.min() >= 0:
            known = np.array([value if is_number(value) else np.nan for value in values])
            found.setdefault(str(entry["protocol"]), known)
    drawn = list(found.items())[:_PROTOCOLS]
    members = [(Group(name, (subject,), place), counts, each) for place, (name, each) in enumerate(drawn)]
    return _accuracies(members) if members else None


def _accuracies(members: Sequence[tuple[Group, Array, Array]]) -> Figure:
    """Draw accuracies in percent `[C]`, NaN for a class without a test image, against training images."""
    legend = legend_of([group for group, _, _ in members])
    figure, (axes,) = panels([2.6], legend)
    level = all(counts.min() == counts.max() for _, counts, _ in members)
    for group, counts, values in members:
        present = np.isfinite(values)
        style: dict[str, Any] = {"color": group.color, "marker": group.marker, "mew": 0}
        x, y = np.maximum(counts[present], 0.5), values[present]  # one without training images is at 0.5
        if level:
            x, y = np.arange(1, len(y) + 1), np.sort(y)
        elif len(counts) > _JOINED:
            axes.plot(x, y, linestyle="", markersize=3, alpha=0.45, **style)
            x, y = _binned(x, y)
        order = np.argsort(x, kind="stable")
        axes.plot(x[order], y[order], markersize=4.5, markevery=max(len(x) // 10, 1), **style)
    axes.set(ylim=(-4, 104), ylabel="top-1 accuracy (%)")
    if level:
        axes.set_xlabel("classes, from the worst to the best")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        return figure
    axes.set(xscale="log", xlabel="training images of the class")
    decades(axes.xaxis)
    low, high = axes.get_xlim()
    for edge in (FEW_BELOW, MANY_ABOVE):
        if low < edge < high:
            axes.axvline(edge, color=FAINT, linewidth=0.8, linestyle=DOTTED, zorder=0)
    for name, start, stop in (
        ("few", low, FEW_BELOW),
        ("medium", FEW_BELOW, MANY_ABOVE),
        ("many", MANY_ABOVE, high),
    ):
        start, stop = max(start, low), min(stop, high)  # noqa: PLW2901
        if stop > 1.2 * start:
            middle = np.sqrt(start * stop)
            axes.text(middle, 1, name, ha="center", va="bottom", transform=axes.get_xaxis_transform())
    return figure


def _binned(x: Array, y: Array) -> tuple[Array, Array]:
    """Return means over classes of about as many images: geometric of the images, of the accuracies."""
    edges = np.geomspace(x.min(), x.max() * (1 + 1e-9), _BINS + 1)
    place = np.clip(np.digitize(x, edges) - 1, 0, _BINS - 1)
    filled = [place == b for b in np.unique(place)]
    return np.array([np.exp(np.log(x[b]).mean()) for b in filled]), np.array([y[b].mean() for b in filled])


def class_map(release: Release | str | Path, path: str | Path) -> Path:
    """Draw the cosine similarity of every two learned class centers of a release, alike ones side by side.

    Args:
        release: a release, its name or folder.
        path: .png, .svg or .pdf.

    Returns:
        The file.

    Raises:
        ZooError: for a release without centers, or a file that cannot be written.
    """
    opened = release if isinstance(release, Release) else hub.open(release)
    words = data_words(dataset) if (dataset := opened.config["zoo"]["dataset"]).get("name") else ""
    draw_centers(opened.require_centers(), Path(path), title=f"{opened.name}: class centers\n{words}".strip())
    return Path(path)
