"""Images that a release is given: of any mode, and one of them small enough for its card."""

from __future__ import annotations

from io import BytesIO

from PIL import Image

from zoo.errors import DataError
from zoo.pixels import to_rgb

MOST_BYTES = 40_000
_SIDE = 320  # pixels, at most


class ToRGB:
    """Makes gray, transparent and palette images RGB, as data sets' readers do; a class, to be pickled.

    Raises:
        DataError: for what is no PIL image, and grey of more than 8 bits or of fractions.
    """

    def __call__(self, image: Image.Image) -> Image.Image:
        if not isinstance(image, Image.Image):
            raise DataError(
                f"image: found a {type(image).__name__}, expected a PIL image: Image.open(FILE), or "
                "Image.fromarray(ARRAY) of uint8 [H, W, 3]"
            )
        try:
            return to_rgb(image)
        except ValueError as error:
            raise DataError(f"image: {error}") from None

    def __repr__(self) -> str:
        return "ToRGB()"


def shrunk(image: Image.Image) -> tuple[Image.Image, bytes]:
    """Return an image in RGB, small enough for a PNG of `MOST_BYTES`, and that PNG.

    Raises:
        DataError: as `ToRGB`.
    """
    small = ToRGB()(image).copy()
    small.thumbnail((_SIDE, _SIDE))
    while True:
        stream = BytesIO()
        small.save(stream, "PNG", optimize=True)
        if stream.tell() <= MOST_BYTES:
            return small, stream.getvalue()
        small.thumbnail((small.width * 9 // 10, small.height * 9 // 10))
