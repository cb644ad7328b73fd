"""What objectives record on the steps that are looked at: scores, geometry, probabilities and centers.

All of it is of a few hundred rows at most, without gradient, draws nothing and waits for nothing. Where a
batch lacks what a measure is of (two images of one class, say) it is NaN: which names there are never depends
on values, so ranks and parts of a batch have the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from zoo import functional
from zoo.functional.checks import to_float32


class Groups(NamedTuple):
    """Classes by how many training images they have.

    Attributes:
        names: of G groups.
        members: which classes each has `[G, C]`, bool.
    """

    names: tuple[str, ...]
    members: Tensor

    def means(self, name: str, values: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return `NAME_GROUP`, the mean of the values `[N]` whose classes are `labels` `[N]`, of each."""
        return self.named(name, functional.group_means(values, labels, self.members))

    def named(self, name: str, values: Tensor) -> dict[str, Tensor]:
        """Return values `[G]` as `NAME_GROUP`."""
        return {f"{name}_{group}": value for group, value in zip(self.names, values.unbind(), strict=True)}


ROWS = 256
"""Of how many of a batch's first images scores, pairs and probabilities are measured at most."""
SCORED_KEYS = 4096
"""Of how many keys score statistics are recorded at least, of queues that have so many."""

_BY_GROUP = ("p_sup", "p_sup_optimum")


class Seen(NamedTuple):
    """What a look keeps of a batch's first images, in their order: n rows of each tensor, detached.

    Rows, and not yet means: those of all parts of a batch and of all ranks are put together first, so that
    what is recorded is the same however the batch was cut.

    Attributes:
        labels: classes `[n]`; negative ones are unknown.
        views: two of unit rows `[n, D]`, or none.
        scores: by name (`negative_ft`, say) of each image's scores mean, variance and how many `[n, 3]`.
        values: by name a value of each image `[n]`.
    """

    labels: Tensor
    views: tuple[Tensor, ...]
    scores: dict[str, Tensor]
    values: dict[str, Tensor]


def seen(
    labels: Tensor,
    views: tuple[Tensor, ...] = (),
    scores: Mapping[str, Tensor] | None = None,
    values: Mapping[str, Tensor] | None = None,
) -> Seen:
    """Return what to measure of a batch's first images; of longer tensors the first rows count."""
    return Seen(
        labels[:ROWS],
        tuple(view.detach()[:ROWS] for view in views),
        {name: each.detach()[:ROWS] for name, each in (scores or {}).items()},
        {name: each.detach()[:ROWS] for name, each in (values or {}).items()},
    )


@torch.no_grad()
def measure(found: Seen, groups: Groups) -> dict[str, Tensor]:
    """Return what to record of the images that were seen.

    Args:
        found: rows of the whole batch.
        groups: P_sup is recorded of each.

    Returns:
        `NAME_score` and `NAME_variance` of all scores of a name, the mean of every value, and of views what
        `sphere` says.
    """
    metrics = dict[str, Tensor]()
    for name, moments in found.scores.items():
        kind, ft = name.removesuffix("_ft"), "_ft" if name.endswith("_ft") else ""
        mean, variance = functional.pooled_moments(moments[:ROWS])
        metrics |= {f"{kind}_score{ft}": mean, f"{kind}_variance{ft}": variance}
    labels = found.labels[:ROWS]
    for name, values in found.values.items():
        metrics[name] = values[:ROWS].nanmean()  # NaN is of an image that has no such value
        if name in _BY_GROUP:
            metrics |= groups.means(name, values[:ROWS], labels)
    if found.views:
        a, b = found.views
        metrics |= sphere(a, b, labels)
    return metrics


