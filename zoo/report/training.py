"""Figures of a training's records: curves, scores, P_sup, and gradients over the classes."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from zoo.functional import FEW_BELOW, MANY_ABOVE
from zoo.report.style import FAINT, draw_lines, figure, groups_of, panels, plain_log
from zoo.report.subject import GRADIENTS, Array, Subject

_PAIRS = {"positive": "positive", "negative": "negative", "same_class": "one class"}
_SCORES = [f"{pairs}_{what}" for pairs in _PAIRS for what in ("score", "variance")]
_SHOTS = {
    "": "all classes",
    "_many": f"many (> {MANY_ABOVE} training images)",
    "_medium": f"medium ({FEW_BELOW} to {MANY_ABOVE})",
    "_few": f"few (< {FEW_BELOW})",
}
_ELSEWHERE = re.compile(rf"({'|'.join(_SCORES)})(_ft)?|.*(_many|_medium|_few)")


def _draw_recorded(axes: Axes, subjects: Sequence[Subject], name: str, other: str, what: str) -> None:
    """Draw the recorded scalar `name` against the step, and dashed `other`, called `what` in the legend.

    Many records are smoothed over 2 % of them; several seeds are averaged over the steps that all reach.
    """
    for group in groups_of(subjects):
        for key, ending, dash in ((name, "", "-"), (other, f", {what}", "--")):
            found = [subject.record[key].dropna() for subject in group if key in subject.record]
            if found:
                means = [s.rolling(max(len(s) // 50, 1), center=True).mean().dropna() for s in found]
                lines = pd.concat(means, axis=1).sort_index().interpolate("index", limit_area="inside")
                draw_lines(axes, lines.dropna(), group[0].place, group[0].group + ending, dash)
    axes.set_xlabel("optimizer step")
    axes.xaxis.set_major_locator(MaxNLocator(2, integer=True))


@figure("Curves of training", lambda subject: not subject.record.empty, "no record of its training")
def curves(subjects: Sequence[Subject]) -> Figure:
    """Quantities recorded over all classes against the step, one panel each, with the optimum if known."""
    first = {"loss": 0, "lr": 1, "images_per_second": 2}
    found = {name for subject in subjects for name in subject.record if not _ELSEWHERE.fullmatch(name)}
    names = sorted({name.removesuffix("_optimum") for name in found}, key=lambda n: (first.get(n, 3), n))
    made, axes_of = panels(len(names), 1.4, columns=2)
    for axes, name in zip(axes_of, names, strict=True):
        _draw_recorded(axes, subjects, name, f"{name}_optimum", "optimum")
        axes.set_title(name.replace("_", " "))
    return made


@figure(
    "Scores of positive and negative pairs in training",
    lambda subject: any(name in subject.record for name in _SCORES),
    "no record of scores",
)
def scores(subjects: Sequence[Subject]) -> Figure:
    """Mean and variance before and after feature transformation (FT; Zhu et al. 2021, arXiv 2108.02982)."""
    names = [name for name in _SCORES if any(name in subject.record for subject in subjects)]
    made, axes_of = panels(len(names), 1.6, columns=2)
    for axes, name in zip(axes_of, names, strict=True):
        _draw_recorded(axes, subjects, name, f"{name}_ft", "after FT")
        pairs, _, what = name.rpartition("_")
        axes.set_title(f"{_PAIRS[pairs]}: {'mean' if what == 'score' else what}")
    return made


@figure("P_sup in training and its optimum", lambda subject: "p_sup" in subject.record, "no record of P_sup")
def p_sup(subjects: Sequence[Subject]) -> Figure:
    """Softmax mass on all centers; its optimum is β / (β + α |P(i)|) (Cui et al. 2021, arXiv 2107.12028)."""
    shots = [shot for shot in _SHOTS if any(f"p_sup{shot}" in subject.record for subject in subjects)]
    made, axes_of = panels(len(shots), 1.4, sharex=True)
    for axes, shot in zip(axes_of, shots, strict=True):
        _draw_recorded(axes, subjects, f"p_sup{shot}", f"p_sup_optimum{shot}", "optimum")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.set(title=_SHOTS[shot], ylabel="probability", ylim=(-0.03, 1.03))
        axes.label_outer()
    return made


@figure(
    "Gradients over the classes, the most frequent first",
    lambda subject: subject.counted and subject.gradients,
    "no record of its classes' gradients",
)
def balance(subjects: Sequence[Subject]) -> Figure:
    """Norm of the loss gradient w.r.t. pooled features or center weights, relative to the mean over classes.

    Means over the training (Cui et al. 2021, figure 2); for 40 classes or more, running means over classes.
    """
    keys = [key for key in GRADIENTS if any(key in subject.gradients for subject in subjects)]
    made, axes_of = panels(len(keys), 1.6, sharex=True)
    for axes, key in zip(axes_of, keys, strict=True):
        shares = {tuple(sorted(subject.class_counts.tolist(), reverse=True)) for subject in subjects}
        for share in shares if key == "class_gradient" else ():
            x, y = range(1, len(share) + 1), np.array(share) / np.mean(share)
            axes.plot(x, y, color=FAINT, linestyle=":", label="share of the images")
        for group in groups_of(subjects):
            lines = [_by_rank(s, s.gradients[key]) for s in group if key in s.gradients]
            if lines:
                draw_lines(axes, pd.concat(lines, axis=1), group[0].place, group[0].group)
        axes.set_yscale("log", nonpositive="mask")
        axes.set(title=GRADIENTS[key], ylabel="relative to mean")
        plain_log(axes.yaxis)
    axes_of[-1].set_xlabel("classes, the most frequent first")
    return made


def _by_rank(subject: Subject, values: Array) -> pd.Series:
    """Return values relative to their mean, by rank; for many classes, as running means."""
    mean = np.nanmean(values) or np.nan  # zero gradients (of a single step, say) have no relative value
    values = (values / mean)[subject.frequent_first]
    ranked = pd.Series(values, index=np.arange(1, len(values) + 1, dtype=float))
    return ranked.rolling(max(len(values) // 20, 1), min_periods=1, center=True).mean()
