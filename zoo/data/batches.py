"""Batches of images: for training, as a pure function of the step, and for evaluation."""

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache, partial
from signal import SIG_BLOCK, SIG_DFL, SIG_SETMASK, SIG_UNBLOCK, SIGTERM, alarm, pthread_sigmask, signal
from traceback import clear_frames
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision.transforms import RandomResizedCrop

from zoo.data import ops
from zoo.data.config import EvalView, ViewsConfig
from zoo.data.dataset import ImageDataset
from zoo.data.decode import decode_all, open_image, own_cores, scaled_to_square
from zoo.data.views import transforms
from zoo.data.views.auto_augment import auto_augment
from zoo.data.views.transforms import Draws, to_device
from zoo.errors import DataError
from zoo.files import supported_workers
from zoo.release.tensors import to_rgb

CPU_PART = 128  # images drawn together; as many pixels as in 128 of 64 x 64 are changed together
DETAIL = 1.5  # JPEGs decoded at a lower scale keep at least this many pixels per output pixel and side
View = Sequence[ops.Op]
Key = tuple[int, ...]  # epoch, index of the image; if images may repeat in an epoch, also the position in it
Sample = tuple[int, list[Tensor] | str]  # an image's index; its views `[1, 3, h, w]`, uint8, or its error
Errors = dict[int, str] | None  # receives unreadable images' errors by index; None: they are raised


class Batch(NamedTuple):
    """One batch of augmented images."""

    views: tuple[Tensor, ...]  # augmented versions of the same images, each `[B, 3, H, W]`, normalised
    labels: Tensor  # class indices `[B]`, int64; -1 where unknown
    index: Tensor  # type: ignore[assignment]  # indices into the training data set `[B]`, int64
    candidates: Tensor | None = None  # for partial labels: the possible classes `[B, C]`, bool


def derive_seed(*parts: int | str) -> int:
    """Return a 63-bit seed that is a pure function of `parts`, e.g. `("views", seed, epoch, step)`.

    Every draw is seeded by its position in the run. So a run resumes bit for bit without saving the state
    of any generator, and the number of workers or ranks does not change what is drawn.
    """
    text = "/".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def batches_per_epoch(size: int, batch_size: int, *, drop_last: bool) -> int:
    """Return the number of batches in one pass over `size` images; `drop_last`: only full ones."""
    return size // batch_size if drop_last else -(-size // batch_size)


def epoch_order(labels: NDArray[np.int64], sampling: str, seed: int, epoch: int) -> Tensor:
    """Return the order of an epoch: indices `[N]`, int64, of the images with `labels` `[N]`.

    `instance` is a permutation; `class_balanced` draws a class, then one of its images, with replacement.
    Source: Kang et al. 2020, https://arxiv.org/abs/1910.09217, equation 1 with q = 0.
    """
    generator = torch.Generator().manual_seed(derive_seed("order", seed, epoch))
    if sampling == "instance":
        return torch.randperm(len(labels), generator=generator)
    of_class = torch.from_numpy(np.argsort(labels, kind="stable"))
    counts = torch.from_numpy(np.unique(labels, return_counts=True)[1])
    first = counts.cumsum(0) - counts
    shares = torch.rand(2, len(labels), generator=generator, dtype=torch.float64)
    drawn = (shares[0] * len(counts)).long().clamp(max=len(counts) - 1)  # the largest share may round to 1
    return of_class[first[drawn] + torch.minimum((shares[1] * counts[drawn]).long(), counts[drawn] - 1)]


