"""A part of every class, put aside."""

from __future__ import annotations

import torch
from torch import Tensor


def stratified_split(labels: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return ascending row numbers (rest, held out): about `fraction` of every class is held out.

    A class of n >= 2 rows gives at least 1 and at most n - 1 of them, a class of one row gives none.

    Args:
        labels: `[N]`, integer.
        fraction: in (0, 1).
        seed: decides which rows of a class, together with the labels.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator)
    order = order[labels.cpu()[order].argsort(stable=True)]  # grouped by class, shuffled inside each
    counts = torch.bincount(labels.cpu())
    held = (counts * fraction).round().clamp(min=1).minimum(counts - 1).clamp(min=0)
    rank = torch.arange(len(labels)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    is_held = rank < held.repeat_interleave(counts)
    return order[~is_held].sort().values.to(labels.device), order[is_held].sort().values.to(labels.device)
