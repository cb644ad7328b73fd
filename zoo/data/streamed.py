"""Training data decoded again and again in worker processes, one image at a time."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from zoo.data import ops
from zoo.data.batches import Batch, Position, to_device
from zoo.data.config import ViewsConfig
from zoo.data.dataset import ImageDataset
from zoo.data.decode import own_cores, scaled_to_square
from zoo.data.pil_views import PILViews, seeded
from zoo.data.tensor_views import TensorViews
from zoo.errors import DataError
from zoo.seeding import derive_seed

Key = tuple[int, ...]  # epoch, index, and where an epoch may have an image more than once its place there


class Sample(NamedTuple):
    """One augmented image; or a batch of them, as it comes from a worker.

    Attributes:
        views: `[3, h, w]`, of a batch `[B, 3, h, w]`, uint8, each; empty when there is an error.
        label: its class; of a batch `[B]`.
        position: in the data set; of a batch `[B]`.
        error: message for the user, if any: an exception would arrive wrapped in a worker's traceback.
    """

    views: list[Tensor]
    label: Tensor
    position: Tensor
    error: str = ""


class Samples(Dataset[Sample]):
    """Augmented images by key: what one gives depends on nothing else."""

    def __init__(
        self,
        dataset: ImageDataset,
        views: Sequence[Sequence[ops.Op]],
        seed: int,
        image_size: int | None,
    ) -> None:
        """Augment `dataset` with `views`; draws are a function of `seed` and key."""
        self._dataset = dataset
        self._views = PILViews(views)
        self._seed = seed
        self._image_size = image_size

    def __getitem__(self, key: Key) -> Sample:
        """Return the sample of a key."""
        index = key[1]
        label, at = torch.tensor(int(self._dataset.labels[index])), torch.tensor(index)
        try:
            image = self._dataset.image(index)
        except DataError as error:
            return Sample([], label, at, str(error))
        with seeded(derive_seed("views", self._seed, *key)):
            try:
                views = self._views(scaled_to_square(image, self._image_size))
            except (ValueError, RuntimeError) as error:  # how torchvision says that an image is too small
                name, reason = self._dataset.name_of(index), " ".join(str(error).split())
                return Sample([], label, at, f'image "{name}" cannot be augmented: {reason}')
        return Sample(views, label, at)


def collate(samples: list[Sample]) -> Sample:
    """Make a batch of samples."""
    labels, positions = (torch.stack(column) for column in list(zip(*samples, strict=True))[1:3])
    error = next((sample.error for sample in samples if sample.error), "")
    stacked = list[Tensor]()
    for number, views in enumerate(zip(*(sample.views for sample in samples), strict=not error)):
        sizes = list({f"{view.shape[2]}x{view.shape[1]}": None for view in views})
        if len(sizes) > 1:
            error = (
                f"view {number} has images of {' and of '.join(sizes[:2])} pixels: begin it with an operation"
                ' that gives one size, e.g. "random_resized_crop", or set data.image_size'
            )
            break
        stacked.append(torch.stack(views))
    return Sample(stacked, labels, positions, error)


def split_view(view: Sequence[ops.Op]) -> tuple[list[ops.Op], list[ops.Op]]:
    """Return the operations of a view up to the crop that gives all images one size, and the rest."""
    crops = [n for n, op in enumerate(view, 1) if isinstance(op, ops.RandomResizedCrop | ops.PadCrop)]
    end = crops[0] if crops else 0
    return list(view[:end]), list(view[end:])


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
        views: ViewsConfig,
        *,
        image_size: int | None,
        mean: Sequence[float],
        std: Sequence[float],
        seed: int,
        device: torch.device,
    ) -> None:
        """Augment `dataset`: after the crop on `device` (backend `stream`), or all of it in the workers."""
        split = views.backend == "stream"
        parts = [split_view(view) if split else (list(view), []) for view in views.train]
        self._samples = Samples(dataset, [host for host, _ in parts], seed, image_size)
        # without operations the values are normalised in torchvision's order: not one rounding may differ
        self._finish = [TensorViews([rest], mean, std) if rest else None for _, rest in parts]
        self._candidates = None if dataset.candidates is None else torch.from_numpy(dataset.candidates.copy())
        self._workers = views.workers
        self._mean = torch.tensor(mean, device=device).view(3, 1, 1)
        self._std = torch.tensor(std, device=device).view(3, 1, 1)
        self._seed = seed
        self._device = device

    def stream(self, positions: Iterator[Position]) -> Generator[Batch]:
        """Yield the batches of `positions`; workers end with the iterator.

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

        loader: DataLoader[Sample] = DataLoader(
            self._samples,
            batch_sampler=keys(),
            num_workers=processes(self._workers),
            collate_fn=collate,
            pin_memory=self._device.type == "cuda",
            generator=torch.Generator(),  # else a loader draws from, and so moves, the global one
            worker_init_fn=outlive_first_signal,
        )
        generator = torch.Generator(self._device)
        samples = iter(loader)
        try:
            for sample in samples:
                if sample.error:
                    raise DataError(sample.error)
                yield self._batch(sample, asked.popleft(), generator)
        finally:
            del samples  # the last reference: ends the workers, also when this generator is abandoned

    def _batch(self, sample: Sample, position: Position, generator: torch.Generator) -> Batch:
        generator.manual_seed(derive_seed("views", self._seed, position.step))
        views = []
        for pixels, finish in zip(sample.views, self._finish, strict=True):
            view = pixels.to(self._device, non_blocking=True)
            if finish is None:
                views.append(view.float().div_(255).sub_(self._mean).div_(self._std))
            else:
                views += finish(view, generator, start=position.start, total=position.total)
        candidates = None
        if self._candidates is not None:
            candidates = to_device(self._candidates[sample.position], self._device)
        labels, index = (each.to(self._device, non_blocking=True) for each in (sample.label, sample.position))
        return Batch(tuple(views), labels, index, candidates)
