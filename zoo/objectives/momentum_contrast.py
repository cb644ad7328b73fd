"""What contrastive objectives share: the projection, and optionally queue, FT and key encoder.

FT, the feature transformation (Zhu et al. 2021, https://arxiv.org/abs/2108.02982), creates harder positives
and more diverse negatives from the features. As in the authors' code the extrapolated query is also compared
with the negatives, and the queue keeps the original keys. The paper's four sets of negatives are Z
(`negatives: null`), Z with 2K keys (the same, `queue_size` doubled), Z^ (`keep_originals: false`) and both
(`keep_originals: true`). With labels, keys are mixed only within their class, so that labels stay true.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo import functional
from zoo.backbones import feature_dim
from zoo.modules import KeyQueue, MomentumEncoder, l2_normalize, projection_head, value_at
from zoo.modules.ranks import ALONE, Ranks
from zoo.objectives import config as c
from zoo.objectives.base import Batch, DataInfo, Objective, Output


class Pairs(NamedTuple):
    """The inputs of a loss: queries and keys `[B, D]`, queue `[K, D]`, its labels and filled slots `[K]`."""

    q: Tensor
    k: Tensor
    queue: Tensor
    queue_labels: Tensor
    valid: Tensor

    def observed(self, after_ft: "Pairs", **more: Any) -> dict[str, Any]:
        """Return a step's values for `Output.observed`; names of those after FT end in `_ft`."""
        ft = {} if after_ft is self else {f"{k}_ft": v for k, v in after_ft._asdict().items()}
        return self._asdict() | ft | more


def projection(encoder: nn.Module, config: c.ProjectionConfig, **more: bool) -> nn.Sequential:
    """Build the recipe's projection head for an encoder; `more` as in `projection_head`."""
    layers, hidden, batchnorm = config.head_layers, config.head_hidden, config.head_batchnorm
    width = feature_dim(encoder)
    return projection_head(width, config.dim, layers=layers, hidden=hidden, batchnorm=batchnorm, **more)


def transform(pairs: Pairs, ft: c.FeatureTransformConfig, *, labelled: bool, ranks: Ranks = ALONE) -> Pairs:
    """Apply FT to one step's features.

    The queue itself does not change and gets no gradient; with `keep_originals` the returned one has 2K rows,
    Z^ first. If the loss reads the queue's labels (`labelled`), negatives are mixed only within their class.
    Several ranks draw the same numbers from `ranks.generator`, so that the queue stays the same on all, and
    each rank's pairs are transformed as a single rank would.
    """
    q, k, queue, labels, valid = pairs

    def coefficients(part: c.PositiveExtrapolation | c.NegativeInterpolation, rows: int, dim: int) -> Tensor:
        shape = {"step": (1, 1), "sample": (rows, 1), "dimension": (rows, dim)}[part.per]
        return functional.sample_beta(part.alpha, shape, device=q.device, generator=ranks.generator)

    if ft.negatives is not None:
        permute = functional.permute_within_classes if labelled else functional.permute_filled
        order = permute(labels if labelled else valid, generator=ranks.generator)
        queue = functional.interpolate(queue, coefficients(ft.negatives, *queue.shape), order)
        if ft.negatives.keep_originals:
            queue, labels, valid = torch.cat([queue, pairs.queue]), labels.repeat(2), valid.repeat(2)
    if ft.positives is not None:
        own, total = len(q), len(q) * ranks.size  # rows of this rank, and of all
        drawn = coefficients(ft.positives, total, q.shape[1]).expand(total, -1)
        q, k = functional.extrapolate(q, k, 1 + drawn[own * ranks.rank : own * (ranks.rank + 1)])
    if ft.renormalize:
        q, k, queue = (F.normalize(rows, dim=1) for rows in (q, k, queue))
    return Pairs(q, k, queue, labels, valid)


class TwoViews(Objective):
    """An objective that compares two views by their projections."""

    def __init__(self, config: Any, encoder: nn.Module, info: DataInfo) -> None:
        super().__init__(config, encoder, info)
        self.head = projection(encoder, config)


class WithQueue(TwoViews):
    """An objective whose negatives are a queue of earlier keys."""

    def __init__(self, config: Any, encoder: nn.Module, info: DataInfo) -> None:
        super().__init__(config, encoder, info)
        self.queue = KeyQueue(config.queue_size, config.dim)

    def pair(self, q: Tensor, k: Tensor) -> Pairs:
        """Return unit rows `[B, D]` with the queue as it was before this step."""
        return Pairs(l2_normalize(q), l2_normalize(k), self.queue.keys, self.queue.labels, self.queue.valid)

    def apply_ft(self, pairs: Pairs, *, labelled: bool) -> Pairs:
        """Apply the recipe's FT from its start epoch on; before that return the pairs unchanged."""
        ft = self.config.feature_transform
        if ft is None or self.epoch < ft.start_epoch:
            return pairs
        return transform(pairs, ft, labelled=labelled, ranks=self.ranks)

    @torch.no_grad()
    def update(self, batch: Batch, output: Output) -> None:
        """Enqueue this step's original keys with their labels."""
        self.queue.enqueue(output.carry, batch.labels)


class WithKeyEncoder(WithQueue):
    """An objective whose keys come from a slowly moving key encoder.
    Source: He et al. 2020, https://arxiv.org/abs/1911.05722.
    """

    def __init__(self, config: Any, encoder: nn.Module, info: DataInfo) -> None:
        super().__init__(config, encoder, info)
        self.teacher = MomentumEncoder(nn.Sequential(encoder, self.head), key_groups=config.key_groups)

    def encode(self, views: tuple[Tensor, ...]) -> tuple[Tensor, Pairs]:
        """Return the first view's features `[B, D_f]`, and its queries paired with the second view's keys."""
        features = self.encoder(views[0])
        return features, self.pair(self.head(features), self.teacher(views[1]))

    @torch.no_grad()
    def update(self, batch: Batch, output: Output) -> None:
        """Update the key encoder, then enqueue this step's original keys with their labels."""
        self.teacher.update((self.encoder, self.head), value_at(self.config.momentum, self.progress))
        super().update(batch, output)
