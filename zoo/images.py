"""What every room knows of images: pixels as RGB, lists of images by content, and names of classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from zoo.errors import DataError, is_printable

EIGHT_BIT = 255
LONGEST_NAME = 10_000
CLASS_NAMES = f"words in UTF-8 without control characters, at most {LONGEST_NAME:,} characters long"
"""What the name of a class has to be, for an error."""


class ImageList(NamedTuple):
    """The images of a split, in order.

    Attributes:
        ids: what `zoo.data.dataset.content_ids` gives for each image `[N]`, int64.
        sha256: hash of names and labels in the copy that was listed, see `ImageDataset.describe`.
    """

    ids: NDArray[np.int64]
    sha256: str


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert to RGB exactly as timm does: `image.convert("RGB")`.

    So grey becomes three equal channels, a palette its colours, transparency is dropped (not blended), CMYK
    is converted without its ICC profile, and the EXIF orientation is NOT applied.

    Raises:
        ValueError: for grey that is not the whole numbers of 8 bits, which `convert` clips to white or black.
    """
    if image.mode == "RGB":
        image.load()  # Image.open is lazy: a truncated file must fail here
        return image
    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image)
        with np.errstate(invalid="ignore"):  # NaN
            grey = values.astype(np.uint8)
        if not np.array_equal(grey, values):
            raise ValueError(
                f"grey values {values.min()}..{values.max()}, expected whole numbers 0..{EIGHT_BIT}; "
                "scale it and save it with 8 bits a channel"
            )
        return Image.fromarray(grey).convert("RGB")
    return image.convert("RGB")


def rgb(image: Image.Image) -> Image.Image:
    """Convert a user's image as `to_rgb` does.

    Raises:
        DataError: for what is no PIL image, and grey of more than 8 bits or of fractions.
    """
    if not isinstance(image, Image.Image):
        raise DataError(
            f"image: found a {type(image).__name__}, expected a PIL image: Image.open(FILE), or "
            "Image.fromarray(ARRAY) of uint8 [H, W, 3]"
        )
    try:
        return to_rgb(image)
    except ValueError as error:
        raise DataError(f"image: {error}") from None


def invalid_class_name(names: Sequence[object]) -> int | None:
    """Return the index of the first name that no card or terminal can show; None when all can be shown."""
    for index, name in enumerate(names):
        if not isinstance(name, str) or not name.strip() or len(name) > LONGEST_NAME:
            return index
        if not is_printable(name):
            return index
    return None
