"""Decoded images in one checked file that later runs map instead of decoding again.

A file is a NumPy array `[N, 3, H, W]`, uint8 (`numpy.load` reads it), followed by a record in JSON, the
record's length and CRC-32, and a magic word. The record says what decides the content (`Identity`), which
images could not be read, and the CRC-32 of every piece of the file before it. Files are below
`$XDG_CACHE_HOME/zoo/decoded` (default `~/.cache`), are replaced, never changed, and can be deleted any time.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import math
import os
import re
import shutil
import stat
import struct
import tokenize
import warnings
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import PIL
import torch
from filelock import FileLock, Timeout
from PIL import features
from torch import Tensor

from zoo.data.dataset import ImageDataset
from zoo.data.decoding import LOG, Decoding
from zoo.errors import DataError
from zoo.files import write_atomic

FORMAT = 1
MAGIC = b"zoo8"
FOOTER = struct.Struct("<QI4s")  # length and CRC-32 of the record, magic
MAX_RECORD = 1 << 28
THREADS = 8  # that compare checksums; one reads about 1 GB/s

_checked: set[tuple[object, ...]] = set()
"""Files whose checksums this process has compared: path, inode, size, modification and change time."""


class Decoded(NamedTuple):
    """Decoded images.

    Attributes:
        pixels: `[N, 3, H, W]`, uint8; those of a file are mapped and must not be written to.
        errors: what is wrong with the images at these places, which are black.
    """

    pixels: Tensor
    errors: dict[int, str]


class Identity(NamedTuple):
    """What decides the content of a file.

    Attributes:
        file: where it is, by the paths of the images, their order and `image_size`.
        state: the rest: sizes and times of the encoded files, versions of the decoder and of the format.
        dataset: whose images these are: what could not be read when the file was made is tried again.
    """

    file: Path
    state: dict[str, object]
    dataset: ImageDataset


class _Unusable(Exception):
    """A file is not what its record says, or of something else."""


_UNUSABLE = (
    _Unusable,
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    SyntaxError,  # NumPy reads a header as Python
    tokenize.TokenError,
)  # what reading an arbitrary file may raise


def cache_folder() -> Path:
    """Return the folder of the files; without a home folder RuntimeError."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "zoo" / "decoded"


def identify(dataset: ImageDataset, image_size: int | None) -> Identity | None:
    """Return which file holds a data set's images, and in which state; None: they need no decoding."""
    encoded = dataset.encoded()
    if encoded is None:
        return None
    names, state = hashlib.sha256(f"{image_size}\n{encoded.selection}\n".encode()), hashlib.sha256()
    for path in encoded.files:
        names.update(os.fsencode(os.path.abspath(path)) + b"\n")  # noqa: PTH100  # as text, 10x faster
        try:
            status = os.stat(path)  # noqa: PTH116
            # a copy can bring an old modification time along, but nobody sets the time of the change itself
            state.update(f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}\n".encode())
        except OSError:
            state.update(b"missing\n")
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", str(dataset.settings.get("name") or "images"))[:64]
    file = cache_folder() / f"{readable}-{image_size or 'stored'}-{names.hexdigest()[:32]}.npy"
    return Identity(
        file,
        {
            "format": FORMAT,
            "images": len(dataset),
            "files": state.hexdigest(),
            "pillow": PIL.__version__,
            "libjpeg": features.version("libjpeg_turbo") or features.version("jpg"),
        },
        dataset,
    )


def read_decoded(identity: Identity) -> Decoded | None:
    """Map a file after comparing its checksums; None where there is none that can be used, which is said."""
    try:
        return _read(identity)
    except FileNotFoundError:
        return None
    except _UNUSABLE as error:
        reason = " ".join(str(error).split())
        LOG.warning("%s: %s; the images are decoded anew", identity.file, reason)
        return None


