"""Data sets decoded once: into memory, or into a checked file that later runs map instead of decoding.

The file is a NumPy array `[N, 3, H, W]`, uint8, named by a hash of all that decides its content, with its
CRC-32 beside it, below `$XDG_CACHE_HOME/zoo/decoded` (default `~/.cache`); it can be deleted at any time.
"""

import hashlib
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import PIL
import torch
from filelock import FileLock
from PIL import Image, features
from torch import Tensor
from torchvision.transforms.v2.functional import pil_to_tensor

from zoo.data.dataset import ImageDataset
from zoo.data.decode import LOG, own_cores, progress, scaled_to_square
from zoo.data.streamed import Key, Samples, cannot_be_read, in_order
from zoo.errors import DataError
from zoo.files import write_atomic, write_text, writing

FORMAT = 3
PIECE, PARALLEL = 64, 1024  # images decoded before they are passed on; how many pay for worker processes


def decode_all(dataset: ImageDataset, image_size: int | None, *, device: torch.device, cache: bool) -> Tensor:
    """Return all images of a data set on `device` `[N, 3, H, W]`, uint8.

    They are scaled to a square of `image_size`; None: they must be equally large. With `cache` they are kept
    in a file, which is mapped where it is there and intact; images that need no decoding are not kept.

    Raises:
        DataError: for images that cannot be read or have different sizes, or a file that cannot be written.
    """
    file = _file_of(dataset, image_size) if cache else None
    if file is None:
        pixels = torch.empty(0)
        for start, images in _decoded(dataset, image_size):
            if start == 0:
                pixels = images.new_empty(len(dataset), *images.shape[1:])
            pixels[start : start + len(images)] = images
        return pixels.to(device)
    with writing(f'"{file}"', DataError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(file.with_suffix(".lock")):  # the system releases a killed process's
            for left in file.parent.glob(f".{file.name}.*"):  # by a killed process
                left.unlink()
            if not _is_intact(file):
                write_atomic(file, lambda part: _write(part, dataset, image_size))
                write_text(file.with_suffix(".crc32"), _crc32(file))
        return torch.from_numpy(np.load(file, mmap_mode="c")).to(device)


def _file_of(dataset: ImageDataset, image_size: int | None) -> Path | None:
    """Return where a data set's images are kept; None: they need no decoding."""
    encoded = dataset.encoded()
    if encoded is None:
        return None
    decoder = features.version("libjpeg_turbo") or features.version("jpg")
    key = hashlib.sha256(f"{FORMAT} {PIL.__version__} {decoder} {image_size}\n".encode())
    files, selection = encoded
    key.update(f"{len(dataset)} {selection}\n".encode())
    for path in files:
        key.update(os.fsencode(os.path.abspath(path)) + b"\n")  # noqa: PTH100  # as text, 10x faster
        with suppress(OSError):
            status = os.stat(path)  # noqa: PTH116
            # a copy can bring an old modification time along, but nobody sets the time of the change itself
            key.update(f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}\n".encode())
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111  # never raises
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", str(dataset.settings.get("name") or "images"))[:64]
    return Path(base, "zoo", "decoded", f"{readable}-{image_size or 'stored'}-{key.hexdigest()[:32]}.npy")


def _is_intact(file: Path) -> bool:
    """Return whether a file is there and has the checksum that was written with it."""
    try:
        intact = file.with_suffix(".crc32").read_text(encoding="utf-8") == _crc32(file)
    except FileNotFoundError:
        return False
    if not intact:
        LOG.warning("%s: damaged; the images are decoded anew", file)
    return intact


def _crc32(file: Path) -> str:
    crc = 0
    with file.open("rb") as content:
        while piece := content.read(1 << 26):
            crc = zlib.crc32(piece, crc)
    return f"{crc:08x}\n"


def _write(file: Path, dataset: ImageDataset, image_size: int | None) -> None:
    with file.open("wb") as content:  # a mapped file on a full disk would end the process
        for start, images in _decoded(dataset, image_size):
            if start == 0:
                header = {"descr": "|u1", "fortran_order": False, "shape": (len(dataset), *images.shape[1:])}
                np.lib.format.write_array_header_1_0(content, header)
            content.write(images.numpy().data)


def _pixels(image: Image.Image, _key: Key, *, image_size: int | None) -> list[Tensor]:
    return [pil_to_tensor(scaled_to_square(image, image_size))]


def _decoded(dataset: ImageDataset, image_size: int | None) -> Iterator[tuple[int, Tensor]]:
    """Yield some images at a time, in order: the first one's place, and `[n, 3, H, W]`, uint8.

    Raises:
        DataError: for another size than the first one's; at the end, saying which images cannot be read.
    """
    # images of a program may come from code that is not made for several processes
    workers = own_cores() if len(dataset) > PARALLEL and dataset.encoded() is not None else 0
    samples = Samples(dataset, partial(_pixels, image_size=image_size))
    found, shape = dict[int, str](), torch.Size()
    with progress(len(dataset), "decoding") as advance:
        for places, views, errors in in_order(samples, PIECE, workers, torch.device("cpu")):
            found |= errors
            advance(len(places))
            if not found:
                shape = shape or views[0].shape[1:]
                if views[0].shape[1:] != shape:
                    height, width = views[0].shape[2:]
                    other = f'image "{dataset.name_of(places[0])}" has {width}x{height} pixels'
                    first = f"the first one {shape[2]}x{shape[1]}"
                    raise DataError(f"{other}, {first}, expected one size: set data.image_size")
                yield places[0], views[0]
    if found:
        raise DataError(cannot_be_read(dataset, found))
