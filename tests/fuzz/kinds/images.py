"""Images: of a tree of folders, each a class; damaged, bombs, of odd modes, and what is no image."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image, PngImagePlugin

from tests.fuzz import mutate
from tests.fuzz.case import Case, WrongResultError
from zoo.data import DataConfig, open_dataset
from zoo.data.config import Folder
from zoo.data.decode import scaled_to_square

_SIZE = (19, 13)


@cache
def seeds() -> dict[str, bytes]:
    """Valid images of many formats and modes, by name."""
    random = np.random.default_rng(0)
    rgb = Image.fromarray(random.integers(0, 255, (*_SIZE[::-1], 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010E] = "a description"
    made: dict[str, tuple[Any, dict[str, Any]]] = {
        "a.jpg": (rgb, {"quality": 80, "exif": exif}),
        "progressive.jpg": (rgb, {"progressive": True}),
        "cmyk.jpg": (rgb.convert("CMYK"), {}),
        "grey.jpg": (rgb.convert("L"), {}),
        "a.png": (rgb, {"exif": exif}),
        "palette.png": (rgb.convert("P"), {"transparency": 3}),
        "alpha.png": (rgb.convert("RGBA"), {}),
        "one.png": (rgb.convert("1"), {}),
        "sixteen.png": (Image.fromarray(random.integers(0, 255, _SIZE, dtype=np.uint16)), {}),
        "a.gif": (rgb.convert("P"), {"save_all": True, "append_images": [rgb.convert("P")]}),
        "a.tif": (rgb, {}),
        "lzw.tif": (rgb, {"compression": "tiff_lzw"}),
        "float.tif": (Image.fromarray(random.random(_SIZE, dtype=np.float32)), {}),
        "a.webp": (rgb, {"exif": exif.tobytes()}),
        "lossless.webp": (rgb, {"lossless": True}),
        "a.bmp": (rgb, {}),
        "a.ppm": (rgb, {}),
    }
    encoded = {}
    for name, (image, options) in made.items():
        stream = io.BytesIO()
        forms = {"jpg": "JPEG", "tif": "TIFF", "ppm": "PPM"}
        suffix = name.rpartition(".")[2]
        image.save(stream, forms.get(suffix, suffix.upper()), **options)
        encoded[name] = stream.getvalue()
    return encoded


def images(random: Random, folder: Path) -> Case:
    """One odd file in a tree of two classes."""
    good = seeds()["a.png"]
    for place in ("train/a/1.png", "train/b/1.png", "val/a/1.png", "val/b/1.png"):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_bytes(good)
    name, made = odd(random)
    file = folder / random.choice(("train/a", "val/b")) / name
    if isinstance(made, bytes):
        file.write_bytes(made)
        note = f"{file.name} of {len(made)} bytes"
    else:
        note = made(file)

    def read(split: str) -> None:
        dataset = open_dataset(DataConfig(source=Folder()), split, folder)  # type: ignore[arg-type]
        dataset.describe()
        for index in range(len(dataset)):
            image = dataset.image(index)
            if image.mode != "RGB" or image.size != dataset.size_of(index):
                raise WrongResultError(f"{image} of {dataset.name_of(index)}, size {dataset.size_of(index)}")
            scaled_to_square(image, 32)

    return Case(
        {split: lambda split=split: read(split) for split in ("train", "test")},  # type: ignore[misc]
        ('image "', "folder"),
        note,
    )


def odd(random: Random) -> tuple[str, bytes | Callable[[Path], str]]:
    """Return a file's name and its content, or what makes it."""
    way = random.randrange(20)
    name = random.choice(tuple(seeds()))
    if way == 0:
        return random.choice((("bomb.png", _png_bomb(random)), ("bomb.gif", _gif_bomb(random))))
    if way == 1:
        return "header.png", _resized(random, seeds()["a.png"])
    if way == 2:
        other = random.choice(tuple(seeds()))
        return f"x{Path(other).suffix}", mutate.octets(random, seeds()[name])
    if way == 3:
        return f"x{Path(name).suffix}", random.choice(
            (b"", b"\0" * 100, b"GIF89a", b"\xff\xd8\xff", b"II*\0", b"P5\n")
        )
    if way == 4:
        return random.choice((("text.png", _text_bomb()), ("a.jpg", _exif(random)), ("x.ppm", _ppm(random))))
    if way == 5:
        return "z.png", random.choice((_pipe, _link, _hole))
    if way == 6:
        names = (
            "\x1b[2J.png",
            "a\nb.png",
            "é\u202egnp.png",
            "a" * 240 + ".png",
            "x.PNG",
            "\udcff.png",
            " .png",
            "-.png",
        )
        return random.choice(names), mutate.octets(random, seeds()["a.png"])
    return f"x{Path(name).suffix}", mutate.octets(random, seeds()[name], tuple(seeds().values()))


