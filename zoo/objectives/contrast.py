"""What objectives with a queue share: the projection, the key encoder, the queue and FT."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from zoo.backbones import feature_dim
from zoo.functional.precision import full
from zoo.modules import (
    FeatureTransformConfig,
    KeyQueue,
    MomentumEncoder,
    Share,
    projection_head,
    transform,
    value_at,
)
from zoo.objectives import measures
from zoo.objectives.base import ObjectiveConfig
from zoo.ranks import ALONE, Ranks


class ProjectionConfig(ObjectiveConfig):
    """From pooled features to the sphere where scores are taken."""

    dim: Annotated[int, Field(ge=1)] = 128
    """D, size of the projection."""
    head_layers: Annotated[int, Field(ge=1)] = 2
    """Linear layers of the projection head, with ReLUs between them."""
    head_hidden: Annotated[int, Field(ge=1)] = 2048
    """Width between the head's layers; unused with one layer. Default: the features of a ResNet-50."""
    head_batchnorm: bool = False
    """BatchNorm before the head's ReLUs."""


class QueueConfig(ProjectionConfig):
    """Contrast with a queue."""

    queue_size: Annotated[int, Field(ge=1)] = 65536
    """K; need not be a multiple of the batch size."""
    feature_transform: FeatureTransformConfig | None = None
    """FT (https://arxiv.org/abs/2108.02982): harder positives, more diverse negatives; null: none."""


class MomentumConfig(QueueConfig):
    """Contrast with a queue that a slowly moving key encoder fills."""

    momentum: Share = 0.999
    """m of the key encoder: a number or a schedule."""
    key_groups: Annotated[int, Field(ge=1)] = 1
    """Groups of the batch's keys with BatchNorm statistics of their own (shuffled BatchNorm, on any number of
    ranks), in the place of the authors' GPUs; 1: off."""


class Projected(NamedTuple):
    """One step's views in both spaces: features `[B, D_f]` of the first, unit rows `[B, D]` of both."""

    features: Tensor
    q: Tensor
    k: Tensor


class Dictionary(NamedTuple):
    """What enters a loss: queries and keys `[B, D]`, the queue `[K, D]`, its labels and who is there `[K]`.

    K is doubled where FT keeps the originals.
    """

    q: Tensor
    k: Tensor
    queue: Tensor
    queue_labels: Tensor
    valid: Tensor


def projection(
    encoder: nn.Module, config: ProjectionConfig, *, running_statistics: bool = True
) -> nn.Sequential:
    """Build the recipe's projection head for an encoder; `running_statistics` as in `projection_head`."""
    return projection_head(
        feature_dim(encoder),
        config.dim,
        layers=config.head_layers,
        hidden=config.head_hidden,
        batchnorm=config.head_batchnorm,
        running_statistics=running_statistics,
    )


def normalize(projected: Tensor) -> Tensor:
    """Scale rows to unit length, in float32 at least whatever autocast has made of them."""
    return F.normalize(full(projected), dim=1)


