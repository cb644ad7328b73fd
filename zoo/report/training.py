"""Figures of what a training recorded: its curves, scores, P_sup, and gradients over the classes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from zoo.functional import FEW_BELOW, MANY_ABOVE
from zoo.report import series
from zoo.report.overlay import draw_mean, draw_recorded, groups_of, legend_of, variant
from zoo.report.series import GROUPS, Array, Scalar
from zoo.report.style import COLORS, DASHED, DOTTED, FAINT, INK, MARKERS, SOLID, decades, panels, positive
from zoo.report.subject import Subject

_UNITS = {
    "loss": "nats",
    "validation_loss": "nats",
    "images_per_second": "images / s",
    "gradient_norm": "2-norm",
    "feature_gradient": "2-norm",
    "center_norm": "2-norm",
    "uniformity": "log E exp(−2 d²)",
    "alignment": "E |q − k|²",
    "tolerance": "mean cosine",
    "center_cosine": "mean cosine",
}
_FIRST = ("loss", "lr", "images_per_second")
_DASHES = {"": SOLID, "optimum": DOTTED, "ft": DASHED}
_SCORE = re.compile(r"(positive|negative|same_class)_(score|variance)(_ft)?")
_SCORES = [
    f"{pairs}_{what}" for pairs in ("positive", "negative", "same_class") for what in ("score", "variance")
]
_SHOTS = {
    "": "all classes",
    "_many": f"many (> {MANY_ABOVE} training images)",
    "_medium": f"medium ({FEW_BELOW} to {MANY_ABOVE})",
    "_few": f"few (< {FEW_BELOW})",
}
_GRADIENTS = {
    "class_gradient": "of a class: all its images",
    "feature_gradient": "of one image: mean in its class",
    "center_gradient": "of the class's center",
}
_WINDOWS = 20  # windows of classes, where there are so many that running means are drawn


def _has(subject: Subject, names: Sequence[str]) -> bool:
    return any(len(series.curve(subject.rows, name).steps) for name in names)


def lacks_record(subject: Subject) -> str | None:
    """Say why there are no curves, if so."""
    return None if series.names(subject.rows) else "no record of its training"


def curves(subjects: Sequence[Subject]) -> Figure:
    """Draw every recorded scalar against the step, one panel for each quantity, without scores of pairs.

    Of one group also what was recorded of many-, medium- and few-shot classes; of several, the overall ones.
    """
    groups = groups_of(subjects)
    names = dict.fromkeys(name for subject in subjects for name in series.names(subject.rows))
    found: dict[str, list[str]] = {}
    for name in sorted(names, key=lambda name: (name not in _FIRST, name)):
        scalar = Scalar.of(name)
        if not _SCORE.fullmatch(name) and (len(groups) == 1 or not scalar.group):
            found.setdefault(scalar.quantity, []).append(name)
    scalars = {Scalar.of(name) for members in found.values() for name in members}
    shots = [shot for shot in GROUPS if any(scalar.group == shot for scalar in scalars)]
    legend = legend_of(groups) or [
        Line2D([], [], color=COLORS[place], marker=MARKERS[place], markersize=3, label=label)
        for place, label in enumerate(["all classes", *shots] if shots else [])
    ]
    for name, words in (("optimum", "theoretical optimum"), ("ft", "after FT")):
        if any(scalar.variant == name for scalar in scalars):
            legend.append(variant(words, _DASHES[name]))
    columns = 1 if len(found) <= 3 else 2
    rows = -(-len(found) // columns)
    figure, axes_of = panels([1.75 if columns == 1 else 1.45] * rows, legend, columns=columns)
    for axes, (quantity, members) in zip(axes_of, found.items(), strict=False):
        for name in members:
            scalar = Scalar.of(name)
            for group in groups:
                place = GROUPS.index(scalar.group) + 1 if scalar.group else group.place
                draw_recorded(axes, group._replace(place=place), name, dash=_DASHES[scalar.variant])
        unit = f"\n({_UNITS[quantity]})" if quantity in _UNITS else ""
        axes.set_title(("learning rate" if quantity == "lr" else quantity.replace("_", " ")) + unit)
        axes.ticklabel_format(axis="y", scilimits=(-3, 5))
        _steps(axes, "step", 2 if columns == 2 else 5)
    for axes in axes_of[len(found) :]:
        axes.remove()
    return figure


def _steps(axes: Axes, label: str, ticks: int) -> None:
    axes.set_xlabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(ticks, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(4))


def lacks_scores(subject: Subject) -> str | None:
    """Say why there are no scores of pairs over the training, if so."""
    return lacks_record(subject) or (
        None
        if _has(subject, _SCORES)
        else f"its record has no scores of pairs (objective {subject.objective})"
    )


def scores(subjects: Sequence[Subject]) -> Figure:
    """Draw mean and variance of the scores of pairs against the step, before and after FT."""
    groups = groups_of(subjects)
    kinds = [kind for kind in ("positive", "negative", "same_class")
             if any(_has(s, [f"{kind}_score", f"{kind}_variance"]) for s in subjects)]  # fmt: skip
    legend = legend_of(groups)
    if any(_has(subject, [f"{name}_ft" for name in _SCORES]) for subject in subjects):
        legend += [variant("before FT", SOLID), variant("after FT", DASHED)]
    figure, axes_of = panels([1.6] * len(kinds), legend, columns=2)
    names = [f"{kind}_{what}" for kind in kinds for what in ("score", "variance")]
    for axes, name in zip(axes_of, names, strict=True):
        for group in groups:
            draw_recorded(axes, group, name)
            draw_recorded(axes, group, f"{name}_ft", dash=DASHED)
        pairs, _, what = name.rpartition("_")
        words = {"same_class": "one class"}.get(pairs, pairs)
        axes.set_title(f"{words}: {'mean' if what == 'score' else what}")
        _steps(axes, "optimizer step", 2)
    return figure


class Weights(NamedTuple):
    """What of a recipe decides how much of the softmax centers should hold.

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

    def loss(self, p: Any, positives: float) -> Any:
        """Return L_extra(P) = -beta log P - alpha K* log(1 - P) for P in (0, 1)."""
        return -self.beta * np.log(p) - self.alpha * positives * np.log1p(-p)

    def optimum(self, positives: float) -> float:
        """Return where it is smallest: beta / (beta + alpha K*)."""
        return self.beta / (self.beta + self.alpha * positives)


