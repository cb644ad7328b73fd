"""Data sets decoded once: into memory, or into a checked file that later runs map instead of decoding.

The file is a NumPy array `[N, 3, H, W]`, uint8 (`numpy.load` reads it), named by a hash of all that decides
its content; its CRC-32 is beside it. Both are below `$XDG_CACHE_HOME/zoo/decoded` (default `~/.cache`) and
can be deleted at any time.
"""

from __future__ import annotations

import hashlib
import os
import re
import warnings
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import PIL
import torch
from filelock import FileLock
from numpy.typing import NDArray
from PIL import features
from torch import Tensor

from zoo.data.dataset import ImageDataset
from zoo.data.decode import LOG, own_cores, progress, scaled_to_square
from zoo.errors import DataError
from zoo.files import write_text

FORMAT = 3
PIECE_IMAGES, PIECE_BYTES = 1024, 64 << 20  # whichever is less: what is decoded before it is passed on
RESIDENT_SHARE = 0.5  # of a GPU's free memory: the rest is the model's, its activations' and the queue's
_SHOWN = 3  # names of unreadable images in an error

Pixels = NDArray[np.uint8]
Shape = tuple[int, int, int, int]


def decode_all(dataset: ImageDataset, image_size: int | None, *, device: torch.device, cache: bool) -> Tensor:
    """Return all images of a data set `[N, 3, H, W]`, uint8, decoded or from the file of an earlier run.

    Args:
        dataset: N images.
        image_size: scale each to this square; None: they must be equally large.
        device: where they are used; a file's images stay mapped, not to be written to, where they would fill
            a GPU.
        cache: keep the decoded images in a file, and take them from there if it is as it should be. Images
            that need no decoding are not kept.

    Raises:
        DataError: for images that cannot be read or have different sizes, or too little memory.
    """
    file = _file_of(dataset, image_size) if cache else None
    if file is not None:
        try:
            if not _is_whole(file):
                _decode_into(file, dataset, image_size)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*not writable.*", category=UserWarning)
                return _on_device(torch.from_numpy(np.load(file, mmap_mode="r")), device)
        except (OSError, NotImplementedError) as error:  # a file system may have no locks
            LOG.warning("%s: not kept, so the next run decodes again: %s", file, error)
    shape = _shape(dataset, image_size)
    pixels, at = _allocate(shape, device), 0
    for piece in _pieces(dataset, image_size, shape):
        pixels[at : at + len(piece)] = torch.from_numpy(piece)
        at += len(piece)
    return pixels


def _file_of(dataset: ImageDataset, image_size: int | None) -> Path | None:
    """Return where a data set's images are kept; None: they need no decoding."""
    encoded = dataset.encoded()
    if encoded is None:
        return None
    decoder = features.version("libjpeg_turbo") or features.version("jpg")
    key = hashlib.sha256(f"{FORMAT} {PIL.__version__} {decoder} {image_size}\n".encode())
    key.update(f"{len(dataset)} {encoded.selection}\n".encode())
    for path in encoded.files:
        key.update(os.fsencode(os.path.abspath(path)) + b"\n")  # noqa: PTH100  # as text, 10x faster
        with suppress(OSError):
            status = os.stat(path)  # noqa: PTH116
            # a copy can bring an old modification time along, but nobody sets the time of the change itself
            key.update(f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}\n".encode())
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111  # never raises
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", str(dataset.settings.get("name") or "images"))[:64]
    return Path(base, "zoo", "decoded", f"{readable}-{image_size or 'stored'}-{key.hexdigest()[:32]}.npy")


def _is_whole(file: Path) -> bool:
    """Return whether a file is there and has the checksum that was written with it."""
    try:
        whole = file.with_suffix(".crc32").read_text(encoding="utf-8") == _crc32(file)
    except FileNotFoundError:
        return False
    if not whole:
        LOG.warning("%s: damaged; the images are decoded anew", file)
    return whole


def _crc32(file: Path) -> str:
    crc = 0
    with file.open("rb") as content:
        while piece := content.read(PIECE_BYTES):
            crc = zlib.crc32(piece, crc)
    return f"{crc:08x}\n"


