"""Batches, and the order of images in an epoch: a function of seed, epoch and the sizes."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from zoo.errors import DataError
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


def batches_per_epoch(size: int, batch_size: int, *, drop_last: bool) -> int:
    """Return how many batches one pass over `size` images has; `drop_last`: only whole ones."""
    return size // batch_size if drop_last else -(-size // batch_size)


def images_seen(steps: int, size: int, batch_size: int, *, drop_last: bool) -> int:
    """Return how many images, repetitions counted, the first `steps` batches of a run have together."""
    per_epoch = batches_per_epoch(size, batch_size, drop_last=drop_last)
    epochs, rest = divmod(steps, per_epoch)
    return epochs * min(size, per_epoch * batch_size) + rest * batch_size


def drawn_by(sampling: Sampling, labels: NDArray[np.int64]) -> Draw | None:
    """Return what draws an epoch of the images with `labels` `[N]`, N places `[N]`; None: each image once.

    Drawn with replacement are a class, with the probability n_c^q / sum n^q, then one of its n_c images, each
    equally likely. `class_balanced` is q = 0, `square_root` q = 1/2. A class without images is never drawn.

    Source: Kang et al. 2020, https://arxiv.org/abs/1910.09217, equation 1.

    Raises:
        DataError: for images without labels.
    """
    if sampling == "instance":
        return None
    if unlabelled := int((labels < 0).sum()):
        without = f"{unlabelled:,} of the {len(labels):,} training images have no label"
        raise DataError(f'sampling: {without}: found "{sampling}", expected "instance"')
    of_class = torch.from_numpy(np.argsort(labels, kind="stable"))
    counts = torch.from_numpy(np.unique(labels, return_counts=True)[1])
    first = counts.cumsum(0) - counts
    upto = (counts.double() ** _POWER[sampling]).cumsum(0)

    def draw(generator: Generator) -> Tensor:
        shares = torch.rand(2, len(labels), generator=generator, dtype=torch.float64)
        # the largest share of all may round to 1
        drawn = torch.searchsorted(upto, shares[0] * upto[-1], right=True).clamp(max=len(counts) - 1)
        member = torch.minimum((shares[1] * counts[drawn]).long(), counts[drawn] - 1)
        return of_class[first[drawn] + member]

    return draw


def epoch_order(size: int, seed: int, epoch: int, draw: Draw | None) -> Tensor:
    """Return the images of an epoch `[N]`, int64, drawn on the CPU: a permutation without `draw`."""
    generator = torch.Generator().manual_seed(derive_seed("order", seed, epoch))
    return draw(generator) if draw else torch.randperm(size, generator=generator)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on `device`, copied without making the host wait: from pinned memory to a GPU."""
    if tensor.device.type == device.type:
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)
