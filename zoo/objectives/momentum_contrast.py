"""What objectives with a queue share: the projection, the key encoder, the queue and FT.

FT, the feature transformation (Zhu et al. 2021, https://arxiv.org/abs/2108.02982), makes harder positives and
more diverse negatives from the features. As in the authors' code the extrapolated query scores the negatives
too, and the queue keeps the original keys. The paper's four sets of negatives are Z (`negatives: null`), Z of
2K keys (so, with a doubled `queue_size`), Z^ (`keep_originals: false`) and both (`keep_originals: true`).
With labels, keys are mixed within their class alone, so that the label stays true.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from zoo import functional
from zoo.backbones import feature_dim
from zoo.config import Config
from zoo.functional.checks import to_float32
from zoo.modules import KeyQueue, MomentumEncoder, Share, projection_head, value_at
from zoo.objectives.base import Batch, DataInfo, Objective, ObjectiveConfig, Output
from zoo.ranks import ALONE, Ranks

Granularity = Literal["step", "sample", "dimension"]


class PositiveExtrapolation(Config):
    """q^ = l q + (1 - l) k, k^ = l k + (1 - l) q with l = 1 + Beta(alpha, alpha)."""

    alpha: Annotated[float, Field(gt=0.5)] = 2.0
    """Of the Beta distribution: the larger, the nearer l is to 1.5."""
    per: Granularity = "step"
    """One coefficient per step, per sample (row) or per dimension (every entry)."""


class NegativeInterpolation(Config):
    """Z^ = l Z + (1 - l) Z[perm] with l ~ Beta(alpha, alpha) and a fresh permutation every step."""

    alpha: Annotated[float, Field(gt=0.5)] = 1.6
    """Of the Beta distribution: the larger, the nearer l is to 0.5."""
    per: Granularity = "step"
    """As `per` of the positives; a sample is a key of the queue."""
    keep_originals: bool = False
    """Contrast with the union of Z^ and Z (2K negatives) instead of Z^ alone."""


class FeatureTransformConfig(Config):
    """Which features are transformed, how, and from which epoch on; `{}` is the authors' setting."""

    positives: PositiveExtrapolation | None = PositiveExtrapolation()
    """Extrapolate queries and keys away from each other; null: leave them."""
    negatives: NegativeInterpolation | None = NegativeInterpolation()
    """Mix the queue's keys with each other; null: leave them."""
    renormalize: bool = False
    """Scale transformed vectors back to unit length; the authors do not."""
    start_epoch: Annotated[int, Field(ge=0)] = 0
    """Epochs without it at the start."""


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


class Pairs(NamedTuple):
    """What enters a loss: queries and keys `[B, D]`, the queue `[K, D]`, its labels and filled slots `[K]`.

    K is doubled where FT keeps the originals.
    """

    q: Tensor
    k: Tensor
    queue: Tensor
    queue_labels: Tensor
    valid: Tensor


def held(pairs: Pairs, transformed: Pairs, **more: Any) -> dict[str, Any]:
    """Return a step's values for `Output.held`; those after FT by names with `_ft`."""
    after = {} if transformed is pairs else {f"{k}_ft": v for k, v in transformed._asdict().items()}
    return pairs._asdict() | after | more


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
    return F.normalize(to_float32(projected), dim=1)


