"""Data sets decoded once: into memory, or into a checked file that later runs map instead of decoding.

The file is a NumPy array `[N, 3, H, W]`, uint8, named by a hash of all that decides its content, with its
SHA-256 beside it, below `$XDG_CACHE_HOME/zoo/decoded` (default `~/.cache`); it can be deleted at any time.
"""

import hashlib
import os
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import PIL
import torch
from filelock import FileLock
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2.functional import pil_to_tensor

from zoo.data.dataset import Encoded, ImageDataset
from zoo.data.decode import own_cores, progress, scaled_to_square
from zoo.data.streamed import Key, Samples, from_workers, in_order
from zoo.errors import DataError
from zoo.files import write_atomic, write_text, writing

PIECE, PARALLEL = 64, 1024  # images decoded before they are passed on; how many pay for worker processes


def decode_all(dataset: ImageDataset, image_size: int | None, *, device: torch.device, cache: bool) -> Tensor:
    """Return all images of a data set on `device` `[N, 3, H, W]`, uint8.

    They are scaled to a square of `image_size`; None: they must be equally large. With `cache` they are kept
    in a file, which is mapped where it is there and intact; images that need no decoding are not kept.

    Raises:
        DataError: for images that cannot be read or have different sizes, or a file that cannot be written.
    """
    encoded = dataset.encoded() if cache else None
    if encoded is None:
        return _decoded(dataset, image_size).to(device)
    file = _file_of(encoded, len(dataset), image_size)
    checksum = file.with_suffix(".sha256")
    with writing(f'"{file}"', DataError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(file.with_suffix(".lock")):  # the system releases a killed process's
            if not (file.exists() and checksum.exists() and checksum.read_text() == _sha256(file)):
                write_atomic(file, partial(_write, pixels=_decoded(dataset, image_size)))
                write_text(checksum, _sha256(file))
        return torch.from_numpy(np.load(file, mmap_mode="c")).to(device)


def _file_of(encoded: Encoded, count: int, image_size: int | None) -> Path:
    """Return where the images of some files are kept."""
    key = hashlib.sha256(f"{PIL.__version__} {image_size} {count} {encoded.selection}".encode())
    for path in encoded.files:
        key.update(os.fsencode(os.path.abspath(path)))  # noqa: PTH100  # as text, 10x faster
        with suppress(OSError):
            status = os.stat(path)  # noqa: PTH116
            # a copy can bring an old modification time along, but nobody sets the time of the change itself
            key.update(f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}\n".encode())
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111  # never raises
    return Path(base, "zoo", "decoded", f"{key.hexdigest()[:32]}.npy")


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _write(file: Path, pixels: Tensor) -> None:
    with file.open("wb") as content:  # a mapped file on a full disk would end the process
        np.save(content, pixels.numpy())


def _pixels(
    image: Image.Image, key: Key, *, dataset: ImageDataset, image_size: int | None, size: tuple[int, int]
) -> list[Tensor]:
    image = scaled_to_square(image, image_size)
    if image.size != size:
        found = f'image "{dataset.name_of(key[1])}" has {image.width}x{image.height} pixels'
        raise DataError(f"{found}, expected {size[0]}x{size[1]} as the first: set data.image_size")
    return [pil_to_tensor(image)]


def _decoded(dataset: ImageDataset, image_size: int | None) -> Tensor:
    """Return all images `[N, 3, H, W]`, uint8, decoded by worker processes where that pays."""
    width, height = size = (image_size, image_size) if image_size else dataset.size_of(0)
    # images of a program may come from code that is not made for several processes
    workers = own_cores() if len(dataset) > PARALLEL and dataset.encoded() is not None else 0
    samples = Samples(dataset, partial(_pixels, dataset=dataset, image_size=image_size, size=size))
    pixels = torch.empty(len(dataset), 3, height, width, dtype=torch.uint8)
    with progress(len(dataset), "decoding") as advance:
        keys = in_order(len(dataset), PIECE)
        for places, (images,) in from_workers(samples, keys, workers, torch.device("cpu")):
            pixels[places[0] : places[-1] + 1] = images
            advance(len(places))
    return pixels
