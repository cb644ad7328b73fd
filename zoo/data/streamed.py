"""Training data decoded again and again in worker processes, one image at a time."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import closing, suppress
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from zoo.data.bad_images import BadImages, read_or_replace
from zoo.data.batch import Batch
from zoo.data.batch_order import Position
from zoo.data.dataset import ImageDataset
from zoo.data.decode import scaled_to_square
from zoo.data.ops import Op
from zoo.data.prefetch import pinned
from zoo.data.split import split_view
from zoo.data.tensor_views import TensorViews
from zoo.data.torchvision_views import PILViews, seeded
from zoo.errors import DataError
from zoo.launch import neighbours
from zoo.seeding import derive_seed

Key = tuple[int, ...]  # epoch, index, and where an epoch may have an image more than once its place there


class Sample(NamedTuple):
    """One augmented image; `views` is empty when there is an error."""

    views: list[Tensor]
    label: int
    position: int
    bad: dict[str, str]
    error: str | None = None


class Collated(NamedTuple):
    """A batch as it comes from a worker.

    Attributes:
        views: `[B, 3, h, w]`, uint8, or float32 and normalised, each; empty when there is an error.
        labels: `[B]`, int64.
        positions: in the data set `[B]`, int64.
        bad: name and error of each unreadable image.
        error: message for the user, if any: an exception would arrive wrapped in a worker's traceback.
    """

    views: list[Tensor]
    labels: Tensor
    positions: Tensor
    bad: dict[str, str]
    error: str | None


class Samples(Dataset[Sample]):
    """Augmented images by key: what one gives depends on nothing else."""

    def __init__(
        self,
        dataset: ImageDataset,
        views: Sequence[Sequence[Op]],
        seed: int,
        image_size: int | None,
        max_bad: int,
        mean: Sequence[float] = (0.5, 0.5, 0.5),
        std: Sequence[float] = (0.5, 0.5, 0.5),
    ) -> None:
        """Augment `dataset` with `views`; draws are a function of `seed` and key."""
        self._dataset = dataset
        self._views = PILViews(views, mean, std)
        self._seed = seed
        self._image_size = image_size
        self._max_bad = max_bad

    def __getitem__(self, key: Key) -> Sample:
        """Return the sample of a key."""
        asked = key[1]
        image, position, bad = read_or_replace(self._dataset, asked, self._max_bad)
        if image is None:
            return Sample([], -1, asked, bad, f"{len(bad)} images in a row cannot be read")
        if self._image_size is not None:
            image = scaled_to_square(image, self._image_size)
        with seeded(derive_seed("views", self._seed, *key)):
            try:
                views = self._views(image)
            except (ValueError, RuntimeError) as error:  # how torchvision says that an image is too small
                name, reason = self._dataset.name_of(position), " ".join(str(error).split())
                return Sample([], -1, position, bad, f'image "{name}" cannot be augmented: {reason}')
        return Sample(views, int(self._dataset.labels[position]), position, bad)


def collate(samples: list[Sample]) -> Collated:
    """Make a batch of samples."""
    bad = {name: error for sample in samples for name, error in sample.bad.items()}
    labels = torch.tensor([sample.label for sample in samples])
    positions = torch.tensor([sample.position for sample in samples])
    errors = [sample.error for sample in samples if sample.error is not None]
    if errors:
        return Collated([], labels, positions, bad, errors[0])
    stacked = []
    for number, views in enumerate(zip(*(sample.views for sample in samples), strict=True)):
        sizes = {tuple(view.shape[1:]) for view in views}
        if len(sizes) > 1:
            (h0, w0), (h1, w1) = sorted(sizes)[:2]
            error = (
                f"view {number} has images of {w0}x{h0} and of {w1}x{h1} pixels: end it with an operation "
                'that gives one size, e.g. "random_resized_crop" or "center_crop", or set data.image_size'
            )
            return Collated([], labels, positions, bad, error)
        stacked.append(torch.stack(views))
    return Collated(stacked, labels, positions, bad, None)


def processes(workers: int) -> int:
    """Return how many of `workers` are started: no more than this process's share of the cores it may use.

    More would wait for each other, and each holds a copy of what it needs. What they make is the same.
    Several ranks share the cores of their node, and each starts workers of its own; a launcher that binds
    each rank to cores has divided them already.
    """
    own = _cores(0)
    launcher = _cores(os.getppid()) if neighbours() > 1 else own
    share = len(launcher) // neighbours()
    return min(workers, max(1, min(len(own), share)))


def _cores(pid: int) -> Collection[int]:
    """Return the cores that a process may use; where the system does not tell, all."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    with suppress(OSError):
        if affinity is not None:
            return cast(set[int], affinity(pid))
    return range(os.cpu_count() or 1)


