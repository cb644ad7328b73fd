"""Feature transformation (FT): harder positives and more diverse negatives, made from the features.

Source: Zhu et al. 2021, https://arxiv.org/abs/2108.02982. As in the authors' code the extrapolated query
scores the negatives too, and the queue keeps the original keys. The paper's four sets of negatives are Z
(`negatives: null`), Z of 2K keys (so, with a doubled `queue_size`), Z^ (`keep_originals: false`) and both
(`keep_originals: true`). With labels, keys are mixed within their class alone, so that the label stays true.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor

from zoo import functional
from zoo.config import Config
from zoo.functional._streaming import row_blocks
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


def _coefficients(
    alpha: float,
    per: Granularity,
    like: Tensor,
    generator: torch.Generator | None = None,
    rows: int | None = None,
) -> Tensor:
    """Draw for `rows` rows of the width of `like`; for as many as it has when None."""
    rows, dim = len(like) if rows is None else rows, like.shape[1]
    shape = {"step": (1, 1), "sample": (rows, 1), "dimension": (rows, dim)}[per]
    return functional.sample_beta(alpha, shape, device=like.device, generator=generator)


def _of_pairs(config: PositiveExtrapolation, q: Tensor, ranks: Ranks) -> Tensor:
    """Draw for the pairs of the whole batch, and return this rank's."""
    if ranks.alone:
        return _coefficients(config.alpha, config.per, q)
    drawn = _coefficients(config.alpha, config.per, q, ranks.generator, sum(ranks.counts))
    return drawn if config.per == "step" else drawn[ranks.own]


def _permutation(valid: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Random permutation of the filled slots among themselves; empty slots stay where they are.

    Filled slots lie at the front (`KeyQueue` fills from 0): of a permutation of all slots, the filled ones
    in their order go to the front. No count is read back to the host.
    """
    order = torch.randperm(len(valid), device=valid.device, generator=generator)
    filled = valid[order]
    place = torch.where(filled, filled.cumsum(dim=0) - 1, len(valid))  # the place behind the end is cut off
    return torch.arange(len(valid) + 1, device=valid.device).index_copy_(0, place, order)[:-1]


def _permutation_within(labels: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Random permutation of the slots that sends each to one of its own label (empty slots: -1)."""
    shuffled = torch.randperm(len(labels), device=labels.device, generator=generator)
    # the n-th slot of a class, in order of place, goes to the n-th of that class in random order
    permutation = torch.empty_like(shuffled)
    permutation[labels.argsort(stable=True)] = shuffled[labels[shuffled].argsort(stable=True)]
    return permutation


@torch.no_grad()
def _interpolate(
    queue: Tensor,
    permutation: Tensor,
    config: NegativeInterpolation,
    renormalize: bool,
    generator: torch.Generator | None = None,
) -> Tensor:
    """`zoo.functional.interpolate` of rows in blocks, that a block's coefficients stay in the cache.

    With `keep_originals` the originals follow, `[2K, D]`.
    """
    size, dim = queue.shape
    mixed = queue.new_empty((2 if config.keep_originals else 1) * size, dim)
    mixed[size:] = queue[: len(mixed) - size]
    few = None if config.per == "dimension" else _coefficients(config.alpha, config.per, queue, generator)
    for rows in row_blocks(size, dim, queue.device):
        if few is None:
            lam = _coefficients(config.alpha, config.per, queue[rows], generator)
        else:
            lam = few if config.per == "step" else few[rows]
        block = functional.interpolate(queue, lam, permutation, rows=rows, out=mixed[rows])
        if renormalize:
            F.normalize(block, dim=1, out=block)
    return mixed


def transform(
    q: Tensor,
    k: Tensor,
    queue: Tensor,
    valid: Tensor,
    config: FeatureTransformConfig,
    labels: Tensor | None = None,
    *,
    ranks: Ranks = ALONE,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Apply FT to one step's features.

    On several ranks all draw alike, from `ranks.generator`: the queue, which is the same on all, stays so
    when it is mixed, and each rank's pairs are transformed as one rank's would be.

    Args:
        q: queries `[N, D]`.
        k: their keys `[N, D]`.
        queue: past keys `[K, D]`, not changed; they get no gradient.
        valid: which queue rows are filled `[K]`, filled ones first.
        config: what to transform.
        labels: class of each queue row `[K]`, -1 in empty slots: negatives are mixed within their class. All
            with all when None.
        ranks: the processes that each have some rows of the batch.

    Returns:
        `(q_hat, k_hat, queue_hat, valid_hat)`; the last two have 2K rows with `keep_originals`, Z^ first.
    """
    queue_hat, valid_hat = queue, valid
    if config.negatives is not None:
        drawn = ranks.generator
        permutation = _permutation(valid, drawn) if labels is None else _permutation_within(labels, drawn)
        queue_hat = _interpolate(queue, permutation, config.negatives, config.renormalize, drawn)
        valid_hat = torch.cat([valid, valid]) if config.negatives.keep_originals else valid
    if config.positives is not None:
        lam = 1 + _of_pairs(config.positives, q, ranks)
        q, k = functional.extrapolate(q, k, lam)
        if config.renormalize:
            q, k = F.normalize(q, dim=1), F.normalize(k, dim=1)
    return q, k, queue_hat, valid_hat
