"""Linear classifiers: in which precision, and with less freedom than `nn.Linear` has."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.functional.checks import to_float32


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

    Source: `functional.scale_classes`.
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
