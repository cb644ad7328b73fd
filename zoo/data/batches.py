"""Training batches as a pure function of their position in the run, and the order of images in an epoch."""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import lru_cache, partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zoo.data.cache import decode_all
from zoo.data.config import ViewsConfig
from zoo.data.dataset import ImageDataset
from zoo.data.streamed import Key, Samples, crops, from_workers
from zoo.data.views import TensorViews
from zoo.errors import DataError
from zoo.seeding import derive_seed

Sampling = Literal["instance", "class_balanced", "square_root"]

_Draw = Callable[[torch.Generator], Tensor]


class Batch(NamedTuple):
    """One batch of augmented images."""

    views: tuple[Tensor, ...]  # augmented versions of the same images, each `[B, 3, H, W]`, normalised
    labels: Tensor  # class indices `[B]`, int64; -1 where unknown
    # positions in the training data set `[B]`, int64; shadows tuple.index, as the contract names it
    index: Tensor  # type: ignore[assignment]
    candidates: Tensor | None = None  # for partial labels, which classes are possible `[B, C]`, bool


def batches_per_epoch(size: int, batch_size: int, *, drop_last: bool) -> int:
    """Return how many batches one pass over `size` images has; `drop_last`: only whole ones."""
    return size // batch_size if drop_last else -(-size // batch_size)


def images_seen(steps: int, size: int, batch_size: int, *, drop_last: bool) -> int:
    """Return how many images, repetitions counted, the first `steps` batches of a run have together."""
    per_epoch = batches_per_epoch(size, batch_size, drop_last=drop_last)
    epochs, rest = divmod(steps, per_epoch)
    return epochs * min(size, per_epoch * batch_size) + rest * batch_size


def drawn_by(sampling: Sampling, labels: NDArray[np.int64]) -> _Draw | None:
    """Return what draws an epoch of the images with `labels` `[N]`, N places `[N]`; None: each image once.

    Drawn with replacement are a class, with the probability n_c^q / sum n^q, then one of its n_c images, each
    equally likely. `class_balanced` is q = 0, `square_root` q = 1/2. DataError for images without labels.
    Source: Kang et al. 2020, https://arxiv.org/abs/1910.09217, equation 1.
    """
    if sampling == "instance":
        return None
    if (labels < 0).any():
        raise DataError(f'sampling: found "{sampling}" and images without labels, expected "instance"')
    of_class = torch.from_numpy(np.argsort(labels, kind="stable"))
    counts = torch.from_numpy(np.unique(labels, return_counts=True)[1])
    first = counts.cumsum(0) - counts
    upto = (counts.double() ** (0.5 if sampling == "square_root" else 0.0)).cumsum(0)

    def draw(generator: torch.Generator) -> Tensor:
        shares = torch.rand(2, len(labels), generator=generator, dtype=torch.float64)
        # the largest share of all may round to 1
        drawn = torch.searchsorted(upto, shares[0] * upto[-1], right=True).clamp(max=len(counts) - 1)
        member = torch.minimum((shares[1] * counts[drawn]).long(), counts[drawn] - 1)
        return of_class[first[drawn] + member]

    return draw


