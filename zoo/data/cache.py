"""Data sets decoded once: into memory, or into a checked file that later runs map instead of decoding.

The file is a NumPy array `[N, 3, H, W]`, uint8 (`numpy.load` reads it). A record beside it, in JSON, has the
checksums of the file and a hash of all that decides its content. Both are below
`$XDG_CACHE_HOME/zoo/decoded` (default `~/.cache`) and can be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import warnings
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

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
_SHOWN = 3  # names of unreadable images in an error
RESIDENT_SHARE = 0.5  # of a GPU's free memory: the rest is the model's, its activations' and the queue's

Pixels = NDArray[np.uint8]
Shape = tuple[int, int, int, int]


class _Place(NamedTuple):
    """The file of a data set's images, and a hash of what decides its content."""

    file: Path
    state: str

    @property
    def record(self) -> Path:
        return self.file.with_suffix(".json")


def decode_all(dataset: ImageDataset, image_size: int | None, *, device: torch.device, cache: bool) -> Tensor:
    """Return all images of a data set `[N, 3, H, W]`, uint8, decoded or from the file of an earlier run.

    Args:
        dataset: N images.
        image_size: scale each to this square; None: they must be equally large.
        device: where they are used; a file's images stay mapped, not to be written to, where they would fill
            a GPU.
        cache: keep the decoded images in a file, and take them from there if it is as it should be.

    Raises:
        DataError: for images that cannot be read or have different sizes, or too little memory.
    """
    place = _place(dataset, image_size) if cache else None
    if place is not None:
        kept = _read(place)
        if kept is None:
            kept = _decode_into_file(place, dataset, image_size)
        if kept is not None:
            return _on_device(kept, device)
    shape = _shape(dataset, image_size)
    pixels, at = _allocate(shape, device), 0
    for piece in _pieces(dataset, image_size, shape):
        pixels[at : at + len(piece)] = torch.from_numpy(piece)
        at += len(piece)
    return pixels


def find_decoded(dataset: ImageDataset, image_size: int | None) -> Tensor | None:
    """Return the images of the file that `decode_all` has kept, mapped; None where there is none of use."""
    place = _place(dataset, image_size)
    return None if place is None else _read(place)


def _place(dataset: ImageDataset, image_size: int | None) -> _Place | None:
    """Return where a data set's images are kept; None: they need no decoding, or there is no home folder."""
    encoded = dataset.encoded()
    if encoded is None:
        return None
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111  # never raises
    names, state = hashlib.sha256(f"{image_size}\n{encoded.selection}\n".encode()), hashlib.sha256()
    decoder = features.version("libjpeg_turbo") or features.version("jpg")
    state.update(f"{FORMAT} {len(dataset)} {PIL.__version__} {decoder}\n".encode())
    for path in encoded.files:
        names.update(os.fsencode(os.path.abspath(path)) + b"\n")  # noqa: PTH100  # as text, 10x faster
        with suppress(OSError):
            status = os.stat(path)  # noqa: PTH116
            # a copy can bring an old modification time along, but nobody sets the time of the change itself
            state.update(f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}".encode())
        state.update(b"\n")
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", str(dataset.settings.get("name") or "images"))[:64]
    file = Path(base, "zoo", "decoded", f"{readable}-{image_size or 'stored'}-{names.hexdigest()[:32]}.npy")
    return _Place(file, state.hexdigest())


def _read(place: _Place) -> Tensor | None:
    """Map a file after comparing its checksums; None where there is none that can be used, which is said."""
    try:
        record = json.loads(place.record.read_text(encoding="utf-8"))
        if record["state"] != place.state:
            raise ValueError("made of other files, or by another decoder, than there are now")
        if record["checksums"] != checksums_of(place.file):
            raise ValueError("damaged")
        mapped = np.load(place.file, mmap_mode="r")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        LOG.warning("%s: %s; the images are decoded anew", place.file, " ".join(str(error).split()))
        with suppress(OSError):
            place.record.unlink(missing_ok=True)
        return None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*", category=UserWarning)
        return torch.from_numpy(mapped)