def from_others(ranks: Ranks, q: Tensor, k: Tensor, labels: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return what the other ranks have of both views `[M, D]`, with gradient, and its labels `[M]`.

    As it enters the loss: FT has transformed it where it was. None with one rank.

    Args:
        ranks: the processes that each have some rows of the batch.
        q: this rank's queries `[n, D]`.
        k: its keys `[n, D]`.
        labels: of its rows `[n]`.
    """
    if ranks.alone:
        return None
    if k.requires_grad:
        views = ranks.others(torch.cat([q, k], dim=1)).chunk(2, dim=1)
        theirs = ranks.others(labels)
    else:
        keys, theirs = map(ranks.except_own, ranks.gather_rows([k, labels]))
        views = ranks.others(q), keys
    return torch.cat(views), theirs.repeat(2)


def look_up(
    pair: Projected,
    queue: KeyQueue,
    ft: FeatureTransformConfig | None,
    epoch: float,
    *,
    labelled: bool,
    ranks: Ranks = ALONE,
    observed: Tensor | None = None,
) -> tuple[Dictionary, dict[str, Tensor]]:
    """Join a step's pairs with the queue, transformed by FT once its epoch has come.

    Args:
        pair: of this step.
        queue: as it was before this step; it keeps the original keys.
        ft: the recipe's feature transformation.
        epoch: how far training is.
        labelled: the loss reads the queue's labels: negatives are mixed within their class alone.
        ranks: the processes that each have some rows of the batch.
        observed: on steps that are looked at the queries' classes `[B]`, of the same kind as the queue's.

    Returns:
        What enters the loss, and where `observed` is given moments `[n, 3]` of the scores of the first
        queries by name, before and (`_ft`) after FT.
    """
    found = Dictionary(pair.q, pair.k, queue.keys, queue.labels, queue.valid)
    scores = {} if observed is None else _scores(found, labelled, "", observed)
    if ft is not None and is_on(ft, epoch):
        labels = queue.labels if labelled else None
        q, k, keys, valid = transform(pair.q, pair.k, queue.keys, queue.valid, ft, labels, ranks=ranks)
        found = Dictionary(q, k, keys, queue.labels.repeat(len(valid) // len(queue)), valid)
        if observed is not None:
            scores |= _scores(found, labelled, "_ft", observed)
    return found, scores


def is_on(ft: FeatureTransformConfig | None, epoch: float) -> bool:
    """Whether features are transformed at `epoch`."""
    return ft is not None and epoch >= ft.start_epoch


@torch.no_grad()
def _scores(dictionary: Dictionary, labelled: bool, suffix: str, observed: Tensor) -> dict[str, Tensor]:
    """Scores whose curves the FT paper reads: https://arxiv.org/abs/2108.02982, section 3."""
    q, k, queue, queue_labels, valid = dictionary
    scores = {"positive": measures.own_scores(q, k)}
    if labelled:  # the queue holds positives too
        scores |= measures.scores_by_class(q, observed, queue, queue_labels)
    else:
        scores["negative"] = measures.scores_in_queue(q, queue, valid)
    return {f"{name}{suffix}": moments for name, moments in scores.items()}


def encode(
    encoder: nn.Module, head: Callable[[Tensor], Tensor], views: tuple[Tensor, ...]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Encode one view after the other; return the first's features `[B, D_f]`, all projections `[B, D]`."""
    features, projected = list[Tensor](), list[Tensor]()
    for view in views:
        features.append(encoder(view))
        projected.append(head(features[-1]))
    return features[0], tuple(projected)


class MomentumContrast(nn.Module):
    """Projection head, key encoder and queue of one objective.

    The encoder stays the objective's: it is passed in, not kept.

    Source: He et al. 2020, https://arxiv.org/abs/1911.05722.
    """

    ranks: Ranks = ALONE

    def __init__(self, encoder: nn.Module, config: MomentumConfig) -> None:
        super().__init__()
        self.config = config
        self.head = projection(encoder, config)
        self.teacher = MomentumEncoder(nn.Sequential(encoder, self.head), key_groups=config.key_groups)
        self.queue = KeyQueue(config.queue_size, config.dim)

    def forward(self, encoder: nn.Module, views: tuple[Tensor, ...]) -> Projected:
        """Encode the first view as queries and the second, without gradient, as keys."""
        features = encoder(views[0])
        return Projected(features, normalize(self.head(features)), normalize(self.teacher(views[1])))

    def look_up(
        self, pair: Projected, epoch: float, *, labelled: bool, observed: Tensor | None = None
    ) -> tuple[Dictionary, dict[str, Tensor]]:
        """Join a step's pairs with the queue; see the function of that name."""
        ft = self.config.feature_transform
        return look_up(pair, self.queue, ft, epoch, labelled=labelled, ranks=self.ranks, observed=observed)

    @torch.no_grad()
    def update(self, encoder: nn.Module, keys: Tensor, labels: Tensor, progress: float) -> None:
        """Move the key encoder, then enqueue the step's original `keys` `[B, D]` with `labels` `[B]`."""
        self.teacher.update((encoder, self.head), value_at(self.config.momentum, progress))
        self.queue.enqueue(keys, labels)