def keep_decoded(identity: Identity, decoding: Decoding) -> Decoded | None:
    """Return the images of a file that another process has made meanwhile, or decode them into it.

    Returns:
        None where no file can be written, which is said.

    Raises:
        DataError: for images of different sizes.
    """
    file = identity.file
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with _locked(file):
            with suppress(*_UNUSABLE):
                return _read(identity)
            # we have the lock: what is there is of no use, or was left by a process that was killed
            for left in (file, *file.parent.glob(f".{file.name}.*")):
                left.unlink(missing_ok=True)
            free = shutil.disk_usage(file.parent).free
            if free < decoding.nbytes:
                need = f"{decoding.nbytes / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free"
                raise OSError(f"it needs {need}")
            write_atomic(file, lambda temporary: _write(temporary, identity, decoding))
            _checked.add(_state(file, file.stat()))
            return _read(identity)
    except (OSError, NotImplementedError, _Unusable) as error:  # a file system may have no locks
        LOG.warning("%s: not kept, so the next run decodes again: %s", file, " ".join(str(error).split()))
        return None


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold the lock of `file`; the system releases a killed process's."""
    lock = FileLock(file.with_name(f"{file.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        LOG.info("%s: waiting for another process that decodes these images", file)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _write(path: Path, identity: Identity, decoding: Decoding) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": decoding.shape}
    )
    pieces = [(len(header.getvalue()), zlib.crc32(header.getvalue()))]
    with path.open("wb") as file:
        file.write(header.getvalue())
        for piece in decoding:
            file.write(piece.data)
            pieces.append((piece.nbytes, zlib.crc32(piece.data)))
        record = json.dumps({"state": identity.state, "pieces": pieces, "errors": decoding.errors}).encode()
        file.write(record + FOOTER.pack(len(record), zlib.crc32(record), MAGIC))


def _read(identity: Identity) -> Decoded:
    if not stat.S_ISREG(identity.file.stat().st_mode):  # opening a pipe may never end
        raise _Unusable("no regular file")
    with identity.file.open("rb") as file:
        state = _state(identity.file, os.fstat(file.fileno()))
        record = _read_record(file)
        changed = [key for key, value in identity.state.items() if record.state.get(key) != value]
        if changed:
            raise _Unusable(f"made of other {', '.join(changed)} than there are now")
        if state not in _checked:
            _compare(file, record.pieces)
            _checked.add(state)
        file.seek(0)
        if np.lib.format.read_magic(file) != (1, 0):
            raise _Unusable("no array of the expected version")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        count = len(identity.dataset)
        if (fortran, dtype, len(shape), *shape[:2]) != (False, np.dtype("u1"), 4, count, 3):
            raise _Unusable(f"found an array {dtype} {shape}, expected 8 bits of {count} images")
        if min(shape) < 1 or file.tell() + math.prod(shape) != sum(length for length, _ in record.pieces):
            raise _Unusable(f"found pixels of another number than {shape}")
        _try_again(identity.dataset, record.errors)
        # read-only: a private map of data larger than the memory would be refused
        mapped = np.memmap(file, dtype, "r", offset=file.tell(), shape=shape)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*", category=UserWarning)
        return Decoded(torch.from_numpy(mapped), record.errors)


def _try_again(dataset: ImageDataset, errors: dict[int, str]) -> None:
    """Refuse what was remembered of images that are fine: a disk or a permission can be to blame as well."""
    if any(not 0 <= place < len(dataset) for place in errors) or len(errors) >= len(dataset):
        raise _Unusable("its record names images that are not there")
    for place in errors:
        with suppress(DataError):
            dataset.image(place)
            raise _Unusable(f'image "{dataset.name_of(place)}" can be read by now')


class _Record(NamedTuple):
    state: dict[str, object]
    pieces: list[list[int]]  # length and CRC-32 of each
    errors: dict[int, str]


def _read_record(file: BinaryIO) -> _Record:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - FOOTER.size))
    footer = file.read()
    length, checksum, magic = FOOTER.unpack(footer.rjust(FOOTER.size, b"\0"))
    if magic != MAGIC or length > min(MAX_RECORD, size - FOOTER.size):
        raise _Unusable("its end is missing")
    file.seek(size - FOOTER.size - length)
    text = file.read(length)
    if zlib.crc32(text) != checksum:
        raise _Unusable("its record is damaged")
    record = json.loads(text)
    pieces = record["pieces"]
    if sum(piece for piece, _ in pieces) != size - FOOTER.size - length:
        raise _Unusable("its length is not the recorded one")
    if min(piece for piece, _ in pieces) < 0:  # so none is longer than the file
        raise _Unusable("its record is impossible")
    errors = {int(place): str(error) for place, error in record["errors"].items()}
    return _Record(record["state"], pieces, errors)


def _compare(file: BinaryIO, pieces: list[list[int]]) -> None:
    """Compare every piece's checksum; by reading: a map would end the process at a block that cannot be."""
    starts = itertools.accumulate((length for length, _ in pieces), initial=0)

    def same(start: int, length: int, checksum: int) -> bool:
        return zlib.crc32(os.pread(file.fileno(), length, start)) == checksum

    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:  # both calls release the lock
        equal = pool.map(lambda at, piece: same(at, *piece), starts, pieces)
        if not all(equal):
            raise _Unusable("its pixels are damaged")


def _state(file: Path, status: os.stat_result) -> tuple[object, ...]:
    return str(file), status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