class TensorViews:
    """Augments batches of uint8 images; one generator draws the parameters of all images.

    Operations and the distributions of their parameters are torchvision's. Values are not rounded to 8 bits
    between operations, except in AutoAugment and RandAugment. `mean` and `std` are for values in 0..1.
    """

    def __init__(self, views: Sequence[View], mean: Sequence[float], std: Sequence[float]) -> None:
        self._views, self._mean, self._std = views, tuple(mean), tuple(std)

    def __call__(
        self, images: Tensor, generator: torch.Generator, *, start: int = 0, total: int | None = None
    ) -> tuple[Tensor, ...]:
        """Return a normalised batch `[B, 3, h, w]`, float32, for each view.

        `images` `[B, 3, H, W]`, uint8, are the rows from `start` on of a batch of `total` images, by default
        the whole batch, for which `generator` always draws. DataError if images are too small.
        """
        mean, std = to_device(torch.tensor([self._mean, self._std]), images.device).view(2, 3, 1, 1)
        total = len(images) if total is None else total
        # rows whose numbers are drawn together, and rows that are changed together: fastest in a core's cache
        of_cpu = CPU_PART, max(1, CPU_PART * 64 * 64 // images.shape[2:].numel())
        drawn, at_once = of_cpu if images.device.type == "cpu" else (total, total)
        views: list[Tensor] = []
        for first in range(0, total, drawn):  # draw for all parts, even those without rows of this rank
            size = min(drawn, total - first)
            low, high = (min(max(edge - first, 0), size) for edge in (start, start + len(images)))
            state = generator.get_state() if at_once < size else None
            for row in range(low, max(high, low + 1), at_once):
                if state is not None:  # large images, few at once: repeat the draws of the part
                    generator.set_state(state)
                end = min(row + at_once, high)
                here = slice(first + row - start, first + end - start)
                for place, view in enumerate(self._views):
                    pixels = images[here].contiguous() * (1 / 255)
                    done = augment(pixels, view, Draws(generator, size, row, end))
                    if place == len(views):
                        views.append(done.new_empty(len(images), *done.shape[1:]))
                    torch.sub(done, mean, out=views[place][here]).div_(std)
        return tuple(views)


def augment(images: Tensor, view: View, draws: Draws) -> Tensor:
    """Apply a view's operations to `images` `[B, 3, H, W]`, float32 in 0..1, which may be overwritten."""
    for op in view:
        # functions are named like the operations
        change: Any = auto_augment if op.op.endswith("_augment") else getattr(transforms, op.op)
        images = change(op, images, draws)
    return images


@dataclass(frozen=True)
class Samples(Dataset[Sample]):
    """Maps each key to `make(key)`, or to the message of the DataError that it raised."""

    make: Callable[[Key], list[Tensor]]

    def __getitem__(self, key: Key) -> Sample:
        try:
            return key[1], self.make(key)
        except DataError as error:
            return key[1], str(error)


def random_crops(dataset: ImageDataset, size: int | None, views: Any, seed: int, key: Key) -> list[Tensor]:
    """Return each view's initial crop, as torchvision draws it; within 1/255 of Pillow's (bicubic 2/255).

    If a JPEG is decoded at a lower scale (see `DETAIL`), edges move by up to half a pixel of that scale.
    """
    crops, index = list[Tensor](), key[1]
    with open_image(dataset.item(index), dataset.name_of(index)) as stored, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed("views", seed, *key))  # which torchvision uses
        image = stored if size is None else scaled_to_square(to_rgb(stored), size)
        boxes = [RandomResizedCrop.get_params(image, view[0].scale, view[0].ratio) for view in views]
        room = min(min(box[2:]) / view[0].size for view, box in zip(views, boxes, strict=True)) / DETAIL
        width, shrink = image.width, next((each for each in (8, 4, 2) if each <= room), 1)
        image.draft("RGB", (width // shrink, image.height // shrink))  # only affects JPEGs
        pixels = torch.from_numpy(np.array(to_rgb(image))).permute(2, 0, 1)
    shrink = round(width / pixels.shape[2])
    for (op, *_), (top, left, h, w) in zip(views, boxes, strict=True):
        y, x, bottom, right = (round(n / shrink) for n in (top, left, top + h, left + w))
        # resizing uint8 is fastest in channels_last
        part = pixels[None, :, y:bottom, x:right].contiguous(memory_format=torch.channels_last)
        crops.append(F.interpolate(part, (op.size, op.size), mode=op.interpolation, antialias=True))
    return crops


def whole_image(dataset: ImageDataset, transform: Any, key: Key) -> list[Tensor]:
    """Return the transformed PIL image."""
    return [torch.as_tensor(transform(dataset.image(key[1])))[None]]


def _collate(samples: list[Sample]) -> tuple[list[int], list[Tensor], dict[int, str]]:
    """Return the readable images' indices, a batch `[B, 3, h, w]` per view, and the others' errors."""
    readable = [(place, views) for place, views in samples if not isinstance(views, str)]
    # torch's own function, which puts them into shared memory here, where an error is not lost
    parts = zip(*(views for _, views in readable), strict=True)
    views = [default_collate([x[0].movedim(0, 2) for x in part]).movedim(3, 1) for part in parts]
    return [place for place, _ in readable], views, {n: each for n, each in samples if isinstance(each, str)}


def _survive_first_sigterm(_worker: int) -> None:
    # torchrun and SLURM signal child processes too, but training needs these until its state is saved
    signal(SIGTERM, lambda *_: (signal(SIGTERM, SIG_DFL), alarm(600)))  # not for ever: exit waits for them
    pthread_sigmask(SIG_UNBLOCK, {SIGTERM})


def from_workers(
    samples: Samples, keys: Iterable[list[Key]], workers: int, device: torch.device, errors: Errors = None
) -> Generator[tuple[list[int], list[Tensor]]]:
    """Yield the indices and one batch per view of each list of keys; MemoryError if workers lack memory."""
    loader: DataLoader[Sample] = DataLoader(
        samples,
        batch_sampler=keys,
        num_workers=min(supported_workers(workers), own_cores()) if workers else 0,
        collate_fn=_collate,
        pin_memory=device.type == "cuda",  # otherwise copies would wait for the device
        generator=torch.Generator(),  # otherwise the loader draws from the global generator
        worker_init_fn=_survive_first_sigterm,
    )
    before = pthread_sigmask(SIG_BLOCK, {SIGTERM})  # until the workers can survive it
    batches = iter(loader)
    pthread_sigmask(SIG_SETMASK, before)
    try:
        for places, views, found in batches:
            if found and errors is None:
                raise DataError(next(iter(found.values())))
            if errors is not None:
                errors |= found
            yield places, views
    except RuntimeError as error:
        clear_frames(error.__traceback__)  # torch's would keep the workers, and they this process
        said = str(error).strip().rpartition("\n")[2]
        if "shared memory" not in said and "DataLoader worker (" not in said:
            raise
        raise MemoryError(f"{said}: the worker processes lack memory or /dev/shm; use fewer") from None
    finally:
        del batches  # the last reference: stops the workers, even if not all batches were read


class TrainLoader:
    """Batches of augmented views, addressed by global step; every rank has `steps_per_epoch`.

    Batch number `step` depends only on the arguments and `step`: `stream(k, n)` is bit for bit the tail of
    `stream(0, n)`. Both backends have the same order; views are seeded by seed and step, workers' crops by
    seed, epoch and image. Each rank gets its rows of a single process's batch, bit for bit on a CPU.
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
        sampling: str = "instance",
    ) -> None:
        """Prepare the data; the tensor backend decodes all images here, or maps an earlier run's cache.

        `mean` and `std` are for values in 0..1; `batch_size` is the total over all ranks, a multiple of
        `world_size`; `sampling` as in `epoch_order`. Images are scaled to a square of `image_size` on
        decoding; None keeps their size. DataError if there is no full batch or an image cannot be read.
        """
        if drop_last and len(dataset) < batch_size:
            raise DataError(f"{len(dataset)} images are fewer than one batch of {batch_size}")
        if sampling != "instance" and (dataset.labels < 0).any():
            raise DataError(f'sampling: found "{sampling}" and images without labels, expected "instance"')
        self._order = lru_cache(maxsize=2)(partial(epoch_order, dataset.labels, sampling, seed))
        self._repeats = sampling != "instance"
        self.steps_per_epoch = batches_per_epoch(len(dataset), batch_size, drop_last=drop_last)
        self._batch_size, self._rank, self._world_size = batch_size, rank, world_size
        self._seed, self._workers, self._device = seed, views.workers, torch.device(device)
        self._labels, candidates = torch.from_numpy(dataset.labels.copy()).to(device), dataset.candidates
        self._candidates = None if candidates is None else torch.from_numpy(candidates.copy()).to(device)
        self._samples = Samples(partial(random_crops, dataset, image_size, views.train, seed))
        self._finish = [TensorViews([view[1:]], mean, std) for view in views.train]
        self._pixels: Tensor | None = None
        if views.backend == "tensor":
            pixels = torch.from_numpy(decode_all(dataset, image_size, cache=views.cache))
            self._pixels, self._finish = pixels.to(self._device), [TensorViews(views.train, mean, std)]

    def stream(self, start: int, stop: int) -> Generator[Batch]:
        """Yield the batches of steps `start` to `stop` - 1; worker processes stop with the iterator."""
        generator, steps = torch.Generator(), range(start, stop)
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
        """Return this rank's image indices in a batch, the position of the first, and the batch size."""
        epoch, number = divmod(step, self.steps_per_epoch)
        batch = self._order(epoch)[number * self._batch_size : (number + 1) * self._batch_size]
        each = len(batch) // self._world_size
        return batch[self._rank * each : (self._rank + 1) * each], self._rank * each, len(batch)

    def _keys(self, step: int) -> list[Key]:
        """Return the keys that seed a worker's draws: epoch, image and, if images repeat, the position."""
        epoch, number = divmod(step, self.steps_per_epoch)
        index, first, _ = self._rows(step)
        start = number * self._batch_size + first
        return [(epoch, i, start + n) if self._repeats else (epoch, i) for n, i in enumerate(index.tolist())]


def eval_images(
    dataset: ImageDataset,
    eval_view: EvalView,
    mean: Sequence[float],
    std: Sequence[float],
    *,
    batch_size: int,
    device: torch.device | str,
    workers: int = 0,
    errors: Errors = None,
    crop_mode: str = "center",
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield images `[B, 3, S, S]`, float32, on `device`, and labels `[B]`, int64, on the CPU, in order.

    Applies timm's evaluation transform for `eval_view` and `crop_mode`; `mean` and `std` are for values in
    0..1. An unreadable image raises DataError, or is skipped and noted in `errors` by its index.
    """
    from timm.data import create_transform

    how = {"interpolation": eval_view.interpolation, "crop_pct": eval_view.crop_pct, "crop_mode": crop_mode}
    # use_prefetcher: the transform returns uint8, normalised below in batches; `mean` colours the padding
    transform = create_transform(eval_view.size, **how, mean=tuple(mean), use_prefetcher=True)
    samples, device = Samples(partial(whole_image, dataset, transform)), torch.device(device)
    labels, every = torch.from_numpy(dataset.labels.copy()), range(len(dataset))
    channel_mean, channel_std = (torch.tensor(each, device=device).view(3, 1, 1) for each in (mean, std))
    keys: list[list[Key]] = [[(0, i) for i in every[n : n + batch_size]] for n in every[::batch_size]]
    for index, views in from_workers(samples, keys, workers, device, errors):
        if views:
            images = views[0].to(device, non_blocking=True).contiguous().float()
            yield images.div_(255).sub_(channel_mean).div_(channel_std), labels[index]  # as timm does
