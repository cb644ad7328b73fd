"""Which images each batch of a run has, and a rank's part of it: a function of seed, step and the sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from zoo.data.prefetch import pinned
from zoo.data.sampling import Draw
from zoo.ranks import part_of
from zoo.seeding import derive_seed


class Position(NamedTuple):
    """Place in the run of a batch, or of a rank's rows of it.

    Attributes:
        step: number of the batch.
        epoch: the pass over the data that it belongs to.
        index: places of the rows' images in the data set `[B]`, int64.
        start: the first of these rows in the batch of all ranks.
        total: rows in the batch of all ranks.
        place: of the first row in its epoch, where an epoch may have an image more than once; else None.
    """

    step: int
    epoch: int
    index: Tensor  # type: ignore[assignment]  # shadows tuple.index, as in `Batch`
    start: int
    total: int
    place: int | None = None


def batches_per_epoch(size: int, batch_size: int, *, drop_last: bool) -> int:
    """Return how many batches, of all ranks, one pass over the data has.

    Args:
        size: images in the data set.
        batch_size: images in a batch of all ranks.
        drop_last: leave out the last batch of an epoch when it is smaller.
    """
    return size // batch_size if drop_last else -(-size // batch_size)


def images_seen(steps: int, size: int, batch_size: int, *, drop_last: bool) -> int:
    """Return how many images, repetitions counted, the first `steps` batches of a run have together.

    Args:
        steps: how many batches.
        size: images in the data set.
        batch_size: images in a batch of all ranks.
        drop_last: leave out the last batch of an epoch when it is smaller.
    """
    per_epoch = batches_per_epoch(size, batch_size, drop_last=drop_last)
    epochs, rest = divmod(steps, per_epoch)
    return epochs * min(size, per_epoch * batch_size) + rest * batch_size


class Order:
    """The images of each batch; every epoch has a permutation, or a draw, of its own.

    Attributes:
        steps_per_epoch: batches in one pass over the data.
    """

    steps_per_epoch: int

    def __init__(
        self,
        size: int,
        batch_size: int,
        *,
        drop_last: bool,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        draw: Draw | None = None,
    ) -> None:
        """Take the number of images, and of those in a batch of all ranks.

        Args:
            size: images in the data set.
            batch_size: images in a batch of all ranks.
            drop_last: leave out the last batch of an epoch when it is smaller.
            seed: of the permutations.
            rank: whose rows of each batch; see `zoo.ranks.part_of`.
            world_size: number of ranks.
            draw: draws an epoch with replacement; None: a permutation.
        """
        self.steps_per_epoch = batches_per_epoch(size, batch_size, drop_last=drop_last)
        self._size, self._batch_size, self._seed = size, batch_size, seed
        self._rank, self._world_size = rank, world_size
        self._draw = draw

    def positions(self, start: int, stop: int, device: torch.device) -> Iterator[Position]:
        """Yield the steps `start` to `stop` - 1, indices on `device`.

        An epoch is drawn on the CPU, the same for every device and rank, and copied once.
        """
        order, ordered = torch.empty(0, dtype=torch.int64), -1
        for step in range(start, stop):
            epoch, number = divmod(step, self.steps_per_epoch)
            if epoch != ordered:
                generator = torch.Generator().manual_seed(derive_seed("order", self._seed, epoch))
                draw = self._draw
                drawn = draw(generator) if draw else torch.randperm(self._size, generator=generator)
                order, ordered = pinned(drawn, device).to(device, non_blocking=True), epoch
            batch = order[number * self._batch_size : (number + 1) * self._batch_size]
            first, end = part_of(len(batch), self._rank, self._world_size)
            place = None if self._draw is None else number * self._batch_size + first
            yield Position(step, epoch, batch[first:end], first, len(batch), place)