def checksums_of(file: Path) -> list[int]:
    """Return the CRC-32 of each 64 MiB of a file; computed once for each state of the file."""
    status = file.stat()
    return _checksums(file, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@lru_cache
def _checksums(file: Path, *_state: int) -> list[int]:
    content = np.memmap(file, mode="r")
    pieces = (content[at : at + PIECE_BYTES] for at in range(0, len(content), PIECE_BYTES))
    with ThreadPoolExecutor(own_cores()) as pool:  # zlib computes without the interpreter's lock
        return list(pool.map(zlib.crc32, pieces))


def _decode_into_file(place: _Place, dataset: ImageDataset, image_size: int | None) -> Tensor | None:
    """Decode into the file, or map what another process has made of it meanwhile.

    Returns:
        None where no file can be written, which is said.
    """
    part = place.file.with_suffix(".part")
    try:
        place.file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(place.file.with_suffix(".lock")):  # the system releases a killed process's
            made = _read(place)
            if made is not None:
                return made
            try:
                _write(part, dataset, image_size)
                place.record.unlink(missing_ok=True)  # no moment has a record of another file
                part.replace(place.file)
            finally:
                part.unlink(missing_ok=True)
            record = {"state": place.state, "checksums": checksums_of(place.file)}
            write_text(place.record, json.dumps(record))
            return _read(place)
    except (OSError, NotImplementedError) as error:  # a file system may have no locks
        LOG.warning("%s: not kept, so the next run decodes again: %s", place.file, error)
        return None


def _write(path: Path, dataset: ImageDataset, image_size: int | None) -> None:
    """Decode into an array file; by writing: a mapped file on a full disk would end the process."""
    shape = _shape(dataset, image_size)
    need, free = int(np.prod(shape, dtype=np.int64)), shutil.disk_usage(path.parent).free
    if free < need:
        raise OSError(f"it needs {need / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free")
    with path.open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for piece in _pieces(dataset, image_size, shape):
            file.write(piece.data)


def _pixels(dataset: ImageDataset, index: int, image_size: int | None) -> Pixels:
    return np.asarray(scaled_to_square(dataset.image(index), image_size)).transpose(2, 0, 1)


def _shape(dataset: ImageDataset, image_size: int | None) -> Shape:
    """Return the shape of all images together; the first one that can be read tells their size."""
    errors = dict[int, str]()
    for index in range(len(dataset)):
        try:
            _, height, width = _pixels(dataset, index, image_size).shape
            return len(dataset), 3, height, width
        except DataError as error:
            errors[index] = str(error)
    raise DataError(cannot_be_read(dataset, errors))


def _pieces(dataset: ImageDataset, image_size: int | None, shape: Shape) -> Iterator[Pixels]:
    """Yield the images in order, `[n, 3, H, W]`.

    Raises:
        DataError: at the end, saying which images cannot be read.
    """
    errors = dict[int, str]()

    def read(index: int) -> Pixels | DataError:
        try:
            return _pixels(dataset, index, image_size)
        except DataError as error:
            return error

    count, *size = shape
    step = max(1, min(PIECE_IMAGES, PIECE_BYTES // int(np.prod(size))))
    # images of a program may come from code that is not made for threads
    pool = ThreadPoolExecutor(own_cores() if dataset.encoded() is not None else 1)
    try:
        with progress(count, "decoding") as advance:
            ahead = pool.map(read, range(min(step, count)))
            for start in range(0, count, step):
                images = ahead
                ahead = pool.map(read, range(start + step, min(start + 2 * step, count)))
                piece = np.zeros((min(step, count - start), *size), dtype=np.uint8)
                for index, image in enumerate(images, start):
                    if isinstance(image, DataError):
                        errors[index] = str(image)
                    elif image.shape != tuple(size):
                        raise _other_size(dataset.name_of(index), image, shape)
                    else:
                        piece[index - start] = image
                advance(len(piece))
                yield piece
        if errors:
            raise DataError(cannot_be_read(dataset, errors))
    finally:
        pool.shutdown(cancel_futures=True)


def cannot_be_read(dataset: ImageDataset, errors: Mapping[int, str]) -> str:
    """Say which images cannot be read, by place in the data set: the first one's error, and how many more."""
    first, *more = errors
    names = [*map(dataset.name_of, more[:_SHOWN]), *["..."][: len(more) > _SHOWN]]
    return f"{errors[first]}; {len(more)} more cannot be read ({', '.join(names)})" if more else errors[first]


def _other_size(name: str, image: Pixels, shape: Shape) -> DataError:
    return DataError(
        f'image "{name}" has {image.shape[2]}x{image.shape[1]} pixels, the first one {shape[3]}x{shape[2]}; '
        "the tensor backend needs one size: set data.image_size to scale them all, or views.backend to "
        '"stream" or "torchvision"'
    )


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
