"""How several subjects share a figure: a colour and a marker for each group, a mean over its seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter
from matplotlib.transforms import blended_transform_factory

from zoo.errors import DataError
from zoo.evaluation.diagnosis.look import Look
from zoo.evaluation.diagnosis.subject import Subject
from zoo.evaluation.figures.style import (
    COLORS,
    COLUMN,
    INK,
    MARKERS,
    SMALL,
    caption_height,
    figure_to,
    folded,
    grid,
    title_height,
)

OVERLAID, STACKED = 8, 4
"""Groups at most that one panel holds, and that have a panel each in figures of maps and images."""

DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
"""What a variant within a group is told apart by; groups have colours and markers."""

_LONGEST = 36  # characters of a label in a legend
_SHARED = 18  # characters of a label that has half of a legend's width
_LEGEND = COLUMN - 0.5  # inches of a label that has all of it, right of its line


class Group(NamedTuple):
    """Subjects that differ in the seed alone, and how they are drawn everywhere in a report.

    Attributes:
        label: of the group; of its only subject where it has one.
        subjects: one or more.
        place: in the report, which decides colour and marker.
        brief: the label as legends and panels have room for it; empty: the label, cut where it is long.
    """

    label: str
    subjects: tuple[Subject, ...]
    place: int
    brief: str = ""

    @property
    def name(self) -> str:
        """How legends, panels and captions call it."""
        return self.brief or short(self.label)

    @property
    def color(self) -> str:
        """Of its lines and points."""
        return COLORS[self.place % len(COLORS)]

    @property
    def marker(self) -> str:
        """Tells it apart in grey."""
        return MARKERS[self.place % len(MARKERS)]


class Chosen(NamedTuple):
    """Which groups a figure draws, and words on those that it does not.

    Attributes:
        groups: one or more.
        left_out: which of the report's groups is drawn where only one is, and which are not, for the caption.
        alone: whether one is drawn of several: a report shows figures without their titles, so the legend
            has to name it (`legend_of`).
    """

    groups: tuple[Group, ...]
    left_out: str
    alone: bool = False

    @property
    def subjects(self) -> list[Subject]:
        """All that are drawn."""
        return [subject for group in self.groups for subject in group.subjects]

    def without(self, others: Sequence[Group], reason: str) -> Chosen:
        """Return this choice without some groups, for a reason that holds for each of them."""
        if not others:
            return self
        kept = tuple(group for group in self.groups if group not in others)
        words = f"Not drawn: {', '.join(group.label for group in others)}: {reason}. "
        return Chosen(kept, f"{_named(kept)}{self.left_out}{words}", len(kept) == 1)


def groups_of(subjects: Sequence[Subject]) -> list[Group]:
    """Return the groups in the order of their first subjects."""
    found: dict[str, list[Subject]] = {}
    for subject in subjects:
        found.setdefault(subject.group, []).append(subject)
    whole = [members[0].label if len(members) == 1 else label for label, members in found.items()]
    parts = zip(whole, found.values(), brief(whole), strict=True)
    return [Group(label, tuple(members), place, less) for place, (label, members, less) in enumerate(parts)]


def brief(labels: Sequence[str], longest: int = _LONGEST) -> list[str]:
    """Return labels that fit and differ wherever these do.

    Where one is too long, what all have in common between commas is left out of each; of what is still too
    long the end is, or the beginning where the end tells them apart.
    """
    if len(labels) > 1 and max(map(len, labels)) > longest:
        split = [label.split(", ") for label in labels]
        shared = {part for part in split[0] if all(part in parts for parts in split)}
        # one that has nothing else keeps its own words
        labels = [
            ", ".join(part for part in parts if part not in shared) or label
            for parts, label in zip(split, labels, strict=True)
        ]
    found = [short(label, longest) for label in labels]
    if len({*found}) < len({*labels}):
        found = [label if len(label) <= longest else f"…{label[-(longest - 1) :]}" for label in labels]
    if len({*found}) < len({*labels}):  # told apart in the middle: then by their number
        found = [f"{number}: {short(label, longest - 4)}" for number, label in enumerate(labels, 1)]
    return found


def choose(
    subjects: Sequence[Subject], lacks: Callable[[Subject], str | None], most: int = OVERLAID
) -> Chosen:
    """Choose what to draw: at most so many groups, of those that lack nothing.

    Args:
        subjects: of the report.
        lacks: why a subject cannot be drawn, or None.
        most: groups.

    Raises:
        DataError: where none can be drawn: each one's reason.
    """
    reasons: dict[str, list[str]] = {}
    usable: list[Group] = []
    groups = groups_of(subjects)
    for group in groups:
        found = [lacks(subject) for subject in group.subjects]
        able = [subject for subject, reason in zip(group.subjects, found, strict=True) if reason is None]
        if able:
            usable.append(group._replace(subjects=tuple(able)))
        alike = len({*found}) == 1
        for subject, reason in zip(group.subjects, found, strict=True):
            names = reasons.setdefault(reason, []) if reason is not None else []
            name = group.label if alike else subject.label
            if name not in names:
                names.append(name)
    if not usable:
        if len(subjects) == 1 or len(reasons) == 1:
            raise DataError("; ".join(reasons))
        raise DataError("; ".join(f"{', '.join(labels)}: {reason}" for reason, labels in reasons.items()))
    words = [f"{', '.join(labels)}: {reason}" for reason, labels in reasons.items()]
    if len(usable) > most:
        words.append(f"{', '.join(group.label for group in usable[most:])}: more than {most} are not drawn")
    drawn = tuple(usable[:most])
    left_out = f"Not drawn: {'; '.join(words)}. " if words else ""
    alone = len(drawn) == 1 < len(groups)
    return Chosen(drawn, f"{_named(drawn) if alone else ''}{left_out}", alone)


def _named(drawn: Sequence[Group]) -> str:
    """Name, in full, what is drawn alone of several groups."""
    return f"Drawn: {drawn[0].label}. " if len(drawn) == 1 else ""


def no_record(subject: Subject) -> str | None:
    """Say why nothing that was recorded in training can be drawn, if so."""
    return None if subject.rows else "no record of its training"


def no_look(subject: Subject) -> str | None:
    """Say why nothing of its images can be drawn, if so."""
    if subject.look is not None:
        return None
    return "no look at its images" + (f" ({subject.without_look})" if subject.without_look else "")


def recorded(subjects: Sequence[Subject]) -> str:
    """Say what recorded scalars are of: data and seeds of the trainings."""
    return f"{_joined(s.data for s in subjects)}, training split, {_seeds(subjects)}"


def seen(subjects: Sequence[Subject]) -> str:
    """Say what looks are at: data, split, sample and seed."""
    looks = [subject.look for subject in subjects if subject.look is not None]
    samples = _joined(f"{each.data}: {_sample(each)} (drawn with seed {each.seed})" for each in looks)
    return f"{samples}; {_seeds(subjects)}"


def _sample(look: Look) -> str:
    if len(look.index) == look.total:
        return f"all {look.total:,} test images"
    return f"{len(look.index):,} of {look.total:,} test images"


def _seeds(subjects: Sequence[Subject]) -> str:
    known = sorted({s.seed for s in subjects if s.seed is not None})
    if not known:
        return "seed of the training not known"
    return f"training seed{'s' if len(known) > 1 else ''} {', '.join(map(str, known))}"


def _joined(words: Any) -> str:
    return " / ".join(dict.fromkeys(words))


def told(words: Sequence[tuple[str, str]]) -> str:
    """Say what holds for whom: once where it is the same for all, else each with the names that it is for.

    Args:
        words: name and words of each.
    """
    by: dict[str, list[str]] = {}
    for name, text in words:
        names = by.setdefault(text, [])
        if name not in names:
            names.append(name)
    if len(by) == 1:
        return next(iter(by))
    return "; ".join(f"{text} ({', '.join(names)})" for text, names in by.items())


def short(label: str, longest: int = _LONGEST) -> str:
    """Return a label that fits."""
    return label if len(label) <= longest else f"{label[: longest - 1]}…"


def legend_of(groups: Sequence[Group], *, lines: bool = True, alone: bool = False) -> list[Line2D]:
    """Return an entry of a legend for each group.

    Args:
        groups: drawn.
        lines: whether they are drawn as lines, not as marks alone.
        alone: whether a single group is named too, then in full, in as many lines as it needs. Without, the
            title names it; reports show figures without one, so ask where `Chosen.alone`.
    """
    if len(groups) == 1 and not alone:
        return []
    names = [group.name for group in groups]
    if len(groups) == 1:
        names = [folded(groups[0].label, _LEGEND, SMALL)]
    style: dict[str, Any] = {"markersize": 4, "linewidth": 1.4 if lines else 0}
    return [
        Line2D([], [], color=group.color, marker=group.marker, label=name, **style)
        for group, name in zip(groups, names, strict=True)
    ]


def variant(label: str, dash: Any, *, color: str = INK, width: float = 1.4) -> Line2D:
    """Return an entry of a legend for a variant within groups."""
    return Line2D([], [], color=color, linestyle=dash, linewidth=width, label=label)


@contextmanager
def stack(
    paths: Sequence[Path],
    heights: Sequence[float],
    caption: str,
    title: str,
    legend: Sequence[Any] = (),
    *,
    sharex: bool = False,
) -> Iterator[list[Axes]]:
    """Give panels one below the other, under a legend; then write the figure to every path.

    Args:
        paths: .png, .svg or .pdf.
        heights: inches of each panel.
        caption: below the panels.
        title: above them.
        legend: handles.
        sharex: whether the panels have one x axis.
    """
    labels = [str(each.get_label()) for each in legend]
    columns = 1 if any(len(label) > _SHARED for label in labels) else 2
    lines = -(-len(labels) // columns) + sum(label.count("\n") for label in labels)
    above = 0.17 * lines + 0.05
    total = sum(heights) + above + caption_height(caption, COLUMN) + title_height(title, COLUMN)
    ratios = ([above] if legend else []) + [*heights]
    with figure_to(paths, (COLUMN, total), caption, title) as figure:
        every = figure.subplots(len(ratios), 1, squeeze=False, height_ratios=ratios)[:, 0]
        axes = list(every)
        if legend:
            top = axes.pop(0)
            top.axis("off")
            style: dict[str, Any] = {"handlelength": 2.4, "columnspacing": 1.2, "labelspacing": 0.25}
            style |= {"ncols": columns, "borderaxespad": 0, "borderpad": 0}
            # from the figure's edge on, not from that of the panels: labels are long
            style |= {"bbox_to_anchor": (0.02, 1), "loc": "upper left"}
            place = blended_transform_factory(figure.transFigure, top.transAxes)
            top.legend(handles=list(legend), bbox_transform=place, **style).set_in_layout(False)
        if sharex:
            for each in axes[1:]:
                each.sharex(axes[0])
            for each in axes[:-1]:
                each.tick_params(labelbottom=False)
        yield axes


def draw_means(
    axes: Axes,
    group: Group,
    lines: Sequence[tuple[Any, Any]],
    mean: tuple[Any, Any],
    *,
    dash: Any = "-",
    marked: int = 6,
    color: str | None = None,
) -> None:
    """Draw a group's mean as a line with a few markers, and where it has several seeds, each faintly.

    Args:
        axes: where.
        group: gives colour and marker.
        lines: x and y of each subject.
        mean: x and y of their mean.
        dash: of the line.
        marked: markers on the line.
        color: other than the group's.
    """
    color = color or group.color
    if len(lines) > 1:
        for x, y in lines:
            axes.plot(x, y, color=color, linewidth=0.6, alpha=0.4, linestyle=dash)
    x, y = mean
    every = max(len(x) // marked, 1)
    start = min(group.place * every // 8, max(len(x) - 1, 0))  # so that the groups' markers do not coincide
    axes.plot(
        x,
        y,
        color=color,
        linestyle=dash,
        linewidth=1.4,
        marker=group.marker,
        markersize=3.5,
        markevery=(start, every),
    )


def label_axes(axes: Axes, title: str, y: str, x: str | None = None) -> None:
    """Name a panel and its axes, and draw a faint grid."""
    axes.set_title(title, loc="left")
    axes.set_ylabel(y)
    if x is not None:
        axes.set_xlabel(x)
    grid(axes)


def ticks_of_decades(axis: Any) -> None:
    """Write plain numbers along a logarithmic axis: 1, 2 and 5 of each decade, of many decades the 1."""
    low, high = sorted(axis.get_view_interval())
    if low > 0 and high / low < 6:
        axis.set_major_locator(MaxNLocator(4))
    else:
        few = low > 0 and high / low < 300
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,), numticks=12))
    axis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axis.set_minor_formatter(NullFormatter())


def heading(title: str, groups: Sequence[Group]) -> str:
    """Return a figure's title; with one group it names it."""
    if len(groups) > 1:
        return title
    return f"{title}\n{short(groups[0].label, 80)}"


def finite(values: Any) -> Any:
    """Return values with what is not positive as NaN, for a logarithmic axis."""
    values = np.asarray(values, dtype=float)
    return np.where(values > 0, values, np.nan)
