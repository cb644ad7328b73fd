"""Which images each batch of a run has, and a rank's rows of it: a function of seed, step and the sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from zoo.errors import DataError
from zoo.ranks import part_of
from zoo.seeding import derive_seed

Sampling = Literal["instance", "class_balanced", "square_root"]

Draw = Callable[[Generator], Tensor]
"""Draws the images of an epoch: their places in the data set `[N]`, int64."""

_POWER = {"class_balanced": 0.0, "square_root": 0.5}


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
    """Return how many batches, of all ranks, one pass over `size` images has.

    Args:
        size: images in the data set.
        batch_size: images in a batch of all ranks.
        drop_last: leave out the last batch of an epoch when it is smaller.
    """
    return size // batch_size if drop_last else -(-size // batch_size)


def images_seen(steps: int, size: int, batch_size: int, *, drop_last: bool) -> int:
    """Return how many images, repetitions counted, the first `steps` batches of a run have together.

    The other arguments are those of `batches_per_epoch`.
    """
    per_epoch = batches_per_epoch(size, batch_size, drop_last=drop_last)
    epochs, rest = divmod(steps, per_epoch)
    return epochs * min(size, per_epoch * batch_size) + rest * batch_size


def drawn_by(sampling: Sampling, labels: NDArray[np.int64]) -> Draw | None:
    """Return what draws an epoch of the images with `labels` `[N]`, as many as there are; None: each once.

    Drawn with replacement are a class, with the probability n_c^q / sum n^q, then one of its n_c images, each
    equally likely. `class_balanced` is q = 0, `square_root` q = 1/2. A class without images is never drawn.

    Source: Kang et al. 2020, https://arxiv.org/abs/1910.09217, equation 1.

    Raises:
        DataError: for images without labels, which are of no class that could be drawn.
    """
    if sampling == "instance":
        return None
    unlabelled = int((labels < 0).sum())
    if unlabelled:
        raise DataError(
            f"sampling: {unlabelled:,} of the {len(labels):,} training images have no label, so no class of "
            f'theirs can be drawn: found "{sampling}", expected "instance"'
        )
    size = len(labels)
    of_class = torch.from_numpy(np.argsort(labels, kind="stable"))
    _, counted = np.unique(labels, return_counts=True)
    counts = torch.from_numpy(counted)
    first = counts.cumsum(0) - counts
    upto = (counts.double() ** _POWER[sampling]).cumsum(0)

    def draw(generator: Generator) -> Tensor:
        shares = torch.rand(2, size, generator=generator, dtype=torch.float64)
        # the largest share of all may round to 1
        drawn = torch.searchsorted(upto, shares[0] * upto[-1], right=True).clamp(max=len(counts) - 1)
        member = torch.minimum((shares[1] * counts[drawn]).long(), counts[drawn] - 1)
        return of_class[first[drawn] + member]

    return draw


@dataclass(frozen=True)
class Order:
    """The images of each batch; every epoch has a permutation, or a draw, of its own.

    Attributes:
        size: images in the data set.
        batch_size: images in a batch of all ranks.
        drop_last: leave out the last batch of an epoch when it is smaller.
        seed: of the permutations.
        rank: whose rows of each batch; see `zoo.ranks.part_of`.
        world_size: number of ranks.
        draw: draws an epoch with replacement; None: a permutation.
    """

    size: int
    batch_size: int
    drop_last: bool
    seed: int
    rank: int = 0
    world_size: int = 1
    draw: Draw | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Batches in one pass over the data."""
        return batches_per_epoch(self.size, self.batch_size, drop_last=self.drop_last)

    def positions(self, start: int, stop: int, device: torch.device) -> Iterator[Position]:
        """Yield the steps `start` to `stop` - 1, indices on `device`.

        An epoch is drawn on the CPU, the same for every device and rank, and copied once.
        """
        order, ordered = torch.empty(0, dtype=torch.int64), -1
        for step in range(start, stop):
            epoch, number = divmod(step, self.steps_per_epoch)
            if epoch != ordered:
                generator = torch.Generator().manual_seed(derive_seed("order", self.seed, epoch))
                draw = self.draw
                drawn = draw(generator) if draw else torch.randperm(self.size, generator=generator)
                order, ordered = to_device(drawn, device), epoch
            batch = order[number * self.batch_size : (number + 1) * self.batch_size]
            first, end = part_of(len(batch), self.rank, self.world_size)
            place = None if self.draw is None else number * self.batch_size + first
            yield Position(step, epoch, batch[first:end], first, len(batch), place)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on `device`, copied without making the host wait: from pinned memory to a GPU."""
    if tensor.device.type == device.type:
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)
