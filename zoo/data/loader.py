"""Training batches as a pure function of their position in the run."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing

import torch
from torch import Tensor

from zoo.data.batches import Batch, Order, Position, Sampling, drawn_by, to_device
from zoo.data.cache import decode_all
from zoo.data.config import ViewsConfig
from zoo.data.dataset import ImageDataset
from zoo.data.streamed import Samples, split_view, streamed
from zoo.data.views import TensorViews
from zoo.errors import DataError
from zoo.seeding import derive_seed

MOST_AHEAD = 8
"""Batches on a GPU whose steps have not begun. Graphs are launched so quickly that the host could be dozens
ahead of the device, each with its views in memory: two of 256 images at 224 px are 0.3 GB."""


class TrainLoader:
    """Batches of augmented views, addressed by their global step.

    Batch number `step` depends on the arguments and on `step` alone: not on the batches before it, on the
    number of workers or on any generator's state. So `stream(k, n)` is bit for bit the tail of
    `stream(0, n)`, and a resumed run needs nothing of the loader saved. The order is the same for all
    backends; their views draw different numbers: those made here a function of seed and step, those of a
    worker of seed, epoch and image. On a GPU the next batch is copied and augmented on a stream of its own
    while the step before it runs.

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
            rank: whose rows of each batch: contiguous, as `torch.tensor_split`.
            world_size: number of ranks.
            sampling: how the images of an epoch are drawn; see `zoo.data.batches.drawn_by`.

        Raises:
            DataError: when no batch can be made, or when the tensor backend cannot read or hold the data.
        """
        if drop_last and len(dataset) < batch_size:
            raise DataError(
                f"{len(dataset)} images are fewer than one batch of {batch_size}, and drop_last leaves out "
                f"smaller batches: expected a batch size of at most {len(dataset)}, or drop_last: false"
            )
        draw = drawn_by(sampling, dataset.labels)
        self._order = Order(len(dataset), batch_size, drop_last, seed, rank, world_size, draw)
        self.steps_per_epoch = self._order.steps_per_epoch
        self._seed, self._workers, self._device = seed, views.workers, torch.device(device)
        self._labels = torch.from_numpy(dataset.labels.copy()).to(self._device)
        self._candidates = None
        if dataset.candidates is not None:
            self._candidates = torch.from_numpy(dataset.candidates.copy()).to(self._device)
        self._mean, self._std = (
            torch.tensor(each, device=self._device).view(3, 1, 1) for each in (mean, std)
        )
        self._pixels: Tensor | None = None
        if views.backend == "tensor":
            self._pixels = decode_all(dataset, image_size, device=self._device, cache=views.cache)
            self._finish: list[TensorViews | None] = [TensorViews(views.train, mean, std)]
        else:
            # after the crop on the device (backend `stream`), or all of it in the workers
            split = views.backend == "stream"
            parts = [split_view(view) if split else (view, []) for view in views.train]
            self._samples = Samples(dataset, [host for host, _ in parts], seed, image_size)
            self._finish = [TensorViews([rest], mean, std) if rest else None for _, rest in parts]

    def stream(self, start: int, stop: int) -> Iterator[Batch]:
        """Yield the batches of the global steps `start` to `stop` - 1, across epochs.

        Step s is batch s mod steps_per_epoch of epoch s // steps_per_epoch. Worker processes end with the
        iterator, whether it is used up, closed or dropped.

        Raises:
            DataError: for an image that cannot be read, or is too small for an operation.
        """
        batches = self._batches(start, stop)
        return _beside_the_step(batches, self._device) if self._device.type == "cuda" else batches

    def _batches(self, start: int, stop: int) -> Generator[Batch]:
        generator = torch.Generator(self._device)
        for position, images in self._images(start, stop):
            generator.manual_seed(derive_seed("views", self._seed, position.step))
            views = list[Tensor]()
            for pixels, finish in zip(images, self._finish, strict=True):
                here = to_device(pixels, self._device)
                if finish is None:  # normalised in torchvision's order: not one rounding may differ
                    views.append(here.float().div_(255).sub_(self._mean).div_(self._std))
                else:
                    views += finish(here, generator, start=position.start, total=position.total)
            index = to_device(position.index, self._device)
            candidates = None if self._candidates is None else self._candidates.index_select(0, index)
            yield Batch(tuple(views), self._labels.index_select(0, index), index, candidates)

    def _images(self, start: int, stop: int) -> Iterator[tuple[Position, list[Tensor]]]:
        """Yield where each batch is, and its images: decoded, or augmented by workers."""
        if self._pixels is None:
            positions = self._order.positions(start, stop, torch.device("cpu"))
            yield from streamed(self._samples, positions, self._workers, self._device)
            return
        for position in self._order.positions(start, stop, self._pixels.device):
            yield position, [self._pixels.index_select(0, position.index)]


def _beside_the_step(batches: Generator[Batch], device: torch.device) -> Generator[Batch]:
    """Yield `batches`, made on a CUDA stream of their own: its kernels run while those of the step do.

    Each is queued before the one in front of it is handed over. The caller's kernels of step s are still
    running when batch s + 2 is queued, so neither stream waits for this thread. A CPU makes batches in line:
    a thread would take the cores from the step (measured on 2 cores, MoCo with a ResNet-20: 359 instead of
    368 ms with 2 threads, 667 and 666 with 1).
    """
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))  # for the copy of the data set, e.g.
    begins: deque[torch.cuda.Event] = deque()  # of the steps that batches were handed over to

    def make() -> tuple[Batch | None, torch.cuda.Event]:
        if len(begins) >= MOST_AHEAD:
            begins.popleft().synchronize()
        with torch.cuda.stream(stream):
            return next(batches, None), stream.record_event()

    with closing(batches):
        upcoming, ready = make()
        while upcoming is not None:
            batch, made = upcoming, ready
            upcoming, ready = make()
            current = torch.cuda.current_stream(device)
            current.wait_event(made)
            begins.append(current.record_event())
            for tensor in (*batch.views, batch.labels, batch.index, batch.candidates):
                if tensor is not None:
                    tensor.record_stream(current)  # its memory is this stream's to reuse only after that one
            yield batch
