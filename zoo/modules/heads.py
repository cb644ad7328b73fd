"""What follows the encoder: projection heads, and linear classifiers with less freedom than `nn.Linear`."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.functional.checks import to_float32


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


def full_logits(classifier: nn.Module, features: Tensor) -> Tensor:
    """Return a classifier's logits `[B, C]` of features `[B, D]`, computed in float32 under autocast too.

    Half precision would leave them two or three digits, and make near ones equal.
    """
    with torch.autocast(features.device.type, enabled=False):
        logits: Tensor = classifier(to_float32(features))
    return logits


class CosineClassifier(nn.Module):
    """The cosine between features and each class's weight: `[B, D]` to `[B, C]`, in float32.

    Args:
        features: D.
        classes: C.

    Source: https://github.com/kaidic/LDAM-DRW (models/resnet_cifar.py, NormedLinear), and its initial values.
    """

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(F.normalize(torch.rand(classes, features) * 2 - 1, dim=1))

    def forward(self, features: Tensor) -> Tensor:
        """Return cosines, of which half precision would leave three digits."""
        with torch.autocast(features.device.type, enabled=False):
            return F.linear(
                F.normalize(to_float32(features), dim=1), F.normalize(to_float32(self.weight), dim=1)
            )


class ScaledClassifier(nn.Linear):
    """A linear classifier that stays as it is, with a learned factor for each class (LWS).

    Args:
        features: D.
        classes: C.

    Source: Kang et al. 2020, https://arxiv.org/abs/1910.09217, learnable weight scaling;
    https://github.com/facebookresearch/classifier-balancing, which scales the bias, too.
    """

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        self.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(classes))

    def scaled(self) -> tuple[Tensor, Tensor]:
        """Return the linear classifier that it amounts to: weight `[C, D]`, bias `[C]`."""
        return self.weight * self.scale[:, None], self.bias * self.scale

    def forward(self, features: Tensor) -> Tensor:
        """Return logits `[B, C]` for features `[B, D]`."""
        return F.linear(features, *self.scaled())
