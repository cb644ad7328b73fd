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


def together(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Raise tensors that meet in one product to one precision: float64 if one has it, else float32."""
    highest = torch.float64 if any(x.dtype == torch.float64 for x in tensors) else torch.float32
    return tuple(x.to(highest) for x in tensors)


def counted(class_counts: Counts, device: torch.device | None = None) -> Tensor:
    """Return the images of each class `[C]` as a tensor: one stays where it is, unless a device is given.

    `torch.as_tensor` alone would move a tensor to torch's default device.
    """
    if isinstance(class_counts, Tensor):
        return class_counts if device is None else class_counts.to(device)
    return torch.as_tensor(class_counts, device=device)
