"""Images decoded again and again, one at a time, by worker processes."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from zoo.data import ops
from zoo.data.batches import Position
from zoo.data.dataset import ImageDataset
from zoo.data.decode import own_cores, scaled_to_square
from zoo.data.views import PILViews, seeded
from zoo.errors import DataError
from zoo.seeding import derive_seed

Sample = list[Tensor] | str
"""What is made of an image, `[3, h, w]`, uint8, each; or what is wrong with it: an exception would arrive
wrapped in a worker's traceback."""

Collated = tuple[list[Tensor], dict[int, str]]
"""The same of the readable images of a batch, `[B, 3, h, w]` each, and the others' errors by their place."""

Key = tuple[int, ...]  # epoch, index, and where an epoch may have an image more than once its place there


class Samples(Dataset[Sample]):
    """Augmented images by key: what one gives depends on nothing else."""

    def __init__(
        self, dataset: ImageDataset, views: Sequence[Sequence[ops.Op]], seed: int, image_size: int | None
    ) -> None:
        """Augment `dataset` with `views`; draws are a function of `seed` and key."""
        self._dataset = dataset
        self._views = PILViews(views)
        self._seed = seed
        self._image_size = image_size

    def __getitem__(self, key: Key) -> Sample:
        """Return the views of a key's image."""
        try:
            image = scaled_to_square(self._dataset.image(key[1]), self._image_size)
        except DataError as error:
            return str(error)
        with seeded(derive_seed("views", self._seed, *key)):
            try:
                return self._views(image)
            except (ValueError, RuntimeError) as error:  # how torchvision says that an image is too small
                reason = " ".join(str(error).split())
                return f'image "{self._dataset.name_of(key[1])}" cannot be augmented: {reason}'


def collate(samples: list[Sample]) -> Collated:
    """Make a batch of samples: few tensors, as each that a worker sends costs an open file."""
    errors = {place: sample for place, sample in enumerate(samples) if isinstance(sample, str)}
    views = list[Tensor]()
    readable = [sample for sample in samples if not isinstance(sample, str)]
    for number, images in enumerate(zip(*readable, strict=True)):
        sizes = list({f"{image.shape[2]}x{image.shape[1]}": None for image in images})
        if len(sizes) > 1:
            error = (
                f"view {number} has images of {' and of '.join(sizes[:2])} pixels: begin it with an operation"
                ' that gives one size, e.g. "random_resized_crop", or set data.image_size'
            )
            return [], {0: error}
        views.append(torch.stack(images))
    return views, errors


def from_workers(
    samples: Dataset[Sample], keys: Iterable[list[Any]], workers: int, device: torch.device
) -> Generator[Collated]:
    """Yield a batch of `samples` for each list of keys, in order; worker processes end with the iterator."""
    loader: DataLoader[Sample] = DataLoader(
        samples,
        batch_sampler=keys,
        num_workers=processes(workers),
        collate_fn=collate,
        pin_memory=device.type == "cuda",  # else copies would wait for the device
        generator=torch.Generator(),  # else a loader draws from, and so moves, the global one
        worker_init_fn=outlive_first_signal,
    )
    batches = iter(loader)
    try:
        yield from batches
    finally:
        del batches  # the last reference: ends the workers, also when this generator is abandoned


def processes(workers: int) -> int:
    """Return how many of `workers` are started: no more than this process's share of the cores.

    More would wait for each other, and each holds a copy of what it needs. What they make is the same.
    """
    return min(workers, own_cores())


def outlive_first_signal(_worker: int) -> None:
    """Let this process survive one SIGTERM.

    torchrun and SLURM send it to a training and all its children, and the training needs the batches under
    way to save its state. A parent that ends its children by it asks again.
    """
    signal.signal(signal.SIGTERM, lambda *_: signal.signal(signal.SIGTERM, signal.SIG_DFL))


def streamed(
    samples: Samples, positions: Iterator[Position], workers: int, device: torch.device
) -> Generator[tuple[Position, list[Tensor]]]:
    """Yield the views of each position's images, `[B, 3, h, w]`, uint8, in the memory of the host.

    Raises:
        DataError: for an image that cannot be read, or is too small for an operation.
    """
    asked: deque[Position] = deque()

    def keys() -> Iterator[list[Key]]:
        for position in positions:
            asked.append(position)
            index, place = position.index.tolist(), position.place
            if place is None:
                yield [(position.epoch, i) for i in index]
            else:
                yield [(position.epoch, i, n) for n, i in enumerate(index, place)]

    for views, errors in from_workers(samples, keys(), workers, device):
        for error in errors.values():
            raise DataError(error)
        yield asked.popleft(), views


def split_view(view: Sequence[ops.Op]) -> tuple[list[ops.Op], list[ops.Op]]:
    """Return the operations of a view up to the crop that gives all images one size, and the rest."""
    crops = [n for n, op in enumerate(view, 1) if isinstance(op, ops.RandomResizedCrop | ops.PadCrop)]
    end = crops[0] if crops else 0
    return list(view[:end]), list(view[end:])
