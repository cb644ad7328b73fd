"""How a parametric contrast shares its softmax between centers and samples, and what it heads for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.lines import Line2D

from zoo.evaluation.diagnosis.overlay import (
    DASHES,
    STACKED,
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
from zoo.evaluation.figures.style import COLORS, FAINT, INK
from zoo.evaluation.series import Array, curve, mean_curve, most_frequent_first, smooth
from zoo.functional import FEW_BELOW, MANY_ABOVE

_GROUPS = {"": "all classes", "_many": "many", "_medium": "medium", "_few": "few"}
_RANGES = {
    "_many": f" (> {MANY_ABOVE} training images)",
    "_medium": f" ({FEW_BELOW} to {MANY_ABOVE})",
    "_few": f" (< {FEW_BELOW})",
}
_HIGHEST = 6.0  # of L_extra above its lowest minimum, in nats: beyond, it goes to infinity at both ends


class Weights(NamedTuple):
    """What of a recipe decides the optimum.

    Attributes:
        alpha: weight of a sample among the positives.
        beta: weight of the own center.
        queue: keys in the queue.
    """

    alpha: float
    beta: float
    queue: int

    def positives(self, counts: Array) -> Array:
        """Return K* of classes: how many of the queue's keys are of the class, |queue| q(y)."""
        expected: Array = self.queue * counts / counts.sum()
        return expected

    def loss(self, p: Array, positives: float) -> Array:
        """Return L_extra(P) = -beta log P - alpha K* log(1 - P) for P in (0, 1)."""
        value: Array = -self.beta * np.log(p) - self.alpha * positives * np.log1p(-p)
        return value

    def optimum(self, positives: float) -> float:
        """Return where it is smallest: beta / (beta + alpha K*)."""
        return self.beta / (self.beta + self.alpha * positives)


def weights_of(subject: Subject) -> Weights | None:
    """Return the weights in a subject's recipe; None for an objective without them."""
    objective = subject.recipe.get("objective")
    if not isinstance(objective, Mapping):
        return None
    alpha, beta, queue = (objective.get(key) for key in ("alpha", "beta", "queue_size"))
    if not isinstance(alpha, (int, float)) or not isinstance(queue, int):
        return None
    return Weights(float(alpha), float(beta) if isinstance(beta, (int, float)) else 1.0, queue)


def _lacks_alpha(subject: Subject) -> str | None:
    if weights_of(subject) is None:
        return f"objective {subject.objective} has no alpha that weighs samples against centers"
    if not len(subject.class_counts) or int(subject.class_counts.min()) < 0:
        return "the training images of each class are not known"
    return None


