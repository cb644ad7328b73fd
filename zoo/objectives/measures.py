"""What objectives record on the steps that are looked at: scores, geometry, probabilities and centers.

All of it is of a few hundred rows at most, without gradient, draws nothing and waits for nothing. Where a
batch lacks what a measure is of (two images of one class, say) it is NaN: which names there are never depends
on values, so ranks, parts of a batch and replays of a graph have the same ones.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from zoo import functional
from zoo.functional.precision import full


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
"""Of how many images pairs are formed at most."""
ANCHORS = 128
"""Of how many anchors scores against a queue, and probabilities, are computed at most."""
SCORED_KEYS = 4096
"""Of how many keys score statistics are recorded at least, of queues that have so many."""


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
    nothing = torch.full_like(a[0, 0], torch.nan)
    return {
        "alignment": functional.alignment(a, b),
        "uniformity": functional.uniformity(a) if len(a) > 1 else nothing,
        "tolerance": functional.tolerance(a, labels),
    }


@torch.no_grad()
def scores_by_class(
    q: Tensor, labels: Tensor, queue: Tensor, queue_labels: Tensor, suffix: str
) -> dict[str, Tensor]:
    """Mean and variance of the scores with keys of other classes, and with those of the own class.

    Args:
        q: queries `[N, D]`.
        labels: their classes `[N]`.
        queue: keys `[K, D]`.
        queue_labels: their classes `[K]`; -1 where there is none.
        suffix: of the names.
    """
    chosen = some(queue)
    theirs, own = queue_labels[chosen], labels[:ANCHORS, None]
    with torch.autocast(q.device.type, enabled=False):
        scores = q[:ANCHORS] @ queue[chosen].T
    metrics = dict[str, Tensor]()
    for name, pairs in (
        ("negative", (own != theirs) & (theirs >= 0)),
        ("same_class", (own == theirs) & (theirs >= 0)),
    ):
        metrics[f"{name}_score{suffix}"], metrics[f"{name}_variance{suffix}"] = functional.pair_moments(
            scores, pairs
        )
    return metrics


@torch.no_grad()
def scores_in_batch(a: Tensor, b: Tensor) -> dict[str, Tensor]:
    """Spread of the scores of two views `[N, D]` of one image; mean and variance of those of two images."""
    a, b = a[:ROWS], b[:ROWS]
    with torch.autocast(a.device.type, enabled=False):
        scores = a @ b.T
    two = torch.ones_like(scores, dtype=torch.bool).fill_diagonal_(False)
    mean, variance = functional.pair_moments(scores, two)
    return {
        "positive_variance": scores.diagonal().var(correction=0),
        "negative_score": mean,
        "negative_variance": variance,
    }


@torch.no_grad()
def probabilities(
    found: functional.Probabilities,
    optimum: functional.Probabilities | None,
    labels: Tensor,
    groups: Groups,
) -> dict[str, Tensor]:
    """Means of what the anchors give to their positives, and of what they would where the loss is least.

    Args:
        found: of n anchors.
        optimum: of the same; None where there is none.
        labels: their classes `[n]`.
        groups: P_sup is recorded of each.
    """
    metrics = dict[str, Tensor]()
    for sides, suffix in ((found, ""), (optimum, "_optimum")):
        if sides is not None:
            means = torch.stack([sides.p_sup, sides.center, sides.pair]).mean(dim=1).unbind()
            names = ("p_sup", "center_probability", "pair_probability")
            metrics |= {f"{name}{suffix}": mean for name, mean in zip(names, means, strict=True)}
            metrics |= groups.means(f"p_sup{suffix}", sides.p_sup, labels)
    return metrics


@torch.no_grad()
def centers(weight: Tensor, groups: Groups) -> dict[str, Tensor]:
    """Norms of the centers `[C, D_f]` by group, and the mean cosine between two of them."""
    weight = full(weight.detach())
    classes = torch.arange(len(weight), device=weight.device)
    metrics = groups.means("center_norm", weight.norm(dim=1), classes)
    return metrics if len(weight) < 2 else {**metrics, "center_cosine": functional.center_cosine(weight)}
