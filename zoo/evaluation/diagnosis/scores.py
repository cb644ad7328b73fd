"""Scores of positive and negative pairs over a training, as FT's paper reads them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.ticker import MaxNLocator

from zoo.evaluation.diagnosis.overlay import (
    DASHES,
    choose,
    draw_means,
    heading,
    label_axes,
    legend_of,
    no_record,
    recorded,
    stack,
    variant,
)
from zoo.evaluation.diagnosis.subject import Subject
from zoo.evaluation.series import curve, mean_curve, smooth

_SCORE = "inner product"
_PANELS = {
    "positive_score": ("positive pairs: mean", _SCORE),
    "positive_variance": ("positive pairs: variance", f"{_SCORE}²"),
    "negative_score": ("negative pairs: mean", _SCORE),
    "negative_variance": ("negative pairs: variance", f"{_SCORE}²"),
    "same_class_score": ("pairs of one class: mean", _SCORE),
    "same_class_variance": ("pairs of one class: variance", f"{_SCORE}²"),
}
_SHOWN = 100  # records that are shown one by one; of more, running means over 2 %


def _lacks(subject: Subject) -> str | None:
    if no_record(subject):
        return no_record(subject)
    if any(len(curve(subject.rows, name).steps) for name in _PANELS):
        return None
    return f"its record has no scores of pairs: objective {subject.objective} has none, or none was recorded"


def plot_scores(subjects: Sequence[Subject], paths: Sequence[Path]) -> str:
    """Draw mean and variance of the scores against the step, before and after FT; return the caption.

    Raises:
        DataError: where no subject has recorded scores.
    """
    chosen = choose(subjects, _lacks)
    every = chosen.subjects
    panels = [name for name in _PANELS if any(len(curve(s.rows, name).steps) for s in every)]
    after = any(len(curve(s.rows, f"{name}_ft").steps) for s in every for name in panels)
    caption = "Scores that enter the loss: inner products, which are cosines as long as norms are 1"
    caption += ", so not after FT" if after else ""
    caption += f"; recorded while training on {recorded(every)}. "
    smoothed = any(len(curve(s.rows, name).steps) > _SHOWN for s in every for name in panels)
    caption += "Lines: running means over 2 % of the records. " if smoothed else ""
    caption += "Faint: each seed; line: their mean. " if len(every) > len(chosen.groups) else ""
    caption += chosen.left_out
    legend = legend_of(chosen.groups)
    legend += [variant("before FT", DASHES[0]), variant("after FT", DASHES[1])] if after else []
    title = heading("Scores of pairs in training", chosen.groups)
    with stack(
        paths, [1.2 if len(panels) > 2 else 1.7] * len(panels), caption.strip(), title, legend, sharex=True
    ) as axes_of:
        for axes, name in zip(axes_of, panels, strict=True):
            for group in chosen.groups:
                for suffix, dash in (("", DASHES[0]), ("_ft", DASHES[1])):
                    found = [curve(subject.rows, f"{name}{suffix}") for subject in group.subjects]
                    found = [smooth(each, len(each.steps) // 50) for each in found if len(each.steps)]
                    if found:
                        draw_means(axes, group, found, mean_curve(found), dash=dash)
            label_axes(axes, *_PANELS[name])
            axes.yaxis.set_major_locator(MaxNLocator(4))
        axes_of[-1].set_xlabel("optimizer step")
        axes_of[-1].xaxis.set_major_locator(MaxNLocator(5, integer=True))
    return caption.strip()
