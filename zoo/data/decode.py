"""From a file, encoded bytes or an array to an RGB image, or one clear error."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps
from rich.console import Console
from rich.progress import Progress

from zoo.config import plain_kind
from zoo.errors import DataError
from zoo.images import EIGHT_BIT, to_rgb
from zoo.launch import neighbours

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000")
"""Raster formats alone are opened: Pillow gives PostScript to another program."""
_IMAGE = "a PIL image, a path, a uint8 array [H, W] or [H, W, 3], or a tensor [C, H, W], floats in 0..1"


def read_image(source: Any, name: str) -> Image.Image:
    """Return an image as RGB; raise DataError naming it and why it cannot be read.

    `source` is a `Path`, encoded bytes, a PIL image, a uint8 array `[H, W]` or `[H, W, 3]`, or a tensor
    `[H, W]` or `[C, H, W]`, uint8 or floats in 0..1.
    """
    with _named(name), _opened(source) as image:
        if 0 in image.size:
            raise ValueError(f"found {image.width} x {image.height} pixels")
        return to_rgb(image)


def read_size(source: Any, name: str) -> tuple[int, int]:
    """Return width and height of an image, without decoding a file; otherwise as `read_image`."""
    with _named(name), _opened(source) as image:
        return image.size


@contextmanager
def _opened(source: Any) -> Iterator[Image.Image]:
    if isinstance(source, Path) and source.exists() and not source.is_file():
        raise ValueError("found no regular file")  # reading a pipe or a device may never end
    if isinstance(source, Path | bytes):
        with Image.open(
            io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS
        ) as image:
            yield image
    else:
        yield source if isinstance(source, Image.Image) else Image.fromarray(_pixels(source))


def _pixels(item: Any) -> NDArray[np.uint8]:
    """Return the pixels `[H, W]` or `[H, W, 3]` of an array or tensor."""
    array = item
    torch = sys.modules.get("torch")  # whoever has a tensor has imported it
    if torch is not None and isinstance(item, torch.Tensor):
        array = item.detach().movedim(0, -1) if item.ndim == 3 else item.detach()
        if array.is_floating_point():
            low, high = float(array.min()), float(array.max())
            if not (low >= 0 and high <= 1):
                raise ValueError(f"found floats in {low:.3g}..{high:.3g}, expected 0..1, before Normalize")
            array = (array.float() * EIGHT_BIT).round().to(torch.uint8)
        array = array.cpu().numpy()
    if not isinstance(array, np.ndarray):
        raise ValueError(f"found {plain_kind(item)}, expected {_IMAGE}")
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.dtype != np.uint8 or array.shape[2:] not in ((), (3,)) or array.ndim < 2:
        raise ValueError(f"found {item.dtype} of {[*item.shape]}, expected {_IMAGE}")
    return np.ascontiguousarray(array)


@contextmanager
def _named(name: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise DataError(f'image "{name}": no such file') from None
    except Exception as error:  # broken files make Pillow's plugins raise nearly every kind of exception
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f'image "{name}" cannot be read: {reason}') from None


def scaled_to_square(image: Image.Image, size: int | None) -> Image.Image:
    """Return the central square, scaled to `size` x `size` pixels (bicubic, antialiased); None: as it is."""
    if size is None or image.size == (size, size):
        return image
    return ImageOps.fit(image, (size, size), Image.Resampling.BICUBIC)


def own_cores() -> int:
    """Return this process's share of the cores of its node, at least 1."""
    share = (os.cpu_count() or 1) // neighbours()
    if hasattr(os, "sched_getaffinity"):  # a launcher that binds each rank to some has divided them already
        share = min(share, len(os.sched_getaffinity(0)))
    return max(1, share)


@contextmanager
def progress(total: int, doing: str) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal, and yield what is called with each number of images done."""
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        yield partial(bar.advance, bar.add_task(doing, total=total))
