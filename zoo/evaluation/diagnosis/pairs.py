"""Scores of the released encoder: of which pairs they are, and what a temperature makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from torch import Tensor

from zoo import functional
from zoo.evaluation.diagnosis.look import Look
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
    no_look,
    seen,
    short,
    stack,
    ticks_of_decades,
    told,
    variant,
)
from zoo.evaluation.diagnosis.subject import Subject, at_the_end
from zoo.evaluation.figures.style import FAINT
from zoo.evaluation.series import Array

_BINS = 50
_TAUS = (0.05, 0.1, 0.2, 0.5, 1.0)
_FEWEST = 5  # negatives in a bin of scores whose mean penalty is drawn


def plot_pairs(subjects: Sequence[Subject], paths: Sequence[Path]) -> str:
    """Draw histograms of scores: two views of an image, images of one class, of others; return the caption.

    Raises:
        DataError: where no subject has a look.
    """
    chosen = choose(subjects, no_look)
    scores = {id(s): _by_kind(_look(s)) for s in chosen.subjects}
    edges = _edges([values for kinds in scores.values() for values in kinds.values()])
    legend = [
        variant("two training views of an image", DASHES[0]),
        variant("two images of one class", DASHES[1]),
        Patch(facecolor="#D9D9D9", edgecolor=FAINT, label="two images of other classes"),
    ]
    without = {w for s in chosen.subjects if (w := _look(s).without_views)}
    caption = f"Cosines of pooled features, {seen(chosen.subjects)}. "
    views = [(g, _look(s).positive_scores) for g, s in _members(chosen)]
    known = [(group.name, f"{len(scores):,}") for group, scores in views if scores is not None]
    caption += f"Two views: one pair of each image ({told(known)}). " if known else ""
    caption += f"Two images: the first images of the sample ({_anchors(chosen)}), each with all others. "
    caption += f"Without two views where {'; '.join(sorted(without))}. " if without else ""
    caption += "Faint: each seed; line: their mean. " if len(chosen.subjects) > len(chosen.groups) else ""
    caption = (caption + chosen.left_out).strip()
    title = heading("Scores of pairs of images", chosen.groups)
    with stack(
        paths,
        [2.0 if len(chosen.groups) == 1 else 1.3] * len(chosen.groups),
        caption,
        title,
        legend,
        sharex=True,
    ) as axes_of:
        for axes, group in zip(axes_of, chosen.groups, strict=True):
            for kind, dash in (("other", "fill"), ("same", DASHES[1]), ("views", DASHES[0])):
                every = [scores[id(s)][kind] for s in group.subjects if kind in scores[id(s)]]
                if every:
                    _draw_density(axes, [_density(values, edges) for values in every], edges, dash, group)
            label_axes(axes, "" if len(chosen.groups) == 1 else group.name, "density")
            axes.set_ylim(bottom=0)
        axes_of[-1].set_xlabel("cosine")
    return caption


def _anchors(chosen: Chosen) -> str:
    """Say how many images of each one's sample pairs are of."""
    return told([(g.name, f"{len(_look(s).scores):,}") for g, s in _members(chosen)])


def _members(chosen: Chosen) -> list[tuple[Group, Subject]]:
    return [(group, subject) for group in chosen.groups for subject in group.subjects]


def _look(subject: Subject) -> Look:
    assert subject.look is not None  # chosen for it
    return subject.look


def _by_kind(look: Look) -> dict[str, Array]:
    kinds: dict[str, Tensor | None] = {
        "views": look.positive_scores,
        "same": look.same_class,
        "other": look.other_class,
    }
    return {kind: np.asarray(v.double().numpy()) for kind, v in kinds.items() if v is not None and len(v)}


def _edges(values: Sequence[Array]) -> Array:
    low = min(float(each.min()) for each in values)
    high = max(float(each.max()) for each in values)
    return np.linspace(low, max(high, low + 1e-3), _BINS + 1)


def _density(values: Array, edges: Array) -> Array:
    counts, _ = np.histogram(values, edges)
    return np.asarray(counts / (len(values) * np.diff(edges)), dtype=float)


def _draw_density(axes: Any, every: Sequence[Array], edges: Array, dash: Any, group: Group) -> None:
    mean = np.mean(every, axis=0)
    if dash == "fill":
        axes.stairs(mean, edges, fill=True, color="#D9D9D9")
        axes.stairs(mean, edges, color=FAINT, linewidth=0.8)
        return
    if len(every) > 1:
        for each in every:
            axes.stairs(each, edges, color=group.color, linewidth=0.6, alpha=0.4, linestyle=dash)
    axes.stairs(mean, edges, color=group.color, linewidth=1.5, linestyle=dash)


