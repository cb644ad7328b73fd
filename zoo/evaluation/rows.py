"""Which rows of a training set a probe is fitted on: drawn class by class, from a seed."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.seeding import derive_seed


def rank_in_class(labels: Tensor, *seed: int | str) -> Tensor:
    """Return the place `[N]` of each row among those of its class in a random order, from 0.

    So `rank < n` draws n rows of each class, and fewer are a part of more.

    Args:
        labels: `[N]`, integer, from 0.
        seed: parts of the order's seed.
    """
    labels = labels.cpu()
    generator = torch.Generator().manual_seed(derive_seed(*seed))
    order = torch.randperm(len(labels), generator=generator)
    order = order[labels[order].argsort(stable=True)]  # grouped by class, shuffled inside each
    counts = torch.bincount(labels)
    rank = torch.arange(len(labels)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    return torch.empty_like(rank).index_copy_(0, order, rank)
