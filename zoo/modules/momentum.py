"""MoCo's two parts: the key encoder, a slowly moving copy of the query encoder, and the queue of past keys.

Source: He et al. 2020, https://arxiv.org/abs/1911.05722, sections 3.2 and 3.3.
"""

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from zoo import functional
from zoo.modules.batchnorm import convert_ghost_batchnorm, ghosts
from zoo.modules.ranks import ALONE, Ranks


class MomentumEncoder(nn.Module):
    """Exponential moving average of a student's parameters, without gradient.

    Its buffers (BatchNorm's running statistics) are updated by the keys it computes, as in the authors' code.

    Args:
        student: the module to follow; copied, not referenced.
        key_groups: groups of the whole batch's keys with separate BatchNorm statistics, on any number of
            `ranks`; see `zoo.modules.batchnorm`. 1 leaves BatchNorm unchanged.
    """

    ranks: Ranks = ALONE

    def __init__(self, student: nn.Module, *, key_groups: int = 1) -> None:
        super().__init__()
        self.module = copy.deepcopy(student).requires_grad_(False)
        self.key_groups = key_groups
        if key_groups > 1:
            convert_ghost_batchnorm(self.module, key_groups)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Encode keys `[n, ...]`, shuffled over groups and ranks if BatchNorm could reveal the pairs."""
        if self.key_groups == 1:
            return self.module(x)  # type: ignore[no-any-return]
        size, n, start = self.ranks.size, len(x), self.ranks.rank * len(x)
        groups = max(1, min(self.key_groups, size * n // 2))
        order = torch.randperm(size * n, generator=self.ranks.generator, device=x.device)
        if groups % size == 0 and size * n % groups == 0:  # each rank computes whole groups, [g::groups]
            order = order.view(-1, size, groups // size).transpose(0, 1).flatten()
        images = self.ranks.gather(x)[order[start : start + n]]
        if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
            images = images.contiguous(memory_format=torch.channels_last)  # gathering loses the memory format
        for ghost in ghosts(self.module):
            ghost.groups, ghost.images = max(1, groups // size), n
        keys = self.ranks.gather(self.module(images))
        # empty_like and index_copy_ undo the permutation without computing its inverse
        return torch.empty_like(keys).index_copy_(0, order, keys)[start : start + n]

    @torch.no_grad()
    def update(self, students: Iterable[nn.Module], momentum: float) -> None:
        """Move every parameter toward the student's, given as its parts in order; see `ema_update`."""
        # each parameter once, even if two parts share it
        followed = dict.fromkeys(p for student in students for p in student.parameters())
        functional.ema_update(list(self.module.parameters()), list(followed), momentum)


class KeyQueue(nn.Module):
    """First-in first-out queue of the last K = `size` keys and their labels, saved with the state.

    Keys `[K, D]`, labels `[K]` (-1 where a slot is empty or its image unlabelled), pointer `[]` to the next
    slot and the number of filled slots `[]`.
    """

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.keys = nn.Buffer(torch.zeros(size, dim))
        self.labels = nn.Buffer(torch.full((size,), -1))
        self.pointer = nn.Buffer(torch.zeros((), dtype=torch.int64))
        self.filled = nn.Buffer(torch.zeros((), dtype=torch.int64))

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def valid(self) -> Tensor:
        """Mask of the filled slots `[K]`, bool."""
        return torch.arange(len(self.keys), device=self.filled.device) < self.filled

    @torch.no_grad()
    def enqueue(self, keys: Tensor, labels: Tensor) -> None:
        """Overwrite the oldest slots with `keys` `[B, D]` and `labels` `[B]`, as if row by row, for any B."""
        given, size = len(keys), len(self.keys)
        keys, labels = keys[-size:], labels[-size:]
        offset = torch.arange(given - len(keys), given, device=self.pointer.device)
        slots = (self.pointer + offset) % size
        self.keys.index_copy_(0, slots, keys.to(self.keys.dtype))
        self.labels.index_copy_(0, slots, labels)
        self.pointer.add_(given).remainder_(size)
        self.filled.add_(given).clamp_(max=size)
