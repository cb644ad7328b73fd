"""Stored images of every kind, read as timm reads them or refused by name, and kept when decoded."""

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data_fixtures import digits, encoded, list_dataset, photo
from zoo.data import DataConfig, open_dataset
from zoo.data import dataset as datasets
from zoo.data.config import ListFiles
from zoo.data.decode import decode_all, open_image, read_image, scaled_to_square
from zoo.errors import DataError

PHOTO = photo(12, 12, 0)
EXIF = Image.Exif()
EXIF[0x0112] = 6  # orientation: rotate by 90 degrees

KINDS = {
    "grey-alpha": encoded(PHOTO.convert("LA")),
    "1-bit": encoded(PHOTO.convert("1")),
    "alpha": encoded(Image.merge("RGBA", [*PHOTO.split(), PHOTO.getchannel("R")])),
    "palette": encoded(PHOTO.quantize(16), transparency=0),
    "cmyk": encoded(PHOTO.convert("CMYK"), "JPEG"),
    "exif": encoded(photo(12, 24, 2), "JPEG", exif=EXIF),
    **{kind: encoded(PHOTO, kind) for kind in ("GIF", "WEBP", "BMP", "TIFF", "PPM", "JPEG2000")},
}


@pytest.mark.filterwarnings("ignore:Palette images")
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_read_as_timm_reads_it(kind):
    expected = Image.open(io.BytesIO(KINDS[kind])).convert("RGB")  # timm.data.ImageDataset's
    image = read_image(KINDS[kind], "x")
    assert image.mode == "RGB" and np.array_equal(np.asarray(image), np.asarray(expected))


@pytest.mark.parametrize(("kind", "dtype"), [("PNG", np.uint16), ("TIFF", np.float32)])
def test_grey_of_whole_numbers_of_8_bits_is_read_and_what_would_be_clipped_is_refused(kind, dtype):
    pixels = np.array([[0, 255], [7, 128]], dtype=dtype)
    read = read_image(encoded(Image.fromarray(pixels), kind), "x")
    assert np.array_equal(np.asarray(read)[..., 0], pixels)
    for value in [256] if kind == "PNG" else [0.9, np.nan, -np.inf, 256.0]:
        pixels[1, 1] = value
        with pytest.raises(DataError, match=r'"x.png" cannot be read: grey values .*expected whole numbers'):
            read_image(encoded(Image.fromarray(pixels), kind), "x.png")


def bomb():
    """A PNG that claims 60,000 x 60,000 pixels."""
    data = bytearray(encoded(PHOTO))
    data[16:24] = struct.pack(">II", 60_000, 60_000)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    return bytes(data)


HALF_PNG, HALF_JPEG = (encoded(photo(64, 64, 0), kind)[:700] for kind in ("PNG", "JPEG"))


@pytest.mark.parametrize("data", [HALF_PNG, HALF_JPEG, b"", bomb()], ids=["png", "jpeg", "empty", "bomb"])
def test_unreadable_bytes_give_one_line_that_names_the_image(data):
    with pytest.raises(DataError, match=r'^image "a/b.png" cannot be read: \S[^\n]*$'):
        read_image(data, "a/b.png")


def test_pipes_are_not_waited_for_and_postscript_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    PHOTO.save(tmp_path / "x.eps")
    for name, message in (
        ("pipe", "found no regular file"),
        ("x.eps", "cannot identify image file"),  # Pillow would start Ghostscript
    ):
        with pytest.raises(DataError, match=f'image "x" cannot be read: {message}'):
            read_image(tmp_path / name, "x")
    with pytest.raises(DataError, match=r'"b.png": no such file'):
        read_image(tmp_path / "b.png", "b.png")


def test_scaling_to_a_square_keeps_the_aspect_ratio():
    pixels = np.zeros((20, 40, 3), dtype=np.uint8)
    pixels[:, 10:30] = 255  # exactly the central square
    assert np.asarray(scaled_to_square(Image.fromarray(pixels), 10)).min() > 200
    assert scaled_to_square(PHOTO, 12) is PHOTO


# --- decoded images kept in a file ------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "zoo" / "decoded"


@pytest.fixture
def data(tmp_path, home):
    return list_dataset(tmp_path, [photo(12, 10, seed) for seed in range(7)])


def reopened(tmp_path):
    return open_dataset(DataConfig(source=ListFiles(train="all.txt", test="all.txt")), "train", tmp_path)


def right(dataset, size=None):
    images = [scaled_to_square(dataset.image(i), size) for i in range(len(dataset))]
    expected = np.stack([np.asarray(image) for image in images]).transpose(0, 3, 1, 2)
    return np.array_equal(decode_all(dataset, size, cache=True), expected)


def files(home):
    """What is kept, without locks; nothing temporary is left."""
    return sorted(file for file in home.iterdir() if file.suffix != ".lock")


@pytest.mark.parametrize("size", [None, 6])
def test_a_second_run_maps_the_file_of_the_first(data, home, tmp_path, monkeypatch, size):
    decode_all(digits(), 8, cache=True)
    first = decode_all(data, size, cache=False)
    assert not home.exists(), "only what was decoded is kept, and only on demand"
    assert right(data, size)
    read, names = read_image, []
    monkeypatch.setattr(datasets, "read_image", lambda *given: (names.append(given[1]), read(*given))[1])
    pixels = decode_all(reopened(tmp_path), size, cache=True)
    assert {*names} <= {"0.png"}, "images were decoded beside the first, which tells the size"
    assert np.array_equal(pixels, first)
    assert str(*files(home)) in Path("/proc/self/maps").read_text()
    pixels[0] = 0  # a copy of the page, not the file
    assert np.array_equal(decode_all(reopened(tmp_path), size, cache=True), first)


def test_a_file_cut_short_is_made_anew(data, home):
    assert right(data)
    (file,) = files(home)
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    assert right(data)
    assert files(home) == [file] and file.read_bytes() == content


@pytest.mark.parametrize("change", ["content with the time of before", "time", "pillow"])
def test_a_file_of_other_images_or_another_decoder_is_not_used(data, home, tmp_path, monkeypatch, change):
    image = tmp_path / "3.png"
    image.write_bytes(image.read_bytes().ljust(2000, b"\0"))
    before = image.stat()
    assert right(data)
    if change == "time":
        os.utime(image, ns=(1, 1))
    elif change == "pillow":
        monkeypatch.setattr("PIL.__version__", "0.1")
    else:
        image.write_bytes(encoded(photo(12, 10, 99)).ljust(2000, b"\0"))
        os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert right(reopened(tmp_path)) and len(files(home)) == 2
    assert right(data.subset([0, 1])) and right(data.subset([1, 0])) and len(files(home)) == 4


def test_an_interrupted_decoding_leaves_nothing(data, home, monkeypatch):
    read, seen = datasets.read_image, iter(range(9))

    def interrupted(*given):
        if next(seen) == 4:
            raise KeyboardInterrupt
        return read(*given)

    monkeypatch.setattr(datasets, "read_image", interrupted)
    with pytest.raises(KeyboardInterrupt):
        decode_all(data, None, cache=True)
    assert files(home) == []


def test_crops_leave_a_programs_own_jpeg_as_large_as_it_was(tmp_path: Path) -> None:
    Image.new("RGB", (640, 480)).save(tmp_path / "a.jpg")
    own = Image.open(tmp_path / "a.jpg")
    with open_image(own, "own") as image:
        image.draft("RGB", (80, 60))
    assert own.size == (640, 480)
