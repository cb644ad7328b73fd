"""Any picture as RGB: one rule for data that are trained on and images that a release is given."""

from __future__ import annotations

from io import BytesIO

import numpy as np
from PIL import Image

from zoo.errors import DataError

EIGHT_BIT = 255


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert to RGB exactly as timm does: `image.convert("RGB")`.

    So grey becomes three equal channels, a palette its colours, transparency is dropped (not blended), CMYK
    is converted without its ICC profile, and the EXIF orientation is NOT applied: timm ignores it, and
    encoders released here are compared with and used by timm.

    Raises:
        ValueError: for grey of more than 8 bits, which `convert` clips to white, and for floating-point grey
            that is not the whole numbers of 8 bits, which it cuts off: values of 0..1 become black.
    """
    if image.mode == "RGB":
        image.load()  # Image.open is lazy: a truncated file must fail here
        return image
    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image)
        if image.mode == "F" and not np.isfinite(values).all():
            raise ValueError(f"grey values that are NaN or infinite, expected whole numbers 0..{EIGHT_BIT}")
        if values.size and (values.min() < 0 or values.max() > EIGHT_BIT):
            raise ValueError(
                f"grey values {values.min()}..{values.max()}, expected 0..{EIGHT_BIT}; "
                "save it with 8 bits a channel"
            )
        if image.mode == "F" and (values != np.rint(values)).any():
            raise ValueError(
                f"grey values {values.min():g}..{values.max():g} with fractions, expected whole numbers "
                f"0..{EIGHT_BIT}; scale it and save it with 8 bits a channel"
            )
        return Image.fromarray(values.astype(np.uint8)).convert("RGB")
    return image.convert("RGB")


def rgb(image: Image.Image) -> Image.Image:
    """Convert an image of a user's as `to_rgb` does.

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


def shrunk(image: Image.Image, side: int, max_bytes: int) -> tuple[Image.Image, bytes]:
    """Return an image in RGB that fits into `side` pixels and a PNG of `max_bytes`, and that PNG."""
    small = rgb(image).copy()
    small.thumbnail((side, side))
    while True:
        stream = BytesIO()
        small.save(stream, "PNG", optimize=True)
        if stream.tell() <= max_bytes:
            return small, stream.getvalue()
        small.thumbnail((small.width * 9 // 10, small.height * 9 // 10))