def other_views(ranks: Ranks, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Return the other ranks' rows of two views `[M, D]`, with gradient; None with one rank."""
    if ranks.alone:
        return None, None
    first, second = ranks.others(torch.cat([a, b], dim=1)).chunk(2, dim=1)
    return first, second


def from_others(ranks: Ranks, q: Tensor, k: Tensor, labels: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return `others` of the losses with labels: both views' rows of other ranks, and their labels."""
    first, second = other_views(ranks, q, k)
    if first is None or second is None:
        return None
    return torch.cat([first, second]), ranks.others(labels).repeat(2)


def transform(
    pairs: Pairs, ft: FeatureTransformConfig | None, epoch: float, *, labelled: bool, ranks: Ranks = ALONE
) -> Pairs:
    """Apply FT to one step's features, once its epoch has come; before, return the pairs themselves.

    The queue is not changed, and gets no gradient; with `keep_originals` the result's has 2K rows, Z^ first.
    Where the loss reads the queue's labels (`labelled`), negatives are mixed within their class alone. On
    several ranks all draw alike, from `ranks.generator`: the queue stays the same on all, and each rank's
    pairs are transformed as one rank's would be.
    """
    if ft is None or epoch < ft.start_epoch:
        return pairs
    q, k, queue, labels, valid = pairs
    if ft.negatives is not None:
        with torch.no_grad():
            permute = functional.permute_within_classes if labelled else functional.permute_filled
            order = permute(labels if labelled else valid, generator=ranks.generator)
            drawn = _coefficients(ft.negatives, len(queue), queue, ranks.generator)
            queue = functional.interpolate(queue, drawn, order)
            queue = F.normalize(queue, dim=1) if ft.renormalize else queue
        if ft.negatives.keep_originals:
            queue, labels, valid = torch.cat([queue, pairs.queue]), labels.repeat(2), valid.repeat(2)
    if ft.positives is not None:
        rows = len(q) if ranks.alone else sum(ranks.counts)
        drawn = _coefficients(ft.positives, rows, q, ranks.generator)
        if not ranks.alone and ft.positives.per != "step":
            drawn = drawn[ranks.own]
        q, k = functional.extrapolate(q, k, 1 + drawn)
        if ft.renormalize:
            q, k = F.normalize(q, dim=1), F.normalize(k, dim=1)
    return Pairs(q, k, queue, labels, valid)


def _coefficients(
    config: PositiveExtrapolation | NegativeInterpolation,
    rows: int,
    like: Tensor,
    generator: torch.Generator | None,
) -> Tensor:
    """Draw coefficients for `rows` rows as wide as `like`: what broadcasts to them."""
    shape = {"step": (1, 1), "sample": (rows, 1), "dimension": (rows, like.shape[1])}[config.per]
    return functional.sample_beta(config.alpha, shape, device=like.device, generator=generator)


class MomentumContrast(nn.Module):
    """Projection head, key encoder and queue of one objective, whose encoder is passed in, not kept.

    Source: He et al. 2020, https://arxiv.org/abs/1911.05722.
    """

    ranks: Ranks = ALONE

    def __init__(self, encoder: nn.Module, config: MomentumConfig) -> None:
        super().__init__()
        self.config = config
        self.head = projection(encoder, config)
        self.teacher = MomentumEncoder(nn.Sequential(encoder, self.head), key_groups=config.key_groups)
        self.queue = KeyQueue(config.queue_size, config.dim)

    def forward(self, encoder: nn.Module, views: tuple[Tensor, ...]) -> tuple[Tensor, Pairs]:
        """Return the first view's features `[B, D_f]`, and its queries with the second view's keys."""
        features, queue = encoder(views[0]), self.queue
        q, k = normalize(self.head(features)), normalize(self.teacher(views[1]))
        return features, Pairs(q, k, queue.keys, queue.labels, queue.valid)

    @torch.no_grad()
    def update(self, encoder: nn.Module, keys: Tensor, labels: Tensor, progress: float) -> None:
        """Move the key encoder, then enqueue the step's original `keys` `[B, D]` with `labels` `[B]`."""
        self.teacher.update((encoder, self.head), value_at(self.config.momentum, progress))
        self.queue.enqueue(keys, labels)


class MomentumObjective(Objective):
    """An objective with a key encoder and a queue; methods add their loss."""

    num_views = 2

    def __init__(self, config: Any, encoder: nn.Module, info: DataInfo) -> None:
        super().__init__(config, encoder, info)
        self.contrast = MomentumContrast(encoder, config)

    def apply_ft(self, pairs: Pairs, *, labelled: bool) -> Pairs:
        """Apply the recipe's FT: see `transform`."""
        ft = self.config.feature_transform
        return transform(pairs, ft, self.epoch, labelled=labelled, ranks=self.ranks)

    @torch.no_grad()
    def update(self, batch: Batch, output: Output) -> None:
        """Move the key encoder, then enqueue this step's original keys with their labels."""
        self.contrast.update(self.encoder, output.carry, batch.labels, self.progress)
