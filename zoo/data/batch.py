"""What one training step receives."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """One batch of augmented images.

    Attributes:
        views: augmented versions of the same images, each `[B, 3, H, W]`, normalised.
        labels: class indices `[B]`, int64; -1 where unknown.
        index: positions in the training data set `[B]`, int64.
        candidates: for partial labels, which classes are possible `[B, C]`, bool; else None.
    """

    views: tuple[Tensor, ...]
    labels: Tensor
    index: Tensor  # type: ignore[assignment]  # shadows tuple.index, as the contract names it
    candidates: Tensor | None = None
