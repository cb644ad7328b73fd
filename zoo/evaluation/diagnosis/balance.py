"""Which classes a training listens to: gradients over the classes, and accuracies by their images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from zoo.evaluation.diagnosis.overlay import (
    DASHES,
    Chosen,
    Group,
    choose,
    draw_means,
    finite,
    heading,
    label_axes,
    legend_of,
    recorded,
    short,
    stack,
    ticks_of_decades,
    told,
    variant,
)
from zoo.evaluation.diagnosis.subject import Subject
from zoo.evaluation.figures.style import FAINT, INK
from zoo.evaluation.series import Array, class_means, most_frequent_first

_PANELS = {
    "class_gradient": "of a class: all its images",
    "feature_gradient": "of one image: mean in its class",
    "center_gradient": "of the class's center",
}
_ROOM = 36  # characters side by side below a panel

_WINDOWS = 20  # windows of classes, where there are so many that running means are drawn
_CLOSED = "closed form"

Gradients = Mapping[str, Array]


def gradients(subject: Subject) -> tuple[Gradients, bool]:
    """Return gradient norms of each class `[C]` by name, and whether they are computed, not recorded.

    Recorded ones are means over the training. Else they are those of the loss of `Look.gradient_of` at the
    released encoder and centers, over training images under the evaluation view.
    """
    classes = len(subject.class_counts)
    found = {key: class_means(subject.class_rows, key, classes) for key in _PANELS}
    known = {key: values for key, values in found.items() if values is not None and np.isfinite(values).any()}
    if known or subject.look is None or subject.look.gradient is None:
        return known, False
    each = np.asarray(subject.look.gradient.double().numpy())
    counts = subject.class_counts.double().numpy()
    return {"feature_gradient": each, "class_gradient": each * counts / counts.sum()}, True


def _lacks_gradients(subject: Subject) -> str | None:
    if len(subject.class_counts) < 2:
        return "one class" if len(subject.class_counts) else "its classes are not known"
    if int(subject.class_counts.min()) < 0:
        return "the training images of each class are not known"
    if gradients(subject)[0]:
        return None
    if subject.look is not None and subject.centers is not None:
        return f"no record of its classes' gradients, and they cannot be computed: {subject.look.gradient_of}"
    return "no record of its classes' gradients, and no centers to compute them with" + (
        "" if subject.centers is None else " on images"
    )


def plot_balance(subjects: Sequence[Subject], paths: Sequence[Path]) -> str:
    """Draw gradient norms over the classes, the most frequent first, each with mean 1; return the caption.

    Raises:
        DataError: where no subject has any.
    """
    chosen = choose(subjects, _lacks_gradients)
    found = {id(s): gradients(s) for s in chosen.subjects}
    first = chosen.subjects[0]
    others = [g for g in chosen.groups if len(g.subjects[0].class_counts) != len(first.class_counts)]
    chosen = chosen.without(others, "another number of classes")
    chosen = chosen._replace(groups=tuple(_of_one_kind(group, found) for group in chosen.groups))
    first = chosen.subjects[0]
    panels = [key for key in _PANELS if any(key in found[id(s)][0] for s in chosen.subjects)]
    closed = [group for group in chosen.groups if found[id(group.subjects[0])][1]]
    learned = [s for group in chosen.groups if group not in closed for s in group.subjects]
    caption = "2-norm of a loss's gradient with respect to pooled features (centers: their weights), "
    caption += f"divided by its mean over the {len(first.class_counts)} classes. "
    if learned:
        caption += f"Of a class: its images' sum in a step. Mean over training on {recorded(learned)}. "
    caption += _on_closed(closed, len(chosen.groups)) if closed else ""
    window = len(first.class_counts) // _WINDOWS
    caption += f"Running means over {window} classes{_gaps(chosen, found)}. " if window > 1 else ""
    caption += "Faint: each seed; line: their mean. " if len(chosen.subjects) > len(chosen.groups) else ""
    caption = (caption + chosen.left_out).strip()
    legend = legend_of(chosen.groups, alone=chosen.alone)
    for handle, group in zip(legend, chosen.groups, strict=False):
        if group in closed:
            name = f"{handle.get_label()}\n" if chosen.alone else f"{short(group.name, 22)} "
            handle.set_label(f"{name}({_CLOSED})")
            handle.set_linestyle(DASHES[1])
    orders = {tuple(_sorted(s, s.class_counts.double().numpy())) for s in chosen.subjects}
    if "class_gradient" in panels:
        legend.append(variant("as the class's images", DASHES[2], color=FAINT if len(orders) == 1 else INK))
    title = heading("Gradients over the classes", chosen.groups)
    with stack(paths, [1.6] * len(panels), caption, title, legend, sharex=True) as axes_of:
        for axes, key in zip(axes_of, panels, strict=True):
            if key == "class_gradient":
                for group in chosen.groups[: 1 if len(orders) == 1 else None]:
                    color = FAINT if len(orders) == 1 else group.color
                    _draw_share(axes, group.subjects[0], color)
            for group in chosen.groups:
                _draw_group(axes, group, [(s, *found[id(s)]) for s in group.subjects], key)
            axes.set_yscale("log")
            ticks_of_decades(axes.yaxis)
            label_axes(axes, _PANELS[key], "relative to mean")
        _name_classes(axes_of[-1], chosen.subjects)
    return caption


def _gaps(chosen: Chosen, found: Mapping[int, tuple[Gradients, bool]]) -> str:
    """Say that a mean leaves out classes that were never looked at, where there are some."""
    every = [values for s in chosen.subjects for values in found[id(s)][0].values()]
    return "" if all(np.isfinite(values).all() for values in every) else ", of those that were looked at"


def _of_one_kind(group: Group, found: Mapping[int, tuple[Gradients, bool]]) -> Group:
    """Return a group without its subjects that are computed, where others are recorded: no mean has both."""
    learned = tuple(s for s in group.subjects if not found[id(s)][1])
    return group._replace(subjects=learned or group.subjects)


def _on_closed(groups: Sequence[Group], drawn: int) -> str:
    """Say of which loss gradients were computed, on which images, and what they are not."""
    pairs = [(group.name, group.subjects[0].look) for group in groups]
    looks = [(name, look) for name, look in pairs if look is not None]
    whom = "" if len(groups) == drawn else f" for {', '.join(name for name, _ in looks)}"
    images = [
        (name, f"{look.gallery:,} of {look.gallery_total:,} training images of {look.training_data}")
        for name, look in looks
    ]
    return (
        f"Not recorded but computed{whom}, at the released encoder and centers, after training: "
        f"{told([(name, look.gradient_of) for name, look in looks])}; {told(images)}, evaluation view. "
        "Of a class: this times its share of the training images. "
    )


def _draw_share(axes: Axes, subject: Subject, color: str) -> None:
    counts = _sorted(subject, subject.class_counts.double().numpy())
    rank = np.arange(1, len(counts) + 1)
    axes.plot(rank, finite(counts / counts.mean()), color=color, linestyle=DASHES[2], linewidth=1.4, zorder=1)


def _draw_group(axes: Axes, group: Group, members: Sequence[Any], key: str) -> None:
    lines = []
    for subject, values, _ in members:
        if key in values:
            ordered = _sorted(subject, values[key] / np.nanmean(values[key]))
            lines.append(_even(ordered))
    if not lines:
        return
    each = np.array([y for _, y in lines])
    known = np.isfinite(each).sum(axis=0)
    mean = np.where(known > 0, np.nansum(each, axis=0) / np.maximum(known, 1), np.nan)
    dash = DASHES[1] if members[0][2] else DASHES[0]
    draw_means(axes, group, lines, (lines[0][0], finite(mean)), dash=dash, marked=10)


def _even(values: Array) -> tuple[Array, Array]:
    """Return ranks and values; of many classes, running means of those that have a value."""
    window = len(values) // _WINDOWS
    rank = np.arange(1, len(values) + 1, dtype=float)
    if window < 2:
        return rank, values
    known = np.isfinite(values)
    ones = np.ones(window)
    total = np.convolve(np.where(known, values, 0.0), ones, mode="valid")
    count = np.convolve(known.astype(float), ones, mode="valid")
    means = np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)
    return np.convolve(rank, ones / window, mode="valid"), means


def _sorted(subject: Subject, values: Array) -> Array:
    return values[most_frequent_first(subject.class_counts.double().numpy())]


def _name_classes(axes: Axes, subjects: Sequence[Subject]) -> None:
    """Name the classes where all subjects have the same in this order, else by their place alone."""
    every = [s.class_counts.tolist() for s in subjects]
    counts, names = every[0], subjects[0].class_names
    order = most_frequent_first(np.asarray(counts, dtype=float))
    same = all(
        each == counts and tuple(s.class_names) == tuple(names)
        for each, s in zip(every, subjects, strict=True)
    )
    longest = max(len(text) for c in order for text in (names[c], str(counts[c])))
    if same and len(order) * (longest + 0.5) <= _ROOM:
        axes.set_xticks(range(1, len(order) + 1), [f"{names[c]}\n{counts[c]}" for c in order])
        axes.set_xlabel("class, and its training images")
        return
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    ranges = {_range(each) for each in every}
    spread = next(iter(ranges)) if len(ranges) == 1 else "most training images first"
    axes.set_xlabel(f"place of the class\n({spread})")


def _range(counts: Sequence[int]) -> str:
    most, least = max(counts), min(counts)
    return f"{most:,} to {least:,} training images" if most > least else f"{most:,} training images each"
