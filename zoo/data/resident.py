"""Training data decoded once: on the device where it fits, else mapped from the file that keeps it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zoo.data.bad_images import BadImages
from zoo.data.batch import Batch
from zoo.data.batch_order import Position
from zoo.data.dataset import ImageDataset
from zoo.data.decoded_file import Decoded, identify, keep_decoded, read_decoded
from zoo.data.decoding import LOG, Decoding
from zoo.data.prefetch import background, pinned
from zoo.data.tensor_views import TensorViews
from zoo.errors import DataError
from zoo.seeding import derive_seed

RESIDENT_SHARE = 0.5  # of a GPU's free memory: the rest is the model's, its activations' and the queue's
COPY_BYTES = 256 << 20


def decode_all(
    dataset: ImageDataset, image_size: int | None, *, device: torch.device, threads: int, cache: bool
) -> Decoded:
    """Return all images of a data set, decoded or from the file of an earlier run.

    Args:
        dataset: N images.
        image_size: scale each to this square; None: they must be equally large.
        device: where they are used; a file's images stay mapped where they would fill a GPU.
        threads: decode with so many; 0 decodes in this one.
        cache: keep the decoded images in a file, and take them from there if it is as it should be.

    Raises:
        DataError: for images of different sizes, none that can be read, or too little memory.
    """
    decoding: Decoding | None = None
    if cache:
        try:
            identity = identify(dataset, image_size)
        except RuntimeError as error:  # there is no home folder
            LOG.warning("decoded images are not kept: %s", error)
            identity = None
        if identity is not None:
            kept = read_decoded(identity)
            if kept is None:
                decoding = Decoding(dataset, image_size, threads)
                kept = keep_decoded(identity, decoding)
            if kept is not None:
                return _on_device(kept, device)
    decoding = decoding or Decoding(dataset, image_size, threads)
    pixels = _allocate(decoding.shape, device)
    at = 0
    for piece in decoding:
        pixels[at : at + len(piece)] = torch.from_numpy(piece)
        at += len(piece)
    return Decoded(pixels, decoding.errors)


def _on_device(kept: Decoded, device: torch.device) -> Decoded:
    """Copy to a GPU what leaves room for the training there; a CPU uses the map itself."""
    if device.type == "cpu":
        return kept
    free = torch.cuda.mem_get_info(device)[0]
    # what torch keeps for itself of an earlier training is free too
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if kept.pixels.nbytes > RESIDENT_SHARE * free:
        LOG.info(
            "%s images (%.1f GiB) stay in the file: %s has %.1f GiB free; each batch is copied there",
            f"{len(kept.pixels):,}",
            kept.pixels.nbytes / 2**30,
            device,
            free / 2**30,
        )
        return kept
    pixels = _allocate(tuple(kept.pixels.shape), device)
    step = max(1, COPY_BYTES // kept.pixels[0].nbytes)
    for target, source in zip(torch.split(pixels, step), torch.split(kept.pixels, step), strict=True):
        target.copy_(source)
    return Decoded(pixels, kept.errors)


def _allocate(shape: tuple[int, ...], device: torch.device) -> Tensor:
    try:
        return torch.empty(shape, dtype=torch.uint8, device=device)
    except RuntimeError:  # torch.OutOfMemoryError is one
        size = np.prod(shape, dtype=np.float64) / 2**30
        raise DataError(
            f"{shape[0]:,} images of {shape[3]}x{shape[2]} pixels need {size:.1f} GiB on {device}, which has "
            "not that much free: set data.image_size smaller, views.cache to true (they stay in a file), or "
            'views.backend to "stream" (decoded again and again)'
        ) from None


def replacements(count: int, errors: dict[int, str]) -> NDArray[np.int64]:
    """Return for each of `count` places the first one from it on, cyclically, that has no error `[N]`."""
    readable = np.array([index for index in range(count) if index not in errors])
    return readable[np.searchsorted(readable, np.arange(count)) % len(readable)]


class Resident:
    """Batches of data that is decoded.

    Pixels are on the training device, or on the CPU where they do not fit; then a thread gathers the next
    batches while the device computes. No step reads anything back from the device.
    """

    def __init__(
        self,
        decoded: Decoded,
        dataset: ImageDataset,
        bad: BadImages,
        views: TensorViews,
        seed: int,
        device: torch.device,
    ) -> None:
        """Take the images, their data set, the views and the seed that these draw from.

        Raises:
            DataError: when more images than `bad` allows could not be read.
        """
        bad.add({dataset.name_of(index): error for index, error in decoded.errors.items()})
        self._pixels = decoded.pixels
        self._here = decoded.pixels.device.type == device.type
        self.index_device = decoded.pixels.device
        self._source = None
        if decoded.errors:
            source = torch.from_numpy(replacements(len(dataset), decoded.errors))
            self._source = source.to(self.index_device)
        self._labels = torch.from_numpy(dataset.labels.copy()).to(device)
        self._candidates = None
        if dataset.candidates is not None:
            self._candidates = torch.from_numpy(dataset.candidates.copy()).to(device)
        self._views = views
        self._seed = seed
        self._device = device

    def stream(self, positions: Iterator[Position]) -> Generator[Batch]:
        """Yield the batches of `positions`, whose indices are on `index_device`."""
        generator = torch.Generator(self._device)
        gathered = self._gathered(positions)
        with closing(gathered if self._here else background(gathered)) as batches:
            for (step, _, _, start, total, _), index, pixels in batches:
                here = index.to(self._device, non_blocking=True)
                generator.manual_seed(derive_seed("views", self._seed, step))
                images = pixels.to(self._device, non_blocking=True)
                yield self._batch(here, images, generator, start, total)

    def _batch(
        self, index: Tensor, images: Tensor, generator: torch.Generator, start: int, total: int
    ) -> Batch:
        views = self._views(images, generator, start=start, total=total)
        candidates = None if self._candidates is None else self._candidates.index_select(0, index)
        return Batch(views, self._labels.index_select(0, index), index, candidates)

    def _readable(self, asked: Tensor) -> Tensor:
        """Return the places of the images that stand for those asked for `[B]`."""
        return asked if self._source is None else self._source.index_select(0, asked)

    def _gathered(self, positions: Iterator[Position]) -> Generator[tuple[Position, Tensor, Tensor]]:
        """Yield position, index `[B]` and pixels `[B, 3, H, W]`; these two pinned where they will travel."""
        for position in positions:
            index = self._readable(position.index)
            if self._here:
                yield position, index, self._pixels.index_select(0, index)
                continue
            shape = (len(index), *self._pixels.shape[1:])
            pixels = torch.empty(shape, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
            torch.index_select(self._pixels, 0, index, out=pixels)
            yield position, pinned(index, self._device), pixels
