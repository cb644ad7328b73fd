"""Images as a released encoder expects them: timm's evaluation transform, in the order of the data set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from zoo.data.cache import cannot_be_read
from zoo.data.config import EvalView
from zoo.data.dataset import ImageDataset, Split
from zoo.data.streamed import Sample, from_workers
from zoo.errors import DataError


class _Cropped(Dataset[Sample]):
    """Cropped images by their place in the data set."""

    def __init__(self, dataset: ImageDataset, view: EvalView) -> None:
        from timm.data import create_transform

        self._dataset = dataset
        self._transform = create_transform(
            input_size=(3, view.size, view.size),
            is_training=False,
            interpolation=view.interpolation,
            crop_pct=view.crop_pct,
            use_prefetcher=True,  # leaves values in 8 bits; they are normalised in batches
        )

    def __getitem__(self, index: int) -> Sample:
        try:
            image = self._dataset.image(index)
        except DataError as error:
            return str(error)
        return [torch.from_numpy(np.ascontiguousarray(self._transform(image)))]


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
    """Yield images and labels in the order of the data set.

    Pixels are those of `timm.data.create_transform(is_training=False)` with the same settings.

    Args:
        dataset: what to go through, once.
        eval_view: size, crop and interpolation.
        mean: of the three channels, for values in 0..1.
        std: likewise.
        batch_size: images at a time; the last batch may have fewer.
        device: where the images are.
        workers: processes that decode; 0: this one.
        split: which images these are, for the error.
        errors: where to enter what is wrong with each unreadable image, by its place in the data set; it is
            left out then. None: unreadable images are an error, and nothing is yielded after the first.

    Yields:
        Images `[B, 3, S, S]`, float32, on the device, and labels `[B]`, int64, on the CPU.

    Raises:
        DataError: for images that cannot be read, at the end of the pass: how many there are, and which.
    """
    place = torch.device(device)
    labels = torch.from_numpy(dataset.labels.copy())
    channel_mean = torch.tensor(mean, device=place).view(3, 1, 1)
    channel_std = torch.tensor(std, device=place).view(3, 1, 1)
    found = {} if errors is None else errors
    starts = range(0, len(dataset), batch_size)
    batches = [list(range(start, min(start + batch_size, len(dataset)))) for start in starts]
    loaded = from_workers(_Cropped(dataset, eval_view), batches, workers, place)
    for index, (views, unreadable) in zip(batches, loaded, strict=True):
        found |= {index[n]: error for n, error in unreadable.items()}
        if not views or (found and errors is None):
            continue
        readable = [each for n, each in enumerate(index) if n not in unreadable]
        images = views[0].to(place, non_blocking=True).float()
        yield images.div_(255).sub_(channel_mean).div_(channel_std), labels[readable]  # as timm does it
    if found and errors is None:
        raise DataError(f"{split} images: {cannot_be_read(dataset, found)}")