def some(queue: Tensor) -> slice:
    """Return which rows of a queue are scored, evenly spaced.

    Of all 65,536, it would be a third of the loss's own time.
    """
    return slice(None, None, max(len(queue) // SCORED_KEYS, 1))


@torch.no_grad()
def sphere(a: Tensor, b: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Alignment of two views' unit rows `[N, D]`; uniformity and tolerance of the first's.

    Source: Wang and Isola 2020, https://arxiv.org/abs/2005.10242; Wang and Liu 2021,
    https://arxiv.org/abs/2012.09740.
    """
    a, b, labels = a[:ROWS], b[:ROWS], labels[:ROWS]
    return {
        "alignment": functional.alignment(a, b),
        "uniformity": functional.uniformity(a),
        "tolerance": functional.tolerance(a, labels),
    }


@torch.no_grad()
def own_scores(q: Tensor, k: Tensor) -> Tensor:
    """Return the score of each image's two views `[N, D]` as moments `[n, 3]`."""
    scores = (to_float32(q[:ROWS]) * to_float32(k[:ROWS])).sum(dim=1)
    return torch.stack([scores, torch.zeros_like(scores), torch.ones_like(scores)], dim=1)


@torch.no_grad()
def scores_in_queue(q: Tensor, queue: Tensor, valid: Tensor) -> Tensor:
    """Return moments `[n, 3]` of the scores of queries `[N, D]` with keys `[K, D]`, the valid ones `[K]`."""
    chosen = some(queue)
    scores = _scores(q[:ROWS], queue[chosen])
    return functional.anchor_moments(scores, valid[chosen].expand_as(scores))


@torch.no_grad()
def scores_by_class(q: Tensor, labels: Tensor, queue: Tensor, queue_labels: Tensor) -> dict[str, Tensor]:
    """Moments of the scores with keys of other classes (`negative`), and of the own one (`same_class`).

    Args:
        q: queries `[N, D]`.
        labels: their classes `[N]`.
        queue: keys `[K, D]`.
        queue_labels: their classes `[K]`; -1 where there is none.

    Returns:
        Each `[n, 3]`.
    """
    chosen = some(queue)
    theirs, own = queue_labels[chosen], labels[:ROWS, None]
    scores = _scores(q[:ROWS], queue[chosen])
    return {
        "negative": functional.anchor_moments(scores, (own != theirs) & (theirs >= 0)),
        "same_class": functional.anchor_moments(scores, (own == theirs) & (theirs >= 0)),
    }


@torch.no_grad()
def scores_in_batch(a: Tensor, b: Tensor, others: Tensor | None = None) -> dict[str, Tensor]:
    """Moments of the scores of two views `[N, D]` of one image (`positive`), and of two images (`negative`).

    Args:
        a: of the anchors.
        b: the other view's, with all of which each is scored.
        others: what other ranks have of the other view `[M, D]`.
    """
    keys = b if others is None else torch.cat([b, others])
    scores = _scores(a[:ROWS], keys)
    two = torch.ones_like(scores, dtype=torch.bool).fill_diagonal_(False)
    return {"positive": own_scores(a, b), "negative": functional.anchor_moments(scores, two)}


def _scores(q: Tensor, keys: Tensor) -> Tensor:
    with torch.autocast(q.device.type, enabled=False):
        return to_float32(q) @ to_float32(keys).T


@torch.no_grad()
def probabilities(
    found: functional.Probabilities, optimum: functional.Probabilities | None
) -> dict[str, Tensor]:
    """Return what each of n anchors gives to its positives, and what it would where the loss is least.

    Args:
        found: of n anchors.
        optimum: of the same; None where there is none.
    """
    values = dict[str, Tensor]()
    for sides, suffix in ((found, ""), (optimum, "_optimum")):
        if sides is not None:
            values |= {
                f"p_sup{suffix}": sides.p_sup,
                f"center_probability{suffix}": sides.center,
                f"pair_probability{suffix}": sides.pair,
            }
    return values


@torch.no_grad()
def centers(weight: Tensor, groups: Groups) -> dict[str, Tensor]:
    """Norms of the centers `[C, D_f]` by group, and the mean cosine between two of them."""
    weight = to_float32(weight.detach())
    classes = torch.arange(len(weight), device=weight.device)
    metrics = groups.means("center_norm", weight.norm(dim=1), classes)
    return metrics if len(weight) < 2 else {**metrics, "center_cosine": functional.center_cosine(weight)}
