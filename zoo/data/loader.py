"""Training batches as a pure function of their position in the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from zoo.data.bad_images import BadImages
from zoo.data.batch import Batch
from zoo.data.batch_order import Order
from zoo.data.config import ViewsConfig
from zoo.data.dataset import ImageDataset
from zoo.data.prefetch import SideStream, one_ahead
from zoo.data.resident import Resident, decode_all
from zoo.data.sampling import Sampling, drawn_by
from zoo.data.streamed import Streamed
from zoo.data.tensor_views import TensorViews
from zoo.errors import DataError


class TrainLoader:
    """Batches of augmented views, addressed by their global step.

    Batch number `step` depends on the arguments and on `step` alone: not on the batches before it, on the
    number of workers or on any generator's state. So `stream(k, n)` is bit for bit the tail of
    `stream(0, n)`, and a resumed run needs nothing of the loader saved. The order is the same for all
    backends; their views draw different numbers. On a GPU the next batch is copied and augmented on a stream
    of its own while the step before it runs.

    With several ranks a batch is a rank's rows of the batch of all ranks. Their rows one after another are
    what one rank would have: images, labels and views, on a CPU bit for bit.

    Attributes:
        steps_per_epoch: batches in one pass over the data, the same on every rank.
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
        rank: int = 0,
        world_size: int = 1,
        sampling: Sampling = "instance",
    ) -> None:
        """Prepare the data; the tensor backend decodes all of it here, or maps what an earlier run kept.

        Args:
            dataset: N images.
            views: how they are augmented, and by which backend.
            mean: of the three channels, for values in 0..1.
            std: likewise.
            batch_size: images in a batch of all ranks.
            drop_last: leave out the last batch of an epoch when it is smaller.
            seed: of the order and of the augmentation.
            device: where batches are.
            image_size: scale images to this square when they are decoded; None: as stored.
            max_bad_images: so many unreadable images are replaced by the next readable ones.
            rank: whose rows of each batch: contiguous, as `torch.tensor_split`.
            world_size: number of ranks.
            sampling: how the images of an epoch are drawn; see `zoo.data.sampling`.

        Raises:
            DataError: when no batch can be made, or when the tensor backend cannot hold the data.
        """
        if drop_last and len(dataset) < batch_size:
            raise DataError(
                f"{len(dataset)} images are fewer than one batch of {batch_size}, and drop_last leaves out "
                f"smaller batches: expected a batch size of at most {len(dataset)}, or drop_last: false"
            )
        self._order = Order(
            len(dataset),
            batch_size,
            drop_last=drop_last,
            seed=seed,
            rank=rank,
            world_size=world_size,
            draw=drawn_by(sampling, dataset.labels),
        )
        self.steps_per_epoch = self._order.steps_per_epoch
        self._device = torch.device(device)
        self._bad = BadImages(max_bad_images, all_read=views.backend == "tensor")
        self._feed: Resident | Streamed
        if views.backend == "tensor":
            decoded = decode_all(
                dataset, image_size, device=self._device, threads=views.workers, cache=views.cache
            )
            batched = TensorViews(views.train, mean, std)
            self._feed = Resident(decoded, dataset, self._bad, batched, seed, self._device)
        else:
            self._feed = Streamed(
                dataset,
                views.train,
                self._bad,
                split=views.backend == "stream",
                workers=views.workers,
                image_size=image_size,
                max_bad=max_bad_images,
                mean=mean,
                std=std,
                seed=seed,
                device=self._device,
            )

    @property
    def bad_images(self) -> list[str]:
        """Names of the unreadable images met so far; with the tensor backend, of all there are.

        With the tensor backend they are the same on every rank. Else a rank meets those of its own rows, and
        learns of the others' by `note_unreadable`.
        """
        return list(self._bad.errors)

    @property
    def unreadable(self) -> dict[str, str]:
        """Name and error of each of `bad_images`: what the other ranks are to be told."""
        return self._bad.errors

    def note_unreadable(self, ranks: Sequence[Mapping[str, str]]) -> None:
        """Take what `unreadable` is on every rank, in rank order: then it is the same everywhere.

        Raises:
            DataError: when more images are unreadable than allowed; the same on every rank.
        """
        self._bad.merge(ranks)

    def stream(self, start: int, stop: int) -> Iterator[Batch]:
        """Yield the batches of the global steps `start` to `stop` - 1, across epochs.

        Step s is batch s mod steps_per_epoch of epoch s // steps_per_epoch. Worker processes end with the
        iterator, whether it is used up, closed or dropped.

        Raises:
            DataError: when more images are unreadable than allowed, or too small for an operation.
        """
        batches = self._feed.stream(self._order.positions(start, stop, self._feed.index_device))
        return one_ahead(batches, SideStream(self._device)) if self._device.type == "cuda" else batches
