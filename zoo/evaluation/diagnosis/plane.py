"""Where an encoder lies between features that are spread evenly and classes that stay together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zoo.evaluation._figure import INK
from zoo.evaluation.diagnosis.look import Landmark
from zoo.evaluation.diagnosis.overlay import choose, heading, label_axes, legend_of, no_look, seen, stack
from zoo.evaluation.diagnosis.subject import Subject

_LANDMARKS = ("*", "X", "P", "D")


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
    marks: dict[tuple[str, Landmark], None] = {}
    for subject in chosen.subjects:
        if subject.look is not None:
            marks |= dict.fromkeys(subject.look.landmarks.items())
    caption = f"Unit pooled features, {seen(chosen.subjects)}. "
    caption += "Small: each seed; large: their mean. " if len(chosen.subjects) > len(chosen.groups) else ""
    caption += "Black: references on the same images. " if marks else ""
    caption = (caption + chosen.left_out).strip()
    title = heading("Uniformity and tolerance", chosen.groups)
    legend = legend_of(chosen.groups, lines=False)
    with stack(paths, [2.6], caption, title, legend) as (axes,):
        for place, (name, mark) in enumerate(marks):
            at = (mark.uniformity, mark.tolerance)
            marker = _LANDMARKS[place % len(_LANDMARKS)]
            axes.plot(
                *at, marker, color=INK, markersize=7, markeredgecolor="white", markeredgewidth=0.6, zorder=4
            )
            axes.annotate(
                name, at, (0, 6), textcoords="offset points", ha="center", fontsize=7, annotation_clip=False
            )
        for group in chosen.groups:
            points = np.array(
                [(s.look.uniformity, s.look.tolerance) for s in group.subjects if s.look is not None]
            )
            style: dict[str, Any] = {"color": group.color, "marker": group.marker, "linestyle": ""}
            if len(points) > 1:
                axes.plot(*points.T, markersize=3.5, alpha=0.5, markeredgewidth=0, **style)
            axes.plot(*points.mean(axis=0), markersize=8, markeredgecolor="white", **style)
        axes.margins(0.22, 0.18)
        label_axes(
            axes,
            "",
            "tolerance, mean cosine in a class",
            "uniformity, log E exp(−2 |x − y|²)  (left: more even)",
        )
    return caption
