"""Training data decoded once into one tensor on the device."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from zoo.data.bad_images import BadImages
from zoo.data.dataset import ImageDataset
from zoo.data.decode import scaled_to_square
from zoo.errors import DataError

CHUNK = 1024  # images between two copies to the device


def decode_all(
    dataset: ImageDataset, image_size: int | None, bad: BadImages, device: torch.device, threads: int
) -> tuple[Tensor, NDArray[np.int64]]:
    """Decode a data set to one uint8 tensor on `device`.

    Args:
        dataset: N images.
        image_size: scale each to this square; None: they must be equally large.
        bad: takes the unreadable images, all of them at once.
        device: where the tensor is.
        threads: decode with so many; 0 decodes in this one.

    Returns:
        Pixels `[N, 3, H, W]`, and for each place the position of the image that is there `[N]`: the next
        readable one where the image itself is not.

    Raises:
        DataError: for too many unreadable images, different sizes, or too little memory.
    """
    pixels: Tensor | None = None
    example = ""
    errors: dict[int, str] = {}
    for start, decoded in _decoded(dataset, image_size, threads):
        readable = {start + i: image for i, image in enumerate(decoded) if isinstance(image, Image.Image)}
        errors.update(
            {start + i: str(error) for i, error in enumerate(decoded) if isinstance(error, DataError)}
        )
        if not readable:
            continue
        if pixels is None:
            first = next(iter(readable))
            pixels, example = _allocate(len(dataset), readable[first], device), dataset.name_of(first)
        for index, image in readable.items():
            if (image.height, image.width) != tuple(pixels.shape[2:]):
                raise DataError(
                    f'image "{dataset.name_of(index)}" has {image.width}x{image.height} pixels, "{example}" '
                    f"has {pixels.shape[3]}x{pixels.shape[2]}; the tensor backend needs one size: set "
                    'data.image_size to scale them all, or views.backend to "torchvision"'
                )
        chunk = torch.from_numpy(np.stack([np.asarray(image) for image in readable.values()]))
        where = torch.tensor(list(readable), device=device)
        pixels[where] = chunk.to(device).permute(0, 3, 1, 2)
    bad.add({dataset.name_of(index): error for index, error in errors.items()})
    if pixels is None:
        raise DataError(f"none of the {len(dataset)} images can be read; the first: {errors[0]}")
    source = np.arange(len(dataset))
    for index in errors:
        source[index] = next(
            j % len(dataset) for j in range(index + 1, index + len(dataset)) if j % len(dataset) not in errors
        )
        pixels[index] = pixels[int(source[index])]
    return pixels, source


def _decoded(
    dataset: ImageDataset, image_size: int | None, threads: int
) -> Iterator[tuple[int, list[Image.Image | DataError]]]:
    """Yield the position of the first image of each chunk, and its images or what is wrong with them."""

    def decode(index: int) -> Image.Image | DataError:
        try:
            image = dataset.image(index)
        except DataError as error:
            return error
        return image if image_size is None else scaled_to_square(image, image_size)

    chunks = [range(start, min(start + CHUNK, len(dataset))) for start in range(0, len(dataset), CHUNK)]
    if threads == 0:
        yield from ((chunk[0], [decode(index) for index in chunk]) for chunk in chunks)
        return
    with ThreadPoolExecutor(threads) as pool:  # Pillow decodes without holding the interpreter's lock
        yield from ((chunk[0], list(pool.map(decode, chunk))) for chunk in chunks)


def _allocate(count: int, image: Image.Image, device: torch.device) -> Tensor:
    shape = (count, 3, image.height, image.width)
    try:
        return torch.empty(shape, dtype=torch.uint8, device=device)
    except RuntimeError:  # torch.OutOfMemoryError is one
        size = np.prod(shape, dtype=np.float64) / 2**30
        raise DataError(
            f"{count:,} images of {image.width}x{image.height} pixels need {size:.1f} GiB on {device}, which "
            'has not that much free: set data.image_size smaller, or views.backend to "torchvision"'
        ) from None