def weights_of(subject: Subject) -> Weights | None:
    """Return the weights in a subject's recipe; None for an objective without them."""
    objective = subject.recipe.get("objective")
    found = objective if isinstance(objective, Mapping) else {}
    alpha, beta, queue = (found.get(key) for key in ("alpha", "beta", "queue_size"))
    if not isinstance(alpha, int | float) or not isinstance(queue, int):
        return None
    return Weights(float(alpha), float(beta) if isinstance(beta, int | float) else 1.0, queue)


def lacks_extra(subject: Subject) -> str | None:
    """Say why there is no extra loss of centers, if so."""
    if weights_of(subject) is None:
        return f"objective {subject.objective} has no centers beside samples in its softmax"
    return None if len(subject.class_counts) and int(subject.class_counts.min()) >= 0 else _UNCOUNTED


_UNCOUNTED = "the training images of each class are not known"


def extra(subjects: Sequence[Subject]) -> Figure:
    """Draw L_extra for the most frequent, the median and the rarest class, its minima marked."""
    groups = groups_of(subjects)
    kinds = ("most frequent", "median", "rarest")
    legend = [
        Line2D(
            [], [], color=COLORS[i], linestyle=dash, marker=MARKERS[i], markersize=5, label=f"{kind} class"
        )
        for i, (kind, dash) in enumerate(zip(kinds, (SOLID, DASHED, DOTTED), strict=True))
    ]
    figure, axes_of = panels([2.0] * len(groups), legend, sharex=True)
    p = np.linspace(0.001, 0.999, 999)
    for axes, group in zip(axes_of, groups, strict=True):
        weights, counts = weights_of(group.subjects[0]), group.subjects[0].class_counts.double().numpy()
        assert weights is not None  # see `lacks_extra`
        order = series.most_frequent_first(counts)
        lowest = np.inf
        for c, handle in zip((order[0], order[len(order) // 2], order[-1]), legend, strict=True):
            positives = float(weights.positives(counts)[c])
            best = min(weights.optimum(positives), 0.999)
            low = float(weights.loss(best, positives))
            lowest = min(lowest, low)
            color, marker = handle.get_color(), str(handle.get_marker())
            axes.plot(p, weights.loss(p, positives), color=color, linestyle=handle.get_linestyle())
            axes.plot(best, low, marker=marker, color=color, markersize=7, mec=INK, zorder=3, clip_on=False)
        axes.set_ylim(lowest - 0.25, lowest + 6)  # nats; it goes to infinity at both ends
        words = f"α = {weights.alpha:g}, |queue| = {weights.queue:,}"
        axes.set(title=words if len(groups) == 1 else f"{group.label}\n{words}", ylabel="L_extra (nats)")
    axes_of[-1].set(xlim=(0, 1), xlabel="P, probability of all centers together")
    return figure


def lacks_p_sup(subject: Subject) -> str | None:
    """Say why there is no P_sup over the training, if so."""
    return lacks_record(subject) or (
        None if _has(subject, [f"p_sup{shot}" for shot in _SHOTS]) else
        f"its record has no P_sup (objective {subject.objective})"
    )  # fmt: skip


def p_sup(subjects: Sequence[Subject]) -> Figure:
    """Draw P_sup over training against its optimum, for all classes and by training images."""
    groups = groups_of(subjects)
    shots = [shot for shot in _SHOTS if any(_has(subject, [f"p_sup{shot}"]) for subject in subjects)]
    legend = [*legend_of(groups), variant("recorded", SOLID), variant("optimum", DASHED)]
    figure, axes_of = panels([1.4] * len(shots), legend, sharex=True)
    for axes, shot in zip(axes_of, shots, strict=True):
        for group in groups:
            draw_recorded(axes, group, f"p_sup{shot}")
            draw_recorded(axes, group, f"p_sup_optimum{shot}", dash=DASHED)
        axes.set(title=_SHOTS[shot], ylabel="probability", ylim=(-0.03, 1.03))
    axes_of[-1].set_xlabel("optimizer step")
    return figure


def gradients(subject: Subject) -> dict[str, Array]:
    """Return recorded gradient norms of each class `[C]` by name, means over the training."""
    found = {
        key: series.class_means(subject.class_rows, key, len(subject.class_counts)) for key in _GRADIENTS
    }
    return {key: values for key, values in found.items() if values is not None and np.isfinite(values).any()}


def lacks_balance(subject: Subject) -> str | None:
    """Say why there are no gradients over the classes, if so."""
    if len(subject.class_counts) < 2:
        return "fewer than two classes are known"
    if int(subject.class_counts.min()) < 0:
        return _UNCOUNTED
    return None if gradients(subject) else "no record of its classes' gradients"


def balance(subjects: Sequence[Subject]) -> Figure:
    """Draw gradient norms over the classes, the most frequent first, each with mean 1.

    Of 40 classes or more running means are drawn; a dotted line is each class's share of the images.
    """
    groups = groups_of(subjects)
    found = {id(subject): gradients(subject) for subject in subjects}
    keys = [key for key in _GRADIENTS if any(key in each for each in found.values())]
    legend = legend_of(groups)
    legend += [variant("share of the images", DOTTED, FAINT)] if "class_gradient" in keys else []
    figure, axes_of = panels([1.6] * len(keys), legend, sharex=True)
    for axes, key in zip(axes_of, keys, strict=True):
        shares = {tuple(sorted(s.class_counts.tolist(), reverse=True)) for s in subjects}
        for share in shares if key == "class_gradient" else ():
            values = positive(np.array(share) / np.mean(share))
            axes.plot(range(1, len(share) + 1), values, color=FAINT, linestyle=DOTTED, zorder=1)
        for group in groups:
            members = [s for s in group.subjects if key in found[id(s)]]
            lines = [_by_rank(s, found[id(s)][key]) for s in members]
            if lines:
                known = [line for line in lines if len(line[0]) == len(lines[0][0])]
                with np.errstate(invalid="ignore"):
                    mean = _nanmean(np.array([y for _, y in known]))
                draw_mean(axes, group, known, (lines[0][0], positive(mean)))
        axes.set(yscale="log", title=_GRADIENTS[key], ylabel="relative to mean")
        decades(axes.yaxis)
    axes_of[-1].set_xlabel("classes, the most frequent first")
    axes_of[-1].xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return figure


def _by_rank(subject: Subject, values: Array) -> tuple[Array, Array]:
    """Return ranks and relative values; of many classes, running means of those that have a value."""
    order = series.most_frequent_first(subject.class_counts.double().numpy())
    values = (values / np.nanmean(values))[order]
    rank = np.arange(1, len(values) + 1, dtype=float)
    window = len(values) // _WINDOWS
    if window < 2:
        return rank, values
    windows = np.lib.stride_tricks.sliding_window_view(values, window)
    return np.convolve(rank, np.ones(window) / window, mode="valid"), _nanmean(windows.T)


def _nanmean(values: Array) -> Array:
    """Return means over the rows, NaN where none has a value."""
    known = np.isfinite(values)
    total, count = np.where(known, values, 0.0).sum(axis=0), known.sum(axis=0)
    means: Array = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
    return means