def plot_extra(subjects: Sequence[Subject], paths: Sequence[Path]) -> str:
    """Draw L_extra for the most frequent, the median and the rarest class; return the caption.

    Raises:
        DataError: where no subject's objective has alpha.
    """
    chosen = choose(subjects, _lacks_alpha, STACKED)
    caption = "L_extra(P) = −β log P − α K* log(1 − P), K* = |queue| q(y) the class's share of the queue, P "
    caption += "the softmax's mass on all centers; marks: minimum, P = β / (β + α K*). "
    caption += f"Classes of {' / '.join(dict.fromkeys(s.data for s in chosen.subjects))}. "
    caption += "The loss's own equation: neither a sample of images nor a seed enters. "
    caption = (caption + chosen.left_out).strip()
    kinds = ("most frequent", "median", "rarest")
    styles = list(zip(kinds, (COLORS[0], COLORS[1], COLORS[2]), DASHES, ("o", "s", "^"), strict=False))
    legend = [
        Line2D([], [], color=color, linestyle=dash, marker=marker, markersize=5, label=f"{kind} class")
        for kind, color, dash, marker in styles
    ]
    title = heading("The extra loss of centers", chosen.groups)
    with stack(paths, [1.9] * len(chosen.groups), caption, title, legend, sharex=True) as axes_of:
        p = np.linspace(0.001, 0.999, 999)
        for axes, group in zip(axes_of, chosen.groups, strict=True):
            subject = group.subjects[0]
            weights = weights_of(subject)
            assert weights is not None
            counts = subject.class_counts.double().numpy()
            order = most_frequent_first(counts)
            lowest = np.inf
            for (_, color, dash, marker), c in zip(
                styles, (order[0], order[len(order) // 2], order[-1]), strict=True
            ):
                positives = float(weights.positives(counts)[c])
                axes.plot(p, weights.loss(p, positives), color=color, linestyle=dash, linewidth=1.3)
                best = np.array([min(weights.optimum(positives), 0.999)])
                low = weights.loss(best, positives)
                lowest = min(lowest, float(low[0]))
                axes.plot(
                    best,
                    low,
                    marker=marker,
                    color=color,
                    markersize=7,
                    markeredgecolor=INK,
                    zorder=3,
                    clip_on=False,
                )
            axes.set_ylim(lowest - 0.25, lowest + _HIGHEST)
            words = f"α = {weights.alpha:g}, |queue| = {weights.queue:,}"
            above = words if len(chosen.groups) == 1 else f"{group.name}\n{words}"
            label_axes(axes, above, "L_extra (nats)")
        axes_of[-1].set_xlim(0, 1)
        axes_of[-1].set_xlabel("P, probability of all centers together")
    return caption


def _lacks_p_sup(subject: Subject) -> str | None:
    if weights_of(subject) is None:
        return f"objective {subject.objective} has no centers beside samples in its softmax"
    if no_record(subject):
        return no_record(subject)
    if any(len(curve(subject.rows, f"p_sup{group}").steps) for group in _GROUPS):
        return None
    return "its record has no P_sup (training.observe_every was null, no look was due yet, or it is older)"


def plot_p_sup(subjects: Sequence[Subject], paths: Sequence[Path]) -> str:
    """Draw P_sup over training against its optimum, for all classes and by group; return the caption.

    Raises:
        DataError: where no subject has recorded it.
    """
    chosen = choose(subjects, _lacks_p_sup)
    every = chosen.subjects
    panels = [g for g in _GROUPS if any(len(curve(s.rows, f"p_sup{g}").steps) for s in every)]
    caption = (
        "P_sup: mass of the softmax on all centers, mean over anchors; optimum: β / (β + α |P(i)|) with "
    )
    caption += f"the positives that were really there. Recorded on {recorded(every)}. "
    long = any(len(curve(s.rows, f"p_sup{g}").steps) > 100 for s in every for g in panels)
    caption += "Lines: running means over 2 % of the records. " if long else ""
    caption += "Faint: each seed; line: their mean. " if len(every) > len(chosen.groups) else ""
    caption = (caption + chosen.left_out).strip()
    one = len(chosen.groups) == 1
    legend: list[Any] = legend_of(chosen.groups, alone=chosen.alone)
    legend += [variant("recorded", DASHES[0]), variant("optimum", DASHES[1], color=FAINT if one else INK)]
    title = heading("P_sup and its optimum", chosen.groups)
    with stack(paths, [1.3] * len(panels), caption, title, legend, sharex=True) as axes_of:
        for axes, suffix in zip(axes_of, panels, strict=True):
            for group in chosen.groups:
                for name, dash in ((f"p_sup{suffix}", DASHES[0]), (f"p_sup_optimum{suffix}", DASHES[1])):
                    found = [curve(s.rows, name) for s in group.subjects]
                    found = [smooth(each, len(each.steps) // 50) for each in found if len(each.steps)]
                    if found:
                        color = FAINT if one and dash != DASHES[0] else None  # two of a kind
                        draw_means(axes, group, found, mean_curve(found), dash=dash, color=color)
            label_axes(axes, _GROUPS[suffix] + _RANGES.get(suffix, ""), "probability")
            axes.set_ylim(-0.03, 1.03)
        axes_of[-1].set_xlabel("optimizer step")
    return caption