def plot_hardness(subjects: Sequence[Subject], paths: Sequence[Path]) -> str:
    """Draw how much a negative of some score is pushed, for several temperatures; return the caption.

    Negatives are images of other classes: those that are negatives to every objective.

    With one group, for several temperatures and its own; with several, for the own temperature of each.

    Raises:
        DataError: where no subject has a look.
    """
    chosen = choose(subjects, _lacks_negatives)
    one = len(chosen.groups) == 1
    edges = _edges([_negatives(_look(s)) for s in chosen.subjects])
    middles = (edges[:-1] + edges[1:]) / 2
    legend: list[Any]
    drawn: list[tuple[Group, float, Any, float]]  # group, tau, dash, width
    if one:
        (group,) = chosen.groups
        own = tau_of(group.subjects[0])
        taus = sorted({*_TAUS, *([] if own is None else [own])})
        drawn = [
            (group._replace(place=place), tau, DASHES[place % len(DASHES)], 2.4 if tau == own else 1.2)
            for place, tau in enumerate(taus)
        ]
        legend = [
            Line2D(
                [],
                [],
                color=each.color,
                linestyle=dash,
                linewidth=width,
                marker=each.marker,
                markersize=4,
                label=f"τ = {tau:g}" + (" (its own)" if tau == own else ""),
            )
            for each, tau, dash, width in drawn
        ]
    else:
        drawn = [
            (g, tau, DASHES[0], 1.4) for g in chosen.groups if (tau := tau_of(g.subjects[0])) is not None
        ]
        legend = legend_of(chosen.groups)
        for handle, group in zip(legend, chosen.groups, strict=True):
            tau = tau_of(group.subjects[0])
            handle.set_label(f"{short(group.name, 25)} ({'no τ' if tau is None else f'τ = {tau:g}'})")
    caption = f"Mean over anchors, the first images of the sample ({_anchors(chosen)}), of "
    caption += "N exp(s/τ) / Σ exp(s/τ) over the N images of other classes, by their score s; 1: all count "
    caption += "alike. Without labels a training has images of the anchor's class among its negatives too. "
    caption += f"Below: these scores. Cosines of pooled features, {seen(chosen.subjects)}; "
    caption += "training takes them of projections. "
    caption = (caption + chosen.left_out).strip()
    title = heading("How hard negatives count", chosen.groups)
    with stack(paths, [2.1, 1.1], caption, title, legend, sharex=True) as (above, below):
        for group, tau, dash, width in drawn:
            found = [_penalty(_look(s), tau, edges) for s in group.subjects]
            mean = np.mean(found, axis=0)
            draw_means(above, group, [(middles, each) for each in found], (middles, finite(mean)), dash=dash)
            above.lines[-1].set_linewidth(width)
        above.axhline(1, color=FAINT, linewidth=0.8)
        above.set_yscale("log")
        ticks_of_decades(above.yaxis)
        label_axes(above, "weight among an anchor's negatives", "relative to the mean weight")
        for group in chosen.groups:
            densities = [_density(_negatives(_look(s)), edges) for s in group.subjects]
            if one:
                _draw_density(below, densities, edges, "fill", group)
            else:
                lines = [(middles, each) for each in densities]
                draw_means(below, group, lines, (middles, np.mean(densities, axis=0)))
        below.set_ylim(bottom=0)
        label_axes(below, "scores of the negatives", "density", "cosine")
    return caption


def _lacks_negatives(subject: Subject) -> str | None:
    if subject.look is None:
        return no_look(subject)
    return None if len(subject.look.other_class) else "its sample is of one class"


def _negatives(look: Look) -> Array:
    return np.asarray(look.other_class.double().numpy())


def tau_of(subject: Subject) -> float | None:
    """Return the temperature of a subject's recipe: at the end, where it is scheduled or learned."""
    objective = subject.recipe.get("objective") or {}
    tau = objective.get("tau") if isinstance(objective, dict) else None
    if isinstance(tau, dict):
        recorded = at_the_end(subject.rows, "tau")
        tau = recorded if recorded is not None else tau.get("end", tau.get("start"))
    return float(tau) if isinstance(tau, (int, float)) and tau > 0 else None


def _penalty(look: Look, tau: float, edges: Array) -> Array:
    """Return the mean relative penalty of negatives by score `[bins]`, NaN where there are too few."""
    apart = look.apart
    weights = functional.relative_penalty(look.scores.double(), tau=tau, valid=apart)
    weights *= apart.sum(dim=1, keepdim=True)
    scores = _negatives(look)
    counts, _ = np.histogram(scores, edges)
    sums, _ = np.histogram(scores, edges, weights=weights[apart].numpy())
    return np.where(counts >= _FEWEST, sums / np.maximum(counts, 1), np.nan)
