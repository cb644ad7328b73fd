"""Stored images of every kind: read as timm reads them, or refused by name."""

import io
import math
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from tests.data_fixtures import photo
from zoo.data.decode import read_image, scaled_to_square
from zoo.errors import DataError

SIZE = 12


def encoded(image, kind, **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def with_alpha():
    image = photo(SIZE, SIZE, 1).convert("RGBA")
    image.putalpha(Image.linear_gradient("L").resize((SIZE, SIZE)))
    return image


def rotated_by_exif(mode="RGB"):
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: rotate by 90 degrees
    return encoded(photo(SIZE, 2 * SIZE, 2).convert(mode), "JPEG", exif=exif)


KINDS = {
    "rgb": encoded(photo(SIZE, SIZE, 0), "PNG"),
    "grey": encoded(photo(SIZE, SIZE, 0).convert("L"), "PNG"),
    "grey-alpha": encoded(photo(SIZE, SIZE, 0).convert("LA"), "PNG"),
    "1-bit": encoded(photo(SIZE, SIZE, 0).convert("1"), "PNG"),
    "alpha": encoded(with_alpha(), "PNG"),
    "palette": encoded(photo(SIZE, SIZE, 3).quantize(16), "PNG", transparency=0),
    "cmyk": encoded(photo(SIZE, SIZE, 0).convert("CMYK"), "JPEG"),
    "exif": rotated_by_exif(),
    "grey-exif": rotated_by_exif("L"),
    "gif": encoded(photo(SIZE, SIZE, 0), "GIF"),
    "webp": encoded(photo(SIZE, SIZE, 0), "WEBP"),
}


@pytest.mark.filterwarnings("ignore:Palette images")
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_read_as_timm_reads_it(kind):
    data = KINDS[kind]
    expected = Image.open(io.BytesIO(data)).convert("RGB")  # timm.data.ImageDataset, input_img_mode="RGB"
    image = read_image(data, "x")
    assert image.mode == "RGB"
    assert np.array_equal(np.asarray(image), np.asarray(expected))


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    "values",
    [[[0, 255, 256, 65535]], [[0.0, 0.9]], [[0.0, NAN]], [[0.0, -INF]], [[0.0, 256.0]]],
)
def test_grey_that_8_bits_do_not_hold_is_refused_because_it_would_be_clipped(values):
    kind, dtype = ("PNG", np.uint16) if isinstance(values[0][0], int) else ("TIFF", np.float32)
    data = encoded(Image.fromarray(np.array(values, dtype=dtype)), kind)
    with pytest.raises(DataError, match=r'"x.png" cannot be read: grey values .*expected whole numbers'):
        read_image(data, "x.png")


@pytest.mark.parametrize(("kind", "dtype"), [("PNG", np.uint16), ("TIFF", np.float32)])
def test_grey_of_whole_numbers_of_8_bits_is_read(kind, dtype):
    pixels = np.array([[0, 255], [7, 128]], dtype=dtype)
    read = read_image(encoded(Image.fromarray(pixels), kind), "x")
    assert np.array_equal(np.asarray(read)[..., 0], pixels)


def bomb():
    """A PNG that claims 60,000 x 60,000 pixels."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


WHOLE_PNG, WHOLE_JPEG = encoded(photo(64, 64, 0), "PNG"), encoded(photo(64, 64, 0), "JPEG")


@pytest.mark.parametrize(
    "data",
    [
        WHOLE_PNG[: len(WHOLE_PNG) // 2],
        WHOLE_JPEG[: len(WHOLE_JPEG) // 2],
        WHOLE_PNG[:20],
        b"text",
        b"",
        bomb(),
    ],
    ids=["half-png", "half-jpeg", "no-header", "text", "empty", "bomb"],
)
def test_unreadable_bytes_give_one_line_that_names_the_image(data):
    with pytest.raises(DataError, match=r'^image "a/b.png" cannot be read: \S') as caught:
        read_image(data, "a/b.png")
    assert "\n" not in str(caught.value)


def test_missing_file_is_called_missing(tmp_path):
    with pytest.raises(DataError, match=r'"b.png": no such file'):
        read_image(tmp_path / "b.png", "b.png")


def test_scaling_to_a_square_keeps_the_aspect_ratio():
    pixels = np.zeros((20, 40, 3), dtype=np.uint8)
    pixels[:, 10:30] = 255  # exactly the central square
    assert np.asarray(scaled_to_square(Image.fromarray(pixels), 10)).min() > 200
    image = photo(10, 10, 0)
    assert scaled_to_square(image, 10) is image
