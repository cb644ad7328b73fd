"""The dictionary of past keys."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class KeyQueue(nn.Module):
    """First-in first-out store of the last `size` keys and their labels.

    Everything is a buffer, so a checkpoint holds it: keys `[K, D]`, labels `[K]` (-1 where a slot is empty
    or its image unlabelled), pointer `[]` to the next slot and the number of filled slots `[]`. No step
    reads a value back to the host.

    Source: He et al. 2020, https://arxiv.org/abs/1911.05722, section 3.2.
    """

    keys: Tensor
    labels: Tensor
    pointer: Tensor
    filled: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(size, dim))
        self.register_buffer("labels", torch.full((size,), -1))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))
        self.register_buffer("filled", torch.zeros((), dtype=torch.int64))

    def __len__(self) -> int:
        """Return the capacity K."""
        return len(self.keys)

    @property
    def valid(self) -> Tensor:
        """Which slots hold a key `[K]`, bool."""
        return torch.arange(len(self), device=self.filled.device) < self.filled

    @torch.no_grad()
    def enqueue(self, keys: Tensor, labels: Tensor) -> None:
        """Overwrite the oldest slots with `keys` `[B, D]` and `labels` `[B]`.

        B need not divide K: rows wrap around. When B > K only the last K rows remain, as if the rows had
        been enqueued one by one.
        """
        given = len(keys)
        keys, labels = keys[-len(self) :], labels[-len(self) :]
        offset = torch.arange(given - len(keys), given, device=self.pointer.device)
        slots = (self.pointer + offset) % len(self)
        self.keys.index_copy_(0, slots, keys.to(self.keys.dtype))
        self.labels.index_copy_(0, slots, labels)
        self.pointer.add_(given).remainder_(len(self))
        self.filled.add_(given).clamp_(max=len(self))