def _decode_into(file: Path, dataset: ImageDataset, image_size: int | None) -> None:
    """Decode into `file`, unless another process has done it meanwhile."""
    part = file.with_suffix(".part")
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_suffix(".lock")):  # the system releases a killed process's
        if _is_whole(file):
            return
        try:
            shape = _shape(dataset, image_size)
            with part.open("wb") as content:  # a mapped file on a full disk would end the process
                header = {"descr": "|u1", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(content, header)
                for piece in _pieces(dataset, image_size, shape):
                    content.write(piece.data)
            write_text(file.with_suffix(".crc32"), _crc32(part))
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)


def _pixels(dataset: ImageDataset, index: int, image_size: int | None) -> Pixels:
    image = np.asarray(scaled_to_square(dataset.image(index), image_size))
    return np.ascontiguousarray(image.transpose(2, 0, 1))


def _shape(dataset: ImageDataset, image_size: int | None) -> Shape:
    """Return the shape of all images together, as the first one has it."""
    _, height, width = _pixels(dataset, 0, image_size).shape
    return len(dataset), 3, height, width


def _pieces(dataset: ImageDataset, image_size: int | None, shape: Shape) -> Iterator[Pixels]:
    """Yield the images in order, `[n, 3, H, W]`.

    Raises:
        DataError: for another size; at the end, saying which images cannot be read.
    """
    errors = dict[int, str]()
    count, *size = shape

    def read(index: int) -> Pixels:
        try:
            image = _pixels(dataset, index, image_size)
        except DataError as error:
            errors[index] = str(error)
            return np.zeros(size, dtype=np.uint8)
        if image.shape != tuple(size):
            raise DataError(
                f'image "{dataset.name_of(index)}" has {image.shape[2]}x{image.shape[1]} pixels, the first '
                f"one {size[2]}x{size[1]}; the tensor backend needs one size: set data.image_size to scale "
                'them all, or views.backend to "stream" or "torchvision"'
            )
        return image

    step = max(1, min(PIECE_IMAGES, PIECE_BYTES // int(np.prod(size))))
    # images of a program may come from code that is not made for threads
    pool = ThreadPoolExecutor(own_cores() if dataset.encoded() is not None else 1)
    try:
        with progress(count, "decoding") as advance:
            for start in range(0, count, step):
                piece = np.stack(list(pool.map(read, range(start, min(start + step, count)))))
                advance(len(piece))
                yield piece
    finally:
        pool.shutdown(cancel_futures=True)
    if errors:
        raise DataError(cannot_be_read(dataset, errors))


def cannot_be_read(dataset: ImageDataset, errors: Mapping[int, str]) -> str:
    """Say which images cannot be read, by place in the data set: the first one's error, and how many more."""
    first, *more = sorted(errors)
    names = [*map(dataset.name_of, more[:_SHOWN]), *["..."][: len(more) > _SHOWN]]
    return f"{errors[first]}; {len(more)} more cannot be read ({', '.join(names)})" if more else errors[first]


def _on_device(kept: Tensor, device: torch.device) -> Tensor:
    """Copy to a GPU what leaves room for the training there; a CPU uses the map itself."""
    if device.type == "cpu":
        return kept
    free = torch.cuda.mem_get_info(device)[0]
    # what torch keeps for itself of an earlier training is free too
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if kept.nbytes > RESIDENT_SHARE * free:
        size, room = (nbytes / 2**30 for nbytes in (kept.nbytes, free))
        LOG.info("decoded images (%.1f GiB) stay in the file: %s has %.1f GiB free", size, device, room)
        return kept
    return kept.to(device)


def _allocate(shape: Shape, device: torch.device) -> Tensor:
    try:
        return torch.empty(shape, dtype=torch.uint8, device=device)
    except RuntimeError:  # torch.OutOfMemoryError is one
        size = np.prod(shape, dtype=np.float64) / 2**30
        raise DataError(
            f"{shape[0]:,} images of {shape[3]}x{shape[2]} pixels need {size:.1f} GiB on {device}, which has "
            "not that much free: set data.image_size smaller, views.cache to true (they stay in a file), or "
            'views.backend to "stream" (decoded again and again)'
        ) from None
