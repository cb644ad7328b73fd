"""How several trainings share a figure: a colour and a marker for each group, a mean over its seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from zoo.report.series import Curve, curve, mean_curve, smooth
from zoo.report.style import COLORS, FAINT, INK, MARKERS, SOLID, shortened
from zoo.report.subject import Subject

_LONGEST = 44  # characters of a label in a legend


class Group(NamedTuple):
    """Subjects that differ in the seed alone, which figures draw as one in the colour of their place."""

    label: str
    subjects: tuple[Subject, ...]
    place: int

    @property
    def color(self) -> str:
        """Of its lines and points."""
        return COLORS[self.place % len(COLORS)]

    @property
    def marker(self) -> str:
        """Tells it apart in grey."""
        return MARKERS[self.place % len(MARKERS)]


def groups_of(subjects: Sequence[Subject]) -> list[Group]:
    """Return the groups in the order of their first subjects."""
    places = {subject.group: subject.place for subject in reversed(subjects)}
    labels = dict.fromkeys(subject.group for subject in subjects)
    return [Group(label, tuple(s for s in subjects if s.group == label), places[label]) for label in labels]


def legend_of(groups: Sequence[Group], words: Sequence[str] = (), *, line: str = "-") -> list[Line2D]:
    """Return an entry of a legend for each of several groups, with further words on it."""
    words = words or [""] * len(groups)
    if len(groups) == 1 and not words[0]:
        return []
    return [
        Line2D([], [], color=group.color, marker=group.marker, markersize=4, linestyle=line,
               label=shortened(f"{group.label} {more}".strip(), _LONGEST))
        for group, more in zip(groups, words, strict=True)
    ]  # fmt: skip


def variant(label: str, dash: Any, color: str = INK) -> Line2D:
    """Return an entry of a legend for a variant within groups."""
    return Line2D([], [], color=color, linestyle=dash, label=label)


def draw_mean(axes: Axes, group: Group, lines: Sequence[Any], mean: Any, *, dash: Any = SOLID) -> None:
    """Draw the mean of a group as a line with a few markers, and each of several seeds faintly.

    Args:
        axes: where.
        group: gives colour and marker.
        lines: x and y of each seed.
        mean: x and y of their mean.
        dash: of the line.
    """
    if len(lines) > 1:
        for each in lines:
            axes.plot(*each, color=group.color, linewidth=0.6, alpha=0.4, linestyle=dash)
    every = max(len(mean[0]) // 6, 1)
    first = min(group.place * every // 8, len(mean[0]) - 1)  # markers of groups do not coincide
    style: dict[str, Any] = {"color": group.color, "marker": group.marker, "markersize": 3.5}
    axes.plot(*mean, linestyle=dash, linewidth=1.4, markevery=(max(first, 0), every), **style)


def draw_recorded(axes: Axes, group: Group, name: str, *, dash: Any = SOLID) -> None:
    """Draw a recorded scalar against the step; of many records, running means over 2 % of them."""
    curves = curves_of(group, name)
    if curves:
        draw_mean(axes, group, curves, mean_curve(curves), dash=dash)


def curves_of(group: Group, name: str) -> list[Curve]:
    """Return a scalar as it is drawn, of each subject that has recorded it."""
    found = (curve(subject.rows, name) for subject in group.subjects)
    return [smooth(each, len(each.steps) // 50) for each in found if len(each.steps)]


def mark(axes: Axes, height: float) -> None:
    """Draw a faint line across at some height."""
    axes.axhline(height, color=FAINT, linewidth=0.8)
