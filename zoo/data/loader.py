"""Training batches as a pure function of their position in the run."""

from collections.abc import Generator, Sequence
from contextlib import closing
from functools import lru_cache, partial

import torch
from torch import Tensor

from zoo.data.batches import Batch, Sampling, batches_per_epoch, drawn_by, epoch_order, to_device
from zoo.data.cache import decode_all
from zoo.data.config import ViewsConfig
from zoo.data.dataset import ImageDataset
from zoo.data.streamed import Key, Samples, augment, from_workers, split_view
from zoo.data.views import PILViews, TensorViews
from zoo.errors import DataError
from zoo.seeding import derive_seed


class TrainLoader:
    """Batches of augmented views, addressed by their global step.

    Batch number `step` depends on the arguments and on `step` alone, so `stream(k, n)` is bit for bit the
    tail of `stream(0, n)`, and a resumed run needs nothing of the loader saved. The order is the same for all
    backends; views made here draw by seed and step, those of a worker by seed, epoch and image. With several
    ranks a batch is a rank's rows of what one rank would have, on a CPU bit for bit.

    Attributes:
        steps_per_epoch: batches in one pass over the data, the same on every rank.
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

        `mean` and `std` are those of the channels for values in 0..1, `batch_size` that of all `world_size`
        ranks, which divide it. `drop_last` leaves out the last batch of an epoch when it is smaller. Order
        and augmentation are drawn by `seed`, the images of an epoch as `sampling` says (see `drawn_by`).
        Images are scaled to a square of `image_size` when they are decoded; None leaves them as stored.

        Raises:
            DataError: when no batch can be made, or when the tensor backend cannot read the data.
        """
        if drop_last and len(dataset) < batch_size:
            few = f"{len(dataset)} images are fewer than one batch of {batch_size}"
            raise DataError(f"{few}, expected a smaller batch size, or drop_last: false")
        draw = drawn_by(sampling, dataset.labels)
        self._repeats = draw is not None
        self._order = lru_cache(maxsize=2)(lambda epoch: epoch_order(len(dataset), seed, epoch, draw))
        self.steps_per_epoch = batches_per_epoch(len(dataset), batch_size, drop_last=drop_last)
        self._batch_size, self._rank, self._world_size = batch_size, rank, world_size
        self._seed, self._workers, self._device = seed, views.workers, torch.device(device)
        self._labels = torch.from_numpy(dataset.labels.copy()).to(self._device)
        self._candidates: Tensor | None = None
        if dataset.candidates is not None:
            self._candidates = torch.from_numpy(dataset.candidates.copy()).to(self._device)
        self._mean, self._std = (
            torch.tensor(each, device=self._device).view(3, 1, 1) for each in (mean, std)
        )
        # a worker makes all of a view, up to its crop (backend `stream`), or nothing (`tensor`)
        parts = [split_view(view) if views.backend == "stream" else (view, []) for view in views.train]
        pil = PILViews([host for host, _ in parts])
        make = partial(augment, views=pil, seed=seed, image_size=image_size)
        self._samples = Samples(dataset, make)
        self._finish = [TensorViews([rest], mean, std) if rest else None for _, rest in parts]
        self._pixels: Tensor | None = None
        if views.backend == "tensor":
            self._pixels = decode_all(dataset, image_size, device=self._device, cache=views.cache)
            self._finish = [TensorViews(views.train, mean, std)]

    def stream(self, start: int, stop: int) -> Generator[Batch]:
        """Yield the batches of the steps `start` to `stop` - 1; worker processes end with the iterator.

        Raises:
            DataError: for an image that cannot be read, or is too small for an operation.
        """
        generator, steps = torch.Generator(self._device), range(start, stop)
        images = from_workers(self._samples, map(self._keys, steps), self._workers, self._device)
        with closing(images):
            for step in steps:
                index, first, total = self._rows(step)
                index = to_device(index, self._device)
                if self._pixels is None:
                    sources, errors = next(images)
                    if errors:
                        raise DataError(next(iter(errors.values())))
                else:
                    sources = [self._pixels.index_select(0, index)]
                generator.manual_seed(derive_seed("views", self._seed, step))
                views = list[Tensor]()
                for pixels, finish in zip(sources, self._finish, strict=True):
                    here = to_device(pixels, self._device)
                    if finish is None:  # normalised in torchvision's order: not one rounding may differ
                        views.append(here.float().div_(255).sub_(self._mean).div_(self._std))
                    else:
                        views += finish(here, generator, start=first, total=total)
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
