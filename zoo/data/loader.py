"""Training batches as a pure function of their position in the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zoo.data.bad_images import BadImages
from zoo.data.batch import Batch
from zoo.data.config import ViewsConfig
from zoo.data.dataset import ImageDataset
from zoo.data.resident import decode_all
from zoo.data.streamed import Samples, stream
from zoo.data.tensor_views import TensorViews
from zoo.errors import DataError
from zoo.seeding import derive_seed


class TrainLoader:
    """Batches of augmented views, addressed by their global step.

    Batch number `step` depends on the arguments and on `step` alone: not on the batches before it, on the
    number of workers or on any generator's state. So `stream(k, n)` is bit for bit the tail of
    `stream(0, n)`, and a resumed run needs nothing of the loader saved. The
    two backends draw different numbers.

    Attributes:
        steps_per_epoch: batches in one pass over the data.
    """

    steps_per_epoch: int

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
        max_bad_images: int = 0,
    ) -> None:
        """Prepare the data; the tensor backend decodes all of it here.

        Args:
            dataset: N images.
            views: how they are augmented, and by which backend.
            mean: of the three channels, for values in 0..1.
            std: likewise.
            batch_size: images in a batch.
            drop_last: leave out the last batch of an epoch when it is smaller.
            seed: of the order and of the augmentation.
            device: where batches are.
            image_size: scale images to this square when they are decoded; None: as stored.
            max_bad_images: so many unreadable images are replaced by the next readable ones.

        Raises:
            DataError: when no batch can be made, or when the tensor backend cannot hold the data.
        """
        if drop_last and len(dataset) < batch_size:
            raise DataError(
                f"{len(dataset)} images are fewer than one batch of {batch_size}, and drop_last leaves out "
                f"smaller batches: expected a batch size of at most {len(dataset)}, or drop_last: false"
            )
        self.steps_per_epoch = len(dataset) // batch_size if drop_last else -(-len(dataset) // batch_size)
        self._size = len(dataset)
        self._batch_size = batch_size
        self._seed = seed
        self._device = torch.device(device)
        self._bad = BadImages(max_bad_images)
        self._feed: _Resident | _Streamed
        if views.backend == "tensor":
            pixels, source = decode_all(dataset, image_size, self._bad, self._device, views.workers)
            candidates = dataset.candidates
            self._feed = _Resident(
                pixels,
                torch.from_numpy(dataset.labels[source]),
                torch.from_numpy(source),
                None if candidates is None else torch.from_numpy(candidates[source]),
                TensorViews(views.train, mean, std),
                seed,
            )
        else:
            samples = Samples(dataset, views.train, seed, image_size, max_bad_images)
            self._feed = _Streamed(
                samples,
                dataset.candidates,
                views.workers,
                self._bad,
                mean=mean,
                std=std,
                device=self._device,
            )

    @property
    def bad_images(self) -> list[str]:
        """Names of the unreadable images met so far; with the tensor backend, of all there are."""
        return self._bad.names

    def stream(self, start: int, stop: int) -> Iterator[Batch]:
        """Yield the batches of the global steps `start` to `stop` - 1, across epochs.

        Step s is batch s mod steps_per_epoch of epoch s // steps_per_epoch. Worker processes end with the
        iterator, whether it is used up, closed or dropped.

        Raises:
            DataError: when more images are unreadable than allowed, or too small for an operation.
        """
        return self._feed.stream(self._positions(start, stop))

    def _positions(self, start: int, stop: int) -> Iterator[_Position]:
        order, ordered = torch.empty(0, dtype=torch.int64), -1
        for step in range(start, stop):
            epoch, number = divmod(step, self.steps_per_epoch)
            if epoch != ordered:
                generator = torch.Generator().manual_seed(derive_seed("order", self._seed, epoch))
                order, ordered = torch.randperm(self._size, generator=generator), epoch
            yield step, epoch, order[number * self._batch_size : (number + 1) * self._batch_size]


_Position = tuple[int, int, Tensor]  # step, epoch, index [B]


class _Resident:
    """Batches of data that is decoded on the device."""

    def __init__(
        self,
        pixels: Tensor,
        labels: Tensor,
        source: Tensor,
        candidates: Tensor | None,
        views: TensorViews,
        seed: int,
    ) -> None:
        self._pixels = pixels
        self._labels = labels.to(pixels.device)
        self._source = source.to(pixels.device)
        self._candidates = None if candidates is None else candidates.to(pixels.device)
        self._views = views
        self._seed = seed

    def stream(self, positions: Iterator[_Position]) -> Iterator[Batch]:
        device = self._pixels.device
        generator = torch.Generator(device)
        for step, _, position in positions:
            index = position.to(device, non_blocking=True)
            generator.manual_seed(derive_seed("views", self._seed, step))
            views = self._views(self._pixels[index], generator)
            candidates = None if self._candidates is None else self._candidates[index]
            yield Batch(views, self._labels[index], self._source[index], candidates)


class _Streamed:
    """Batches that workers decode and augment."""

    def __init__(
        self,
        samples: Samples,
        candidates: NDArray[np.bool_] | None,
        workers: int,
        bad: BadImages,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        device: torch.device,
    ) -> None:
        self._samples = samples
        self._candidates = candidates
        self._workers = workers
        self._mean = torch.tensor(mean, device=device).view(3, 1, 1)
        self._std = torch.tensor(std, device=device).view(3, 1, 1)
        self._device = device
        self._bad = bad

    def stream(self, positions: Iterator[_Position]) -> Iterator[Batch]:
        keys = ([(epoch, i) for i in index.tolist()] for _, epoch, index in positions)
        pin = self._device.type == "cuda"
        for collated in stream(self._samples, keys, self._workers, pin):
            self._bad.add(collated.bad)
            if collated.error is not None:
                raise DataError(collated.error)
            yield Batch(
                tuple(self._normalised(view) for view in collated.views),
                collated.labels.to(self._device, non_blocking=True),
                collated.positions.to(self._device, non_blocking=True),
                self._candidates_of(collated.positions),
            )

    def _candidates_of(self, positions: Tensor) -> Tensor | None:
        if self._candidates is None:
            return None
        return torch.from_numpy(self._candidates[positions.numpy()]).to(self._device, non_blocking=True)

    def _normalised(self, view: Tensor) -> Tensor:
        pixels = view.to(self._device, non_blocking=True).float()  # 8 bits travel, 32 do not
        return pixels.div_(255).sub_(self._mean).div_(self._std)
