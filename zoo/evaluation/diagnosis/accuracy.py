"""What a class's accuracy owes to its training images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from zoo.evaluation.diagnosis.overlay import (
    DASHES,
    Group,
    choose,
    heading,
    label_axes,
    legend_of,
    no_look,
    seen,
    stack,
    ticks_of_decades,
    told,
)
from zoo.evaluation.diagnosis.subject import Subject, counts_of
from zoo.evaluation.figures.style import FAINT, QUIET
from zoo.evaluation.series import Array
from zoo.functional import FEW_BELOW, MANY_ABOVE

_JOINED = 20  # classes up to which a line joins them
_BINS = 10  # of training images, over which accuracies of more classes are averaged


def plot_accuracy(subjects: Sequence[Subject], paths: Sequence[Path]) -> str:
    """Draw each class's accuracy against its training images; return the caption.

    Raises:
        DataError: where no subject has a look.
    """
    chosen = choose(subjects, no_look)
    caption = f"Top-1 accuracy of each class by {_classifiers(chosen.groups)}; {seen(chosen.subjects)}. "
    caption += f"Each class's accuracy is of {told([(g.name, _tested(g)) for g in chosen.groups])}. "
    counts = {id(s): counts_of(s) for s in chosen.subjects}
    many = max(len(each) for each in counts.values()) > _JOINED
    level = all(each.min() == each.max() for each in counts.values())
    if level:
        each = [(g.name, f"{counts[id(g.subjects[0])][0]:,.0f} training images") for g in chosen.groups]
        caption += f"Every class has {told(each)}. "
    elif many:
        caption += "Points: classes; lines: means over classes of about as many images. "
    caption += "Means over seeds. " if len(chosen.subjects) > len(chosen.groups) else ""
    caption = (caption + chosen.left_out).strip()
    title = heading("Accuracy of each class" if level else "Accuracy by training images", chosen.groups)
    members = []
    for group in chosen.groups:
        every = [s.look.per_class.double().numpy() for s in group.subjects if s.look is not None]
        same = [each for each in every if len(each) == len(every[0])]
        members.append((group, counts[id(group.subjects[0])], same))
    draw_accuracies(paths, members, caption, title, legend_of(chosen.groups))
    return caption


def draw_accuracies(
    paths: Sequence[Path],
    members: Sequence[tuple[Group, Array, Sequence[Array]]],
    caption: str,
    title: str,
    legend: Sequence[Any],
) -> None:
    """Draw accuracies of classes against their training images.

    Args:
        paths: .png, .svg or .pdf.
        members: of each group the training images of each class `[C]`, and accuracies `[C]` in percent of
            each of its subjects, NaN for a class without a test image.
        caption: below.
        title: above.
        legend: handles.
    """
    many = max(len(counts) for _, counts, _ in members) > _JOINED
    level = all(counts.min() == counts.max() for _, counts, _ in members)
    with stack(paths, [2.6], caption, title, legend) as (axes,):
        for group, counts, every in members:
            _draw_accuracies(axes, group, counts, every, level=level, many=many)
        if not level:
            axes.set_xscale("log")
            ticks_of_decades(axes.xaxis)
            _mark_groups(axes)
        axes.set_ylim(-4, 104)
        x = "classes, from the worst to the best" if level else "training images of the class"
        label_axes(axes, "", "top-1 accuracy (%)", x)
        if level:
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def _classifiers(groups: Sequence[Group]) -> str:
    """Say what classified, and where several did, which group by which."""
    looks = [(group.name, group.subjects[0].look) for group in groups]
    return told([(name, look.classifier) for name, look in looks if look is not None])


def _tested(group: Group) -> str:
    """Say of how many images of the looks the accuracies of a group's classes are."""
    looks = [subject.look for subject in group.subjects if subject.look is not None]
    images = [torch.bincount(each.labels) for each in looks]
    low = min(int(each[each > 0].min()) for each in images)
    high = max(int(each.max()) for each in images)
    sampled = "sampled " if any(len(each.labels) < each.total for each in looks) else ""
    number = f"{high:,}" if low == high else f"{low:,} to {high:,}"
    return f"{number} {sampled}test image{'s' if high > 1 else ''}"


def _draw_accuracies(
    axes: Axes, group: Group, counts: Array, every: Sequence[Array], *, level: bool, many: bool
) -> None:
    mean = np.mean(every, axis=0)
    present = np.isfinite(mean)
    style: dict[str, Any] = {"color": group.color, "marker": group.marker, "markeredgewidth": 0}
    if level:
        y = np.sort(mean[present])
        axes.plot(np.arange(1, len(y) + 1), y, markersize=4, markevery=max(len(y) // 10, 1), **style)
        return
    x, y = np.maximum(counts[present], 0.5), mean[present]  # a class without training images is at 0.5
    if not many:
        order = np.argsort(x, kind="stable")
        axes.plot(x[order], y[order], markersize=4.5, linewidth=0.9, **style)
        for each in every if len(every) > 1 else ():
            axes.plot(x, each[present], linestyle="", markersize=3, alpha=0.4, **style)
        return
    axes.plot(x, y, linestyle="", markersize=3, alpha=0.45, **style)
    edges = np.geomspace(x.min(), x.max() * (1 + 1e-9), _BINS + 1)
    place = np.clip(np.digitize(x, edges) - 1, 0, _BINS - 1)
    filled = np.unique(place)
    centers = [math.exp(np.log(x[place == b]).mean()) for b in filled]
    axes.plot(centers, [y[place == b].mean() for b in filled], linewidth=1.5, markersize=5, **style)


def _mark_groups(axes: Axes) -> None:
    low, high = axes.get_xlim()
    for edge in (FEW_BELOW, MANY_ABOVE):
        if low < edge < high:
            axes.axvline(edge, color=FAINT, linewidth=0.8, linestyle=DASHES[2], zorder=0)
    edges = [low, *(min(max(edge, low), high) for edge in (FEW_BELOW, MANY_ABOVE)), high]
    for name, start, stop in zip(("few", "medium", "many"), edges[:-1], edges[1:], strict=True):
        if start < stop and math.log(stop / start) > 0.06 * math.log(high / low):
            middle = math.sqrt(start * stop)
            axes.text(
                middle,
                1.0,
                name,
                color=QUIET,
                ha="center",
                va="bottom",
                transform=axes.get_xaxis_transform(),
            )
    axes.set_xlim(low, high)
