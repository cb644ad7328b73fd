"""What objectives with a queue share: the projection, the key encoder, the queue and FT.

FT, the feature transformation (Zhu et al. 2021, https://arxiv.org/abs/2108.02982), makes harder positives and
more diverse negatives from the features. As in the authors' code the extrapolated query scores the negatives
too, and the queue keeps the original keys. The paper's four sets of negatives are Z (`negatives: null`), Z of
2K keys (so, with a doubled `queue_size`), Z^ (`keep_originals: false`) and both (`keep_originals: true`).
With labels, keys are mixed within their class alone, so that the label stays true.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from zoo import functional
from zoo.backbones import feature_dim
from zoo.config import Config
from zoo.functional._streaming import row_blocks
from zoo.functional.checks import to_float32
from zoo.modules import KeyQueue, MomentumEncoder, Share, projection_head, value_at
from zoo.objectives.base import ObjectiveConfig
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

    @model_validator(mode="after")
    def _of_something(self) -> Self:
        if self.positives is None and self.negatives is None:
            raise ValueError(
                "found neither positives nor negatives, expected one of them; to leave FT out write "
                '"feature_transform: null"'
            )
        return self


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

    @classmethod
    def of(cls, q: Tensor, k: Tensor, queue: KeyQueue) -> Self:
        """Pair one step's unit rows with the queue as it was before the step."""
        return cls(q, k, queue.keys, queue.labels, queue.valid)


def held(pairs: Pairs, transformed: Pairs, **more: Any) -> dict[str, Any]:
    """Return what a step with a queue holds, detached, for `Output.held`; after FT by names with `_ft`."""
    rows = pairs._asdict() | more
    if transformed is not pairs:
        rows |= {f"{name}_ft": values for name, values in transformed._asdict().items()}
    return detached(**rows)


def detached(**held: Any) -> dict[str, Any]:
    """Detach what an objective hands on for `Output.held`: tensors, and tuples of them."""

    def detach(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(detach, value))
        return value.detach() if isinstance(value, Tensor) else value

    return {name: detach(value) for name, value in held.items()}


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


def transform(
    pairs: Pairs, ft: FeatureTransformConfig | None, epoch: float, *, labelled: bool, ranks: Ranks = ALONE
) -> Pairs:
    """Apply FT to one step's features, once its epoch has come; before, return the pairs themselves.

    On several ranks all draw alike, from `ranks.generator`: the queue, which is the same on all, stays so
    when it is mixed, and each rank's pairs are transformed as one rank's would be.

    Args:
        pairs: of this step; their queue is not changed, and gets no gradient.
        ft: the recipe's feature transformation; None: none.
        epoch: how far training is.
        labelled: the loss reads the queue's labels: negatives are mixed within their class alone.
        ranks: the processes that each have some rows of the batch.

    Returns:
        The transformed pairs; with `keep_originals` their queue has 2K rows, Z^ first.
    """
    if ft is None or epoch < ft.start_epoch:
        return pairs
    q, k, queue, labels, valid = pairs
    if ft.negatives is not None:
        of_class = labels if labelled else None
        queue = _mix(queue, valid, ft.negatives, ft.renormalize, of_class, ranks.generator)
        if ft.negatives.keep_originals:
            labels, valid = labels.repeat(2), valid.repeat(2)
    if ft.positives is not None:
        alpha, per = ft.positives.alpha, ft.positives.per
        if ranks.alone:
            drawn = _coefficients(alpha, per, len(q), q)
        else:
            drawn = _coefficients(alpha, per, sum(ranks.counts), q, ranks.generator)
            drawn = drawn if per == "step" else drawn[ranks.own]
        q, k = functional.extrapolate(q, k, 1 + drawn)
        if ft.renormalize:
            q, k = F.normalize(q, dim=1), F.normalize(k, dim=1)
    return Pairs(q, k, queue, labels, valid)


def _coefficients(
    alpha: float, per: Granularity, rows: int, like: Tensor, generator: torch.Generator | None = None
) -> Tensor:
    """Draw coefficients for `rows` rows as wide as `like`: what broadcasts to them."""
    shape = {"step": (1, 1), "sample": (rows, 1), "dimension": (rows, like.shape[1])}[per]
    return functional.sample_beta(alpha, shape, device=like.device, generator=generator)


@torch.no_grad()
def _mix(
    queue: Tensor,
    valid: Tensor,
    config: NegativeInterpolation,
    renormalize: bool,
    labels: Tensor | None,
    generator: torch.Generator | None,
) -> Tensor:
    """Mixed negatives `[K, D]`, followed by the originals with `keep_originals` `[2K, D]`.

    In blocks of rows, so that a block's coefficients stay in the cache.
    """
    if labels is None:
        permutation = functional.permute_filled(valid, generator=generator)
    else:
        permutation = functional.permute_within_classes(labels, generator=generator)
    size, dim = queue.shape
    mixed = queue.new_empty((2 if config.keep_originals else 1) * size, dim)
    mixed[size:] = queue[: len(mixed) - size]
    if config.per != "dimension":
        lam = _coefficients(config.alpha, config.per, size, queue, generator).expand(size, 1)
    for rows in row_blocks(size, dim, queue.device):
        if config.per == "dimension":
            of_rows = _coefficients(config.alpha, config.per, rows.stop - rows.start, queue, generator)
        else:
            of_rows = lam[rows]
        block = functional.interpolate(queue, of_rows, permutation, rows=rows, out=mixed[rows])
        if renormalize:
            F.normalize(block, dim=1, out=block)
    return mixed


def encode(networks: Sequence[nn.Module], view: Tensor) -> Tensor:
    """Put a view `[B, 3, H, W]` through one network after the other: encoder, head, maybe a predictor."""
    for network in networks:
        view = network(view)
    return view


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

    def forward(self, encoder: nn.Module, views: tuple[Tensor, ...]) -> tuple[Tensor, Pairs]:
        """Return the first view's features `[B, D_f]`, and its queries with the second view's keys."""
        features = encoder(views[0])
        return features, Pairs.of(
            normalize(self.head(features)), normalize(self.teacher(views[1])), self.queue
        )

    @torch.no_grad()
    def update(self, encoder: nn.Module, keys: Tensor, labels: Tensor, progress: float) -> None:
        """Move the key encoder, then enqueue the step's original `keys` `[B, D]` with `labels` `[B]`."""
        self.teacher.update((encoder, self.head), value_at(self.config.momentum, progress))
        self.queue.enqueue(keys, labels)
