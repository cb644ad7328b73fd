"""From stored bytes to an RGB image, or one clear error."""

from __future__ import annotations

import io
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image, ImageOps

from zoo.errors import DataError
from zoo.pixels import to_rgb

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000")
"""Raster formats alone are opened: Pillow gives PostScript to another program."""


def read_image(source: Path | bytes, name: str) -> Image.Image:
    """Read a file or encoded bytes as RGB.

    Raises:
        DataError: naming the image and why it cannot be read.
    """
    with _named(name), _opened(source) as image:
        return to_rgb(image)


def read_size(source: Path | bytes, name: str) -> tuple[int, int]:
    """Read width and height of a file or of encoded bytes, without decoding it.

    Raises:
        DataError: naming the image and why it cannot be read.
    """
    with _named(name), _opened(source) as image:
        return image.size


def _opened(source: Path | bytes) -> Image.Image:
    if isinstance(source, bytes):
        return Image.open(io.BytesIO(source), formats=FORMATS)
    if not stat.S_ISREG(source.stat().st_mode):  # reading a pipe or a device may never end
        raise ValueError("found no regular file")
    return Image.open(source, formats=FORMATS)


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Say of which image an error is."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f'image "{name}": no such file') from None
    except Exception as error:  # broken files make Pillow's plugins raise nearly every kind of exception
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f'image "{name}" cannot be read: {reason}') from None


def scaled_to_square(image: Image.Image, size: int) -> Image.Image:
    """Return the central square of an image, scaled to `size` x `size` pixels (bicubic, antialiased)."""
    if image.size == (size, size):
        return image
    return ImageOps.fit(image, (size, size), Image.Resampling.BICUBIC)
