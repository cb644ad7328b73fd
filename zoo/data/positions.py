"""Which images each batch of a run has: a function of seed, step and the sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from zoo.data.prefetch import pinned
from zoo.seeding import derive_seed


class Position(NamedTuple):
    """Place of a batch in the run, and its images' places in the data set `[B]`, int64."""

    step: int
    epoch: int
    index: Tensor  # type: ignore[assignment]  # shadows tuple.index, as in `Batch`


class Order:
    """The images of each batch; every epoch has a permutation of its own.

    Attributes:
        steps_per_epoch: batches in one pass over the data.
    """

    steps_per_epoch: int

    def __init__(self, size: int, batch_size: int, *, drop_last: bool, seed: int) -> None:
        """Take the number of images, and of those in a batch; `drop_last` leaves out a smaller last one."""
        self.steps_per_epoch = size // batch_size if drop_last else -(-size // batch_size)
        self._size, self._batch_size, self._seed = size, batch_size, seed

    def positions(self, start: int, stop: int, device: torch.device) -> Iterator[Position]:
        """Yield the steps `start` to `stop` - 1, indices on `device`.

        The permutation is drawn on the CPU, the same for every device, and copied once an epoch.
        """
        order, ordered = torch.empty(0, dtype=torch.int64), -1
        for step in range(start, stop):
            epoch, number = divmod(step, self.steps_per_epoch)
            if epoch != ordered:
                generator = torch.Generator().manual_seed(derive_seed("order", self._seed, epoch))
                drawn = torch.randperm(self._size, generator=generator)
                order, ordered = pinned(drawn, device).to(device, non_blocking=True), epoch
            yield Position(step, epoch, order[number * self._batch_size : (number + 1) * self._batch_size])