def _pipe(file: Path) -> str:
    os.mkfifo(file)
    return "a pipe"


def _link(file: Path) -> str:
    file.symlink_to("/dev/zero")
    return "a link to /dev/zero"


def _hole(file: Path) -> str:
    file.write_bytes(seeds()["a.jpg"])
    with file.open("r+b") as stream:
        stream.truncate(50 << 30)
    return "an image with 50 GiB of zeros after it"


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _png_bomb(random: Random) -> bytes:
    """A few kilobytes that decode to hundreds of megabytes or more."""
    width = height = random.choice((9_000, 11_000, 16_000, 60_000))
    depth, color, size = random.choice(((8, 2, 3), (8, 6, 4), (16, 0, 2), (1, 0, 1), (8, 3, 1)))
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    packer = zlib.compressobj(1)
    row = bytes(1 + (width * size if depth >= 8 else width // 8))
    rows = min(height, 400)
    data = b"".join([packer.compress(row) for _ in range(rows)] + [packer.flush()])
    palette = _chunk(b"PLTE", bytes(6)) if color == 3 else b""
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", header)
        + palette
        + _chunk(b"IDAT", data)
        + _chunk(b"IEND", b"")
    )


def _gif_bomb(random: Random) -> bytes:
    side = random.choice((13_000, 65_535))
    return (
        b"GIF89a"
        + struct.pack("<HH", side, side)
        + b"\x80\0\0"
        + bytes(6)
        + b",\0\0\0\0"
        + struct.pack("<HH", side, side)
        + b"\0\x02\x02\x44\x01\0;"
    )


def _text_bomb() -> bytes:
    """Text chunks of a PNG that unpack to far more than they are."""
    info = PngImagePlugin.PngInfo()
    info.add_text("k", "x" * (30 << 20), zip=True)
    stream = io.BytesIO()
    Image.new("L", (4, 4)).save(stream, "PNG", pnginfo=info)
    return stream.getvalue()


def _resized(random: Random, png: bytes) -> bytes:
    """Another size in the header, with its right checksum."""
    sides = [random.choice((*mutate.BOUNDS, 5_000)) % 2**32 for _ in range(2)]
    rest = bytes(random.choice(((8, 2, 0, 0, 0), (16, 6, 0, 0, 1), (8, 3, 0, 0, 0), (7, 9, 1, 1, 2))))
    return png[:8] + _chunk(b"IHDR", struct.pack(">II", *sides) + rest) + png[33:]


def _exif(random: Random) -> bytes:
    jpeg, at = seeds()["a.jpg"], seeds()["a.jpg"].index(b"Exif")
    return jpeg[:at] + mutate.octets(random, jpeg[at : at + 80]) + jpeg[at + 80 :]


def _ppm(random: Random) -> bytes:
    heads = (
        b"P6 99999999 99999999 255\n",
        b"P5 4 4 65535\n",
        b"P3 2 2 255\n1 2 x",
        b"P6 -1 4 255\n",
        b"Pf 3 3 -1\n",
    )
    return random.choice(heads) + random.randbytes(64)
