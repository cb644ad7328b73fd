"""Rows drawn class by class, from a seed."""

from __future__ import annotations

import torch
from torch import Tensor


def rank_in_class(labels: Tensor, seed: int) -> Tensor:
    """Return the place `[N]` of each row among those of its class in a random order, from 0, on the CPU.

    So `rank < n` draws n rows of each class, and fewer are a part of more.

    Args:
        labels: `[N]`, integer, from 0.
        seed: decides the order, together with the labels.
    """
    labels = labels.cpu()
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator)
    order = order[labels[order].argsort(stable=True)]  # grouped by class, shuffled inside each
    counts = torch.bincount(labels)
    rank = torch.arange(len(labels)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    return torch.empty_like(rank).index_copy_(0, order, rank)


def stratified_split(labels: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return ascending row numbers (rest, held out): about `fraction` of every class is held out.

    A class of n >= 2 rows gives at least 1 and at most n - 1 of them, a class of one row gives none.

    Args:
        labels: `[N]`, integer, from 0.
        fraction: in (0, 1).
        seed: decides which rows of a class, together with the labels.
    """
    counts = torch.bincount(labels.cpu())
    held = (counts * fraction).round().clamp(min=1).minimum(counts - 1).clamp(min=0)
    is_held = (rank_in_class(labels, seed) < held[labels.cpu()]).to(labels.device)
    return (~is_held).nonzero().flatten(), is_held.nonzero().flatten()
