"""Images decoded by worker processes: augmented for training, or as a released encoder expects them."""

import signal
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from zoo.data import ops
from zoo.data.config import EvalView
from zoo.data.dataset import ImageDataset, Split
from zoo.data.decode import own_cores, scaled_to_square
from zoo.data.views import PILViews, seeded
from zoo.errors import DataError
from zoo.seeding import derive_seed

Sample = list[Tensor] | str  # views of an image `[3, h, w]`, uint8, or its error
Key = tuple[int, ...]  # epoch, place in the data set, and where images come again their place in the epoch
_SHOWN = 3  # names of unreadable images in an error


class Samples(Dataset[Sample]):
    """What `make` makes of an image and its key."""

    def __init__(self, dataset: ImageDataset, make: Callable[[Image.Image, Key], list[Tensor]]) -> None:
        self._dataset, self._make = dataset, make

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, key: Key) -> Sample:
        try:
            return self._make(self._dataset.image(key[1]), key)
        except DataError as error:
            return str(error)
        except (ValueError, RuntimeError) as error:  # how torchvision says that an image is too small
            reason = " ".join(str(error).split())
            return f'image "{self._dataset.name_of(key[1])}" cannot be augmented: {reason}'


def augment(
    image: Image.Image, key: Key, *, views: PILViews, seed: int, image_size: int | None
) -> list[Tensor]:
    """Return the views of an image; their draws are a function of `seed` and key."""
    with seeded(derive_seed("views", seed, *key)):
        return views(scaled_to_square(image, image_size))


def _collate(samples: list[Sample]) -> tuple[list[Tensor], dict[int, str]]:
    """Return views `[B, 3, h, w]` of the readable images, and the others' errors by place in the batch."""
    errors = {place: sample for place, sample in enumerate(samples) if isinstance(sample, str)}
    readable = [sample for sample in samples if not isinstance(sample, str)]
    views = list[Tensor]()
    for number, images in enumerate(zip(*readable, strict=True)):
        sizes = list(dict.fromkeys(f"{image.shape[2]}x{image.shape[1]}" for image in images))
        if len(sizes) > 1:
            found = f"view {number} has images of {' and of '.join(sizes[:2])} pixels"
            return [], {0: f'{found}: begin it with "random_resized_crop", or set data.image_size'}
        views.append(torch.stack(images))
    return views, errors


def _survive_first_sigterm(_worker: int) -> None:
    # torchrun and SLURM send it to a training and all its children: it needs them to save its state
    signal.signal(signal.SIGTERM, lambda *_: signal.signal(signal.SIGTERM, signal.SIG_DFL))


def from_workers(
    samples: Samples, keys: Iterable[list[Key]], workers: int, device: torch.device
) -> Generator[tuple[list[Tensor], dict[int, str]]]:
    """Yield what `_collate` makes of each list of keys; worker processes end with the iterator."""
    loader: DataLoader[Sample] = DataLoader(
        samples,
        batch_sampler=keys,
        num_workers=min(workers, own_cores()),
        collate_fn=_collate,
        pin_memory=device.type == "cuda",  # else copies would wait for the device
        generator=torch.Generator(),  # else a loader draws from, and so moves, the global one
        worker_init_fn=_survive_first_sigterm,
    )
    batches = iter(loader)
    try:
        yield from batches
    finally:
        del batches  # the last reference: ends the workers, also when this generator is abandoned


def in_order(
    samples: Samples, batch_size: int, workers: int, device: torch.device
) -> Iterator[tuple[list[int], list[Tensor], dict[int, str]]]:
    """Yield all samples in order: the readable ones' places and views, and the others' errors by place."""
    starts = range(0, len(samples), batch_size)
    batches: list[list[Key]] = [[(0, i) for i in range(len(samples))[n : n + batch_size]] for n in starts]
    for keys, (views, errors) in zip(batches, from_workers(samples, batches, workers, device), strict=True):
        readable = [place for n, (_, place) in enumerate(keys) if n not in errors]
        yield readable, views, {keys[n][1]: error for n, error in errors.items()}


def cannot_be_read(dataset: ImageDataset, errors: Mapping[int, str]) -> str:
    """Say which images cannot be read, by place in the data set: the first one's error, and how many more."""
    first, *more = sorted(errors)
    names = [*map(dataset.name_of, more[:_SHOWN]), *["..."][: len(more) > _SHOWN]]
    return f"{errors[first]}; {len(more)} more cannot be read ({', '.join(names)})" if more else errors[first]


def split_view(view: Sequence[ops.Op]) -> tuple[list[ops.Op], list[ops.Op]]:
    """Return the operations of a view up to the crop that gives all images one size, and the rest."""
    crops = [n for n, op in enumerate(view, 1) if isinstance(op, ops.RandomResizedCrop | ops.PadCrop)]
    end = crops[0] if crops else 0
    return list(view[:end]), list(view[end:])


def _transform(image: Image.Image, _key: Key, *, transform: Callable[[Image.Image], Any]) -> list[Tensor]:
    return [torch.from_numpy(np.ascontiguousarray(transform(image)))]


def eval_images(
    dataset: ImageDataset,
    eval_view: EvalView,
    mean: Sequence[float],
    std: Sequence[float],
    *,
    batch_size: int,
    device: torch.device | str,
    workers: int = 0,
    split: Split = "test",
    errors: dict[int, str] | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield images `[B, 3, S, S]`, float32, on `device`, and labels `[B]`, int64, on the CPU, in order.

    Pixels are those of timm's evaluation transform as `eval_view` has it; `mean` and `std` are those of the
    channels for values in 0..1. `workers` processes decode (0: this one). `errors` gets what is wrong with
    each unreadable image, by its place in the data set; without it they are an error.

    Raises:
        DataError: at the end of the pass: how many images of `split` cannot be read, and which.
    """
    from timm.data import create_transform

    transform = create_transform(
        input_size=(3, eval_view.size, eval_view.size),
        is_training=False,
        interpolation=eval_view.interpolation,
        crop_pct=eval_view.crop_pct,
        use_prefetcher=True,  # leaves values in 8 bits; they are normalised in batches
    )
    samples = Samples(dataset, partial(_transform, transform=transform))
    place = torch.device(device)
    labels = torch.from_numpy(dataset.labels.copy())
    channel_mean, channel_std = (torch.tensor(each, device=place).view(3, 1, 1) for each in (mean, std))
    found = {} if errors is None else errors
    for index, views, unreadable in in_order(samples, batch_size, workers, place):
        found |= unreadable
        if views and (not found or errors is not None):
            images = views[0].to(place, non_blocking=True).float()
            yield images.div_(255).sub_(channel_mean).div_(channel_std), labels[index]  # as timm does it
    if found and errors is None:
        raise DataError(f"{split} images: {cannot_be_read(dataset, found)}")
