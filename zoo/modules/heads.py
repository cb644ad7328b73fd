"""Projection heads: from pooled features to the space where scores are taken."""

from __future__ import annotations

from itertools import pairwise

from torch import nn


def projection_head(
    in_features: int,
    out_features: int,
    *,
    layers: int,
    hidden: int,
    batchnorm: bool,
    last_batchnorm: bool = False,
    last_bias: bool = True,
    running_statistics: bool = True,
) -> nn.Sequential:
    """Build `layers` linear maps with ReLU between them.

    Args:
        in_features: D_f, the backbone's pooled features.
        out_features: D, the projection.
        layers: 1 is MoCo v1's linear head, 2 the MLP of MoCo v2 and PaCo.
        hidden: width between the layers.
        batchnorm: BatchNorm before every ReLU (PaCo's CIFAR recipe); MoCo v2 has none.
        last_batchnorm: BatchNorm without affine after the last layer (MoCo v3).
        last_bias: whether the last layer has a bias where no BatchNorm follows it.
        running_statistics: keep BatchNorm's for evaluation; without, it always takes those of its input.
    """
    widths = [in_features, *[hidden] * (layers - 1), out_features]
    head = nn.Sequential()
    for i, (before, after) in enumerate(pairwise(widths)):
        last = i == layers - 1
        normed = last_batchnorm if last else batchnorm
        head.append(nn.Linear(before, after, bias=not normed and (last_bias or not last)))
        if normed:
            head.append(nn.BatchNorm1d(after, affine=not last, track_running_stats=running_statistics))
        if not last:
            head.append(nn.ReLU(inplace=True))
    return head
