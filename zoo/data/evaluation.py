"""Images as a released encoder expects them: timm's evaluation transform, in the order of the data set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from zoo.data.bad_images import too_many
from zoo.data.cache import Decoded, find_decoded
from zoo.data.config import EvalView
from zoo.data.dataset import ImageDataset, Split
from zoo.data.streamed import outlive_first_signal, processes
from zoo.errors import DataError


class _Pixels(Dataset[Tensor | str]):
    """Cropped images `[3, S, S]`, uint8, or the message of the error."""

    def __init__(self, dataset: ImageDataset, view: EvalView, cache: bool) -> None:
        """Take what to crop; `cache`: from the file of decoded images, where the view would change none."""
        from timm.data import create_transform

        self._dataset = dataset
        self._unchanged = (view.size, view.size) if view.crop_pct == 1 else None
        self._transform = create_transform(
            input_size=(3, view.size, view.size),
            is_training=False,
            interpolation=view.interpolation,
            crop_pct=view.crop_pct,
            use_prefetcher=True,  # leaves values in 8 bits; they are normalised in batches
        )
        decoded = find_decoded(dataset, None) if cache and self._unchanged else None
        fits = decoded is not None and tuple(decoded.pixels.shape[2:]) == self._unchanged
        self.decoded: Decoded | None = decoded if fits else None

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Tensor | str:
        if self.decoded is not None:
            return self.decoded.errors.get(index) or self.decoded.pixels[index]
        try:
            image = self._dataset.image(index)
        except DataError as error:
            return str(error)
        if image.size == self._unchanged:
            return torch.from_numpy(np.array(image)).permute(2, 0, 1)
        return torch.from_numpy(np.ascontiguousarray(self._transform(image)))


class _Samples(NamedTuple):
    """A batch as one tensor: each that a worker sends costs an open file, of which a process has 1,024."""

    pixels: Tensor
    readable: list[int]
    errors: dict[int, str]


def _collate(samples: list[Tensor | str]) -> _Samples:
    images = {i: sample for i, sample in enumerate(samples) if not isinstance(sample, str)}
    errors = {i: sample for i, sample in enumerate(samples) if isinstance(sample, str)}
    return _Samples(torch.stack(list(images.values())) if images else torch.empty(0), list(images), errors)


def eval_images(
    dataset: ImageDataset,
    eval_view: EvalView,
    mean: Sequence[float],
    std: Sequence[float],
    *,
    batch_size: int,
    device: torch.device | str,
    workers: int = 0,
    max_bad_images: int = 0,
    split: Split = "test",
    cache: bool = False,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield images and labels in the order of the data set; unreadable ones are left out, up to a limit.

    Args:
        dataset: what to go through, once.
        eval_view: size, crop and interpolation.
        mean: of the three channels, for values in 0..1.
        std: likewise.
        batch_size: images at a time; the last batch may have fewer.
        device: where the images are.
        workers: processes that decode; 0: this one.
        max_bad_images: the limit. 0 for what is measured on, where leaving one out would falsify the figure;
            the training's limit for what a probe is fitted on.
        split: which images these are, for the error.
        cache: take the pixels from the file where a training with `views.cache` has kept them, if there is
            one and the view does not change them: the same images without decoding them again.

    Yields:
        Images `[B, 3, S, S]`, float32, on the device, and labels `[B]`, int64, on the CPU.

    Raises:
        DataError: when more images than that cannot be read. It comes at the end of the pass, so that it can
            say how many there are, and which; nothing is yielded once the limit is passed.
    """
    labels = torch.from_numpy(dataset.labels.copy())
    errors: dict[int, str] = {}
    for images, places in placed_images(
        dataset,
        eval_view,
        mean,
        std,
        errors,
        batch_size=batch_size,
        device=device,
        workers=workers,
        max_bad_images=max_bad_images,
        cache=cache,
    ):
        yield images, labels[places]
    if len(errors) > max_bad_images:
        raise DataError(too_many(dataset, errors, split, max_bad_images))


def placed_images(
    dataset: ImageDataset,
    eval_view: EvalView,
    mean: Sequence[float],
    std: Sequence[float],
    errors: dict[int, str],
    *,
    batch_size: int,
    device: torch.device | str,
    workers: int = 0,
    max_bad_images: int = 0,
    cache: bool = False,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield images and their places in the data set; the caller judges the errors.

    Pixels are those of `timm.data.create_transform(is_training=False)` with the same settings. The arguments
    are those of `eval_images`, and `errors`: what is wrong with each unreadable image is entered there by its
    place. Nothing is yielded once there are more than `max_bad_images`.

    Yields:
        Images `[B, 3, S, S]`, float32, on the device, and places `[B]`, int64, on the CPU.
    """
    images = _Pixels(dataset, eval_view, cache)
    loader: DataLoader[Tensor | str] = DataLoader(
        images,
        batch_size=batch_size,
        num_workers=0 if images.decoded else processes(workers),
        collate_fn=_collate,
        worker_init_fn=outlive_first_signal,
        generator=torch.Generator(),  # else a loader draws from, and so moves, the global one
    )
    channel_mean = torch.tensor(mean, device=device).view(3, 1, 1)
    channel_std = torch.tensor(std, device=device).view(3, 1, 1)
    first = 0
    for samples in loader:
        errors |= {first + i: error for i, error in samples.errors.items()}
        places = torch.tensor([first + i for i in samples.readable])
        first += batch_size
        if len(errors) > max_bad_images or not samples.readable:
            continue
        pixels = samples.pixels
        if torch.device(device).type == "cuda":
            pixels = pixels.pin_memory()  # else the copy would wait for the encoder
        pixels = pixels.to(device, non_blocking=True).float()
        yield pixels.div_(255).sub_(channel_mean).div_(channel_std), places  # timm's operations, in its order
