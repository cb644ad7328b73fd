"""Images decoded by worker processes: cropped for training, or as a released encoder expects them."""

import signal
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2.functional import pil_to_tensor

from zoo.data import ops
from zoo.data.config import EvalView
from zoo.data.dataset import ImageDataset
from zoo.data.decode import own_cores, scaled_to_square
from zoo.errors import DataError
from zoo.seeding import derive_seed

Key = tuple[int, ...]  # epoch, place in the data set, and where images come again their place in the epoch
Sample = tuple[int, list[Tensor] | str]  # an image's place; its views `[3, h, w]`, uint8, or its error


class Samples(Dataset[Sample]):
    """What `make` makes of an image and its key."""

    def __init__(self, dataset: ImageDataset, make: Callable[[Image.Image, Key], list[Tensor]]) -> None:
        self._dataset, self._make = dataset, make

    def __getitem__(self, key: Key) -> Sample:
        try:
            return key[1], self._make(self._dataset.image(key[1]), key)
        except DataError as error:
            return key[1], str(error)


def crops(
    image: Image.Image, key: Key, *, of_views: Sequence[ops.Op], seed: int, image_size: int | None
) -> list[Tensor]:
    """Return the crop that each view begins with; all draws are a function of `seed` and key."""
    image, found = scaled_to_square(image, image_size), list[Tensor]()
    with torch.random.fork_rng(devices=[]):  # torchvision draws from the global generator
        torch.default_generator.manual_seed(derive_seed("views", seed, *key))
        for op in of_views:
            assert isinstance(op, ops.RandomResizedCrop)  # `ViewsConfig` allows no other here
            mode = InterpolationMode(op.interpolation)
            found.append(pil_to_tensor(v2.RandomResizedCrop(op.size, op.scale, op.ratio, mode)(image)))
    return found


def _collate(samples: list[Sample]) -> tuple[list[int], list[Tensor], dict[int, str]]:
    """Return the readable images' places, a batch `[B, 3, h, w]` of each view, and the others' errors."""
    readable = [(place, views) for place, views in samples if not isinstance(views, str)]
    views = [torch.stack(images) for images in zip(*(views for _, views in readable), strict=True)]
    errors = {place: error for place, error in samples if isinstance(error, str)}
    return [place for place, _ in readable], views, errors


def _survive_first_sigterm(_worker: int) -> None:
    # torchrun and SLURM send it to a training and all its children: it needs them to save its state
    signal.signal(signal.SIGTERM, lambda *_: signal.signal(signal.SIGTERM, signal.SIG_DFL))


def in_order(count: int, batch_size: int) -> list[list[Key]]:
    """Return the keys of batches of `count` images in the order of the data set."""
    places = range(count)
    return [[(0, place) for place in places[start : start + batch_size]] for start in places[::batch_size]]


def from_workers(
    samples: Samples,
    keys: Iterable[list[Key]],
    workers: int,
    device: torch.device,
    errors: dict[int, str] | None = None,
) -> Generator[tuple[list[int], list[Tensor]]]:
    """Yield the places of the images of each list of keys, and a batch of each of their views.

    An unreadable image is a DataError; with `errors` it is left out, and what is wrong with it is put there,
    by its place in the data set. Worker processes end with the iterator.
    """
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
        for places, views, found in batches:
            if found and errors is None:
                raise DataError(next(iter(found.values())))
            if errors is not None:
                errors |= found
            yield places, views
    finally:
        del batches  # the last reference: ends the workers, also when this generator is abandoned


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
    errors: dict[int, str] | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield images `[B, 3, S, S]`, float32, on `device`, and labels `[B]`, int64, on the CPU, in order.

    Pixels are those of timm's evaluation transform as `eval_view` has it; `mean` and `std` are those of the
    channels for values in 0..1. `workers` processes decode (0: this one). An unreadable image is a DataError;
    `errors` gets what is wrong with each instead, by its place in the data set.
    """
    from timm.data import create_transform

    transform = create_transform(
        input_size=(3, eval_view.size, eval_view.size),
        is_training=False,
        interpolation=eval_view.interpolation,
        crop_pct=eval_view.crop_pct,
        use_prefetcher=True,  # leaves values in 8 bits; they are normalised in batches
    )
    samples, place = Samples(dataset, partial(_transform, transform=transform)), torch.device(device)
    labels = torch.from_numpy(dataset.labels.copy())
    channel_mean, channel_std = (torch.tensor(each, device=place).view(3, 1, 1) for each in (mean, std))
    keys = in_order(len(dataset), batch_size)
    for index, views in from_workers(samples, keys, workers, place, errors):
        if views:
            images = views[0].to(place, non_blocking=True).float()
            yield images.div_(255).sub_(channel_mean).div_(channel_std), labels[index]  # as timm does it