def epoch_order(size: int, seed: int, epoch: int, draw: _Draw | None) -> Tensor:
    """Return the images of an epoch `[N]`, int64, drawn on the CPU: a permutation without `draw`."""
    generator = torch.Generator().manual_seed(derive_seed("order", seed, epoch))
    return draw(generator) if draw else torch.randperm(size, generator=generator)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on `device`, copied without making the host wait: from pinned memory to a GPU."""
    if tensor.device.type == device.type:
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


class TrainLoader:
    """Batches of augmented views, addressed by their global step; `steps_per_epoch` on every rank.

    Batch number `step` depends on the arguments and on `step` alone, so `stream(k, n)` is bit for bit the
    tail of `stream(0, n)`, and a resumed run needs nothing of the loader saved. The order is the same for both
    backends; views made here draw by seed and step, crops of a worker by seed, epoch and image. With several
    ranks a batch is a rank's rows of what one rank would have, on a CPU bit for bit.
    """

    def __init__(
        self,
        dataset: ImageDataset,
        views: ViewsConfig,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        batch_size: int,
        drop_last: bool,
        seed: int,
        device: torch.device | str,
        image_size: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        sampling: Sampling = "instance",
    ) -> None:
        """Prepare the data; the tensor backend decodes all of it here, or maps what an earlier run kept.

        `mean` and `std` are for values in 0..1, `batch_size` is that of all `world_size` ranks, which divide
        it. `sampling` says how the images of an epoch are drawn (see `drawn_by`). Images are scaled to a
        square of `image_size` when they are decoded; None leaves them as stored. DataError when there is no
        batch, or the tensor backend cannot read the data.
        """
        if drop_last and len(dataset) < batch_size:
            raise DataError(f"{len(dataset)} images are fewer than one batch of {batch_size}")
        draw = drawn_by(sampling, dataset.labels)
        self._repeats = draw is not None
        self._order = lru_cache(maxsize=2)(lambda epoch: epoch_order(len(dataset), seed, epoch, draw))
        self.steps_per_epoch = batches_per_epoch(len(dataset), batch_size, drop_last=drop_last)
        self._batch_size, self._rank, self._world_size = batch_size, rank, world_size
        self._seed, self._workers, self._device = seed, views.workers, torch.device(device)
        self._labels, candidates = torch.from_numpy(dataset.labels.copy()).to(device), dataset.candidates
        self._candidates = None if candidates is None else torch.from_numpy(candidates.copy()).to(device)
        heads = [op for view in views.train for op in view[:1]]
        self._samples = Samples(dataset, partial(crops, of_views=heads, seed=seed, image_size=image_size))
        self._finish = [TensorViews([view[1:]], mean, std) for view in views.train]
        self._pixels: Tensor | None = None
        if views.backend == "tensor":
            self._pixels = decode_all(dataset, image_size, device=self._device, cache=views.cache)
            self._finish = [TensorViews(views.train, mean, std)]

    def stream(self, start: int, stop: int) -> Generator[Batch]:
        """Yield the batches of the steps `start` to `stop` - 1; worker processes end with the iterator."""
        generator, steps = torch.Generator(self._device), range(start, stop)
        cropped = from_workers(self._samples, map(self._keys, steps), self._workers, self._device)
        with closing(cropped):
            for step in steps:
                index, first, total = self._rows(step)
                index = to_device(index, self._device)
                sources = next(cropped)[1] if self._pixels is None else [self._pixels.index_select(0, index)]
                generator.manual_seed(derive_seed("views", self._seed, step))
                views = list[Tensor]()
                for pixels, finish in zip(sources, self._finish, strict=True):
                    views += finish(to_device(pixels, self._device), generator, start=first, total=total)
                candidates = None if self._candidates is None else self._candidates.index_select(0, index)
                yield Batch(tuple(views), self._labels.index_select(0, index), index, candidates)

    def _rows(self, step: int) -> tuple[Tensor, int, int]:
        """Return this rank's images in a batch, which row the first of them is, and the rows of all ranks."""
        epoch, number = divmod(step, self.steps_per_epoch)
        batch = self._order(epoch)[number * self._batch_size : (number + 1) * self._batch_size]
        each = len(batch) // self._world_size
        return batch[self._rank * each : (self._rank + 1) * each], self._rank * each, len(batch)

    def _keys(self, step: int) -> list[Key]:
        """Return what a worker draws by: epoch, image and, where that may come again, its place there."""
        epoch, number = divmod(step, self.steps_per_epoch)
        index, first, _ = self._rows(step)
        start = number * self._batch_size + first
        return [(epoch, i, start + n) if self._repeats else (epoch, i) for n, i in enumerate(index.tolist())]
