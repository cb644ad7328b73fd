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

Sample = list[Tensor] | tuple[int, str]  # of an image `[3, h, w]`, uint8, each; or its place and its error
Key = tuple[int, ...]  # epoch, place in the data set, and where images come again their place in the epoch


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
            return key[1], str(error)


def crops(
    image: Image.Image, key: Key, *, of_views: Sequence[ops.Op], seed: int, image_size: int | None
) -> list[Tensor]:
    """Return the crop that each view begins with; all draws are a function of `seed` and key."""
    image = scaled_to_square(image, image_size)
    found = []
    with torch.random.fork_rng(devices=[]):  # torchvision draws from the global generator
        torch.default_generator.manual_seed(derive_seed("views", seed, *key))
        for op in of_views:
            assert isinstance(op, ops.RandomResizedCrop)  # the recipe's schema allows no other operation here
            mode = InterpolationMode(op.interpolation)
            found.append(pil_to_tensor(v2.RandomResizedCrop(op.size, op.scale, op.ratio, mode)(image)))
    return found


def _collate(samples: list[Sample]) -> tuple[list[Tensor], dict[int, str]]:
    """Return the readable images as batches `[B, 3, h, w]`, one a view, and the others' errors by place."""
    readable = [sample for sample in samples if isinstance(sample, list)]
    errors = dict(sample for sample in samples if isinstance(sample, tuple))
    return [torch.stack(images) for images in zip(*readable, strict=True)], errors


def _survive_first_sigterm(_worker: int) -> None:
    # torchrun and SLURM send it to a training and all its children: it needs them to save its state
    signal.signal(signal.SIGTERM, lambda *_: signal.signal(signal.SIGTERM, signal.SIG_DFL))


def from_workers(
    samples: Samples,
    keys: Iterable[list[Key]],
    workers: int,
    device: torch.device,
    errors: dict[int, str] | None = None,
) -> Generator[list[Tensor]]:
    """Yield the batches of all views for each list of keys; worker processes end with the iterator.

    An unreadable image is a DataError; with `errors` it is left out, and what is wrong with it is put there,
    by its place in the data set.
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
        for views, found in batches:
            if found and errors is None:
                raise DataError(next(iter(found.values())))
            if errors is not None:
                errors |= found
            yield views
    finally:
        del batches  # the last reference: ends the workers, also when this generator is abandoned


def in_order(
    samples: Samples,
    batch_size: int,
    workers: int,
    device: torch.device,
    errors: dict[int, str] | None = None,
) -> Iterator[tuple[list[int], list[Tensor]]]:
    """Yield all samples in order: the readable ones' places, and their views; `errors` as `from_workers`."""
    places = range(len(samples))
    batches = [places[start : start + batch_size] for start in places[::batch_size]]
    keys: list[list[Key]] = [[(0, place) for place in batch] for batch in batches]
    for batch, views in zip(batches, from_workers(samples, keys, workers, device, errors), strict=True):
        yield [place for place in batch if place not in (errors or ())], views


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
    channels for values in 0..1. `workers` processes decode (0: this one). `errors` gets what is wrong with
    each unreadable image, by its place in the data set.

    Raises:
        DataError: for the first unreadable image, without `errors`.
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
    for index, views in in_order(samples, batch_size, workers, place, errors):
        if views:
            images = views[0].to(place, non_blocking=True).float()
            yield images.div_(255).sub_(channel_mean).div_(channel_std), labels[index]  # as timm does it
