"""In which precision equations are computed, and what they take for a tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Counts = Tensor | Sequence[int] | Sequence[float]
"""Images of each class `[C]`: a tensor, or plain numbers."""


def full(x: Tensor) -> Tensor:
    """Raise half precisions to float32: an exponential of s / 0.01 needs the digits."""
    return x if x.dtype == torch.float64 else x.float()
