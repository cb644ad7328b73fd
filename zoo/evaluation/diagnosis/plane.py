"""Where an encoder lies between features that are spread evenly and classes that stay together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.lines import Line2D

from zoo.evaluation.diagnosis.look import Landmark
from zoo.evaluation.diagnosis.overlay import choose, heading, label_axes, legend_of, no_look, seen, stack
from zoo.evaluation.diagnosis.subject import Subject
from zoo.evaluation.figures.style import INK

_LANDMARKS = ("*", "d", "p", "8", "H")
"""Markers that no group has."""


def _lacks(subject: Subject) -> str | None:
    if subject.look is None:
        return no_look(subject)
    return None if subject.look.tolerance is not None else "no two images of the sample share a class"


def plot_plane(subjects: Sequence[Subject], paths: Sequence[Path]) -> str:
    """Draw tolerance against uniformity, with landmarks; return the caption.

    Raises:
        DataError: where no subject has both.
    """
    chosen = choose(subjects, _lacks)
    marks = _landmarks(chosen.subjects)
    caption = f"Unit pooled features, {seen(chosen.subjects)}. "
    caption += "Small: each seed; large: their mean. " if len(chosen.subjects) > len(chosen.groups) else ""
    caption += "Black: references on the same images. " if marks else ""
    caption = (caption + chosen.left_out).strip()
    title = heading("Uniformity and tolerance", chosen.groups)
    legend = legend_of(chosen.groups, lines=False, alone=True)
    style: dict[str, Any] = {
        "color": INK,
        "linestyle": "",
        "markeredgecolor": "white",
        "markeredgewidth": 0.6,
    }
    shapes = [_LANDMARKS[place % len(_LANDMARKS)] for place in range(len(marks))]
    legend += [
        Line2D([], [], marker=shape, markersize=6, label=name, **style)
        for name, shape in zip(marks, shapes, strict=True)
    ]
    with stack(paths, [2.6], caption, title, legend) as (axes,):
        for mark, shape in zip(marks.values(), shapes, strict=True):
            axes.plot(*mark, marker=shape, markersize=7, zorder=4, **style)
        for group in chosen.groups:
            points = np.array(
                [(s.look.uniformity, s.look.tolerance) for s in group.subjects if s.look is not None]
            )
            own: dict[str, Any] = {"color": group.color, "marker": group.marker, "linestyle": ""}
            if len(points) > 1:
                axes.plot(*points.T, markersize=3.5, alpha=0.5, markeredgewidth=0, **own)
            axes.plot(*points.mean(axis=0), markersize=8, markeredgecolor="white", **own)
        axes.margins(0.22, 0.18)
        label_axes(
            axes,
            "",
            "tolerance, mean cosine in a class",
            "uniformity, log E exp(−2 |x − y|²)\n(left: more even)",
        )
    return caption


def _landmarks(subjects: Sequence[Subject]) -> dict[str, Landmark]:
    """Return the references by name; those of one name are told apart by their data and architecture."""
    found: dict[tuple[str, Landmark], tuple[str, str]] = {}
    for subject in subjects:
        if subject.look is not None:
            place = subject.look.data, subject.name.partition(".")[0]
            for each in subject.look.landmarks.items():
                found.setdefault(each, place)
    marks: dict[str, Landmark] = {}
    for (name, mark), place in found.items():
        alike = [other for (each, _), other in found.items() if each == name]
        differs = [len({other[part] for other in alike}) > 1 for part in range(2)]
        words = ", ".join([name, *(text for text, told in zip(place, differs, strict=True) if told)])
        number = sum(each == words or each.startswith(f"{words} (") for each in marks)
        marks[f"{words} ({number + 1})" if number else words] = mark  # other inputs, say
    return marks
