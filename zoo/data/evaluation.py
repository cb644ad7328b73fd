"""Images as a released encoder expects them: timm's evaluation transform, in the order of the data set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from zoo.data.cache import cannot_be_read, find_decoded
from zoo.data.config import EvalView
from zoo.data.dataset import ImageDataset, Split
from zoo.data.streamed import outlive_first_signal, processes
from zoo.errors import DataError

_Sample = tuple[int, Tensor | str]
"""Place in the data set, and the cropped image `[3, S, S]`, uint8, or the message of the error."""


class _Pixels(Dataset[_Sample]):
    """Cropped images."""

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
        self.decoded = find_decoded(dataset, None) if cache and self._unchanged else None
        if self.decoded is not None and tuple(self.decoded.shape[2:]) != self._unchanged:
            self.decoded = None

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> _Sample:
        if self.decoded is not None:
            return index, self.decoded[index]
        try:
            image = self._dataset.image(index)
        except DataError as error:
            return index, str(error)
        if image.size == self._unchanged:
            return index, torch.from_numpy(np.array(image)).permute(2, 0, 1)
        return index, torch.from_numpy(np.ascontiguousarray(self._transform(image)))


def _collate(samples: list[_Sample]) -> tuple[Tensor, list[int], dict[int, str]]:
    """Return images, their places, and errors by place.

    The batch is one tensor: each that a worker sends costs an open file, of which a process has 1,024.
    """
    images = {place: sample for place, sample in samples if not isinstance(sample, str)}
    errors = {place: sample for place, sample in samples if isinstance(sample, str)}
    return torch.stack(list(images.values())) if images else torch.empty(0), list(images), errors


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
    cache: bool = False,
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
        cache: take the pixels from the file where a training with `views.cache` has kept them, if there is
            one and the view does not change them: the same images without decoding them again.
        errors: where to enter what is wrong with each unreadable image, by its place in the data set; it is
            left out then. None: unreadable images are an error, and nothing is yielded after the first.

    Yields:
        Images `[B, 3, S, S]`, float32, on the device, and labels `[B]`, int64, on the CPU.

    Raises:
        DataError: for images that cannot be read, at the end of the pass: how many there are, and which.
    """
    samples = _Pixels(dataset, eval_view, cache)
    loader: DataLoader[_Sample] = DataLoader(
        samples,
        batch_size=batch_size,
        num_workers=0 if samples.decoded is not None else processes(workers),
        collate_fn=_collate,
        pin_memory=torch.device(device).type == "cuda",  # else the copy would wait for the encoder
        worker_init_fn=outlive_first_signal,
        generator=torch.Generator(),  # else a loader draws from, and so moves, the global one
    )
    labels = torch.from_numpy(dataset.labels.copy())
    channel_mean = torch.tensor(mean, device=device).view(3, 1, 1)
    channel_std = torch.tensor(std, device=device).view(3, 1, 1)
    found = {} if errors is None else errors
    for pixels, readable, unreadable in loader:
        found |= unreadable
        if not readable or (found and errors is None):
            continue
        images = pixels.to(device, non_blocking=True).float()
        yield images.div_(255).sub_(channel_mean).div_(channel_std), labels[readable]  # as timm does it
    if found and errors is None:
        raise DataError(f"{split} images: {cannot_be_read(dataset, found)}")