def outlive_first_signal(_worker: int) -> None:
    """Let this process survive one SIGTERM.

    torchrun and SLURM send it to a training and all its children, and the training needs the batches under
    way to save its state. A parent that ends its children by it asks again.
    """
    signal.signal(signal.SIGTERM, lambda *_: signal.signal(signal.SIGTERM, signal.SIG_DFL))


def stream(
    samples: Samples, batches: Iterator[list[Key]], workers: int, pin_memory: bool
) -> Generator[Collated]:
    """Yield the batches of `batches`, made by `workers` processes (0: this one) that live to the end."""
    loader: DataLoader[Sample] = DataLoader(
        samples,
        batch_sampler=batches,
        num_workers=processes(workers),
        collate_fn=collate,
        pin_memory=pin_memory,
        generator=torch.Generator(),  # else a loader draws from, and so moves, the global one
        worker_init_fn=outlive_first_signal,
    )
    iterator = iter(loader)
    try:
        yield from iterator
    finally:
        del iterator  # the last reference: ends the workers, also when this generator is abandoned


class Streamed:
    """Batches that workers decode and crop; the operations after the crop are done here, or by them too.

    What travels from a worker is 8 bits. The draws of a worker's operations are a function of seed, epoch
    and image (and of its place in the epoch, where it may come again), those of the batch's operations of
    seed and step.
    """

    index_device = torch.device("cpu")

    def __init__(
        self,
        dataset: ImageDataset,
        views: Sequence[Sequence[Op]],
        bad: BadImages,
        *,
        split: bool,
        workers: int,
        image_size: int | None,
        max_bad: int,
        mean: Sequence[float],
        std: Sequence[float],
        seed: int,
        device: torch.device,
    ) -> None:
        """Augment `dataset` with `views`; `split`: after the crop on `device`, else all of it in workers."""
        parts = [split_view(view) if split else (list(view), []) for view in views]
        self._samples = Samples(dataset, [host for host, _ in parts], seed, image_size, max_bad, mean, std)
        # without operations the values are normalised in torchvision's order: not one rounding may differ
        self._finish = [TensorViews([rest], mean, std) if rest else None for _, rest in parts]
        self._candidates = dataset.candidates
        self._workers = workers
        self._mean = torch.tensor(mean, device=device).view(3, 1, 1)
        self._std = torch.tensor(std, device=device).view(3, 1, 1)
        self._seed = seed
        self._device = device
        self._bad = bad

    def stream(self, positions: Iterator[Position]) -> Generator[Batch]:
        """Yield the batches of `positions`; workers end with the iterator.

        Raises:
            DataError: when more images are unreadable than allowed, or too small for an operation.
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

        generator = torch.Generator(self._device)
        with closing(stream(self._samples, keys(), self._workers, self._device.type == "cuda")) as batches:
            for collated in batches:
                self._bad.add(collated.bad)
                if collated.error is not None:
                    raise DataError(collated.error)
                position = asked.popleft()
                generator.manual_seed(derive_seed("views", self._seed, position.step))
                yield Batch(
                    tuple(
                        self._finished(view.to(self._device, non_blocking=True), finish, generator, position)
                        for view, finish in zip(collated.views, self._finish, strict=True)
                    ),
                    collated.labels.to(self._device, non_blocking=True),
                    collated.positions.to(self._device, non_blocking=True),
                    self._candidates_of(collated.positions),
                )

    def _finished(
        self, pixels: Tensor, finish: TensorViews | None, generator: torch.Generator, position: Position
    ) -> Tensor:
        if pixels.is_floating_point():  # normalised by the worker, and then erased
            return pixels
        if finish is not None:
            return finish(pixels, generator, start=position.start, total=position.total)[0]
        return pixels.float().div_(255).sub_(self._mean).div_(self._std)

    def _candidates_of(self, positions: Tensor) -> Tensor | None:
        if self._candidates is None:
            return None
        chosen = torch.from_numpy(self._candidates[positions.numpy()])
        return pinned(chosen, self._device).to(self._device, non_blocking=True)
