"""Atomic writes, locked staging folders, and reading of small files."""

import fcntl
import json
import os
import re
import shutil
import stat
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from os.path import exists, isdir
from pathlib import Path
from typing import Any

from zoo.errors import ZooError, ZooWarning

RUNS = Path("runs")
"""Default parent folder of everything that zoo writes."""

MOST_BYTES = 8 << 20
"""Of a text file, unless stated otherwise: many times what 10,000 classes need."""
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}")


def cache_folder(name: str) -> Path:
    """Return this project's cache folder `name`, below `$XDG_CACHE_HOME` or `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111  # never raises
    return Path(base, "zoo", name)


def list_names(folder: str | Path) -> list[str]:
    """Return the sorted names in a folder; an empty list if it is missing or unreadable."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208
    except (OSError, ValueError):
        return []


def is_unused(folder: str | Path) -> bool:
    """Whether the path does not exist or is an empty folder."""
    return not exists(folder) or (isdir(folder) and not list_names(folder))


def write_atomic(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write` on a temporary name beside `path`, sync it to disk and rename it over `path`.

    Readers see the old file or the new one, even after a crash at any moment or an error in `write`. The
    parent folder is created if it is missing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        write(temporary)
        sync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


def read_text(path: Path, error_type: type[ZooError] = ZooError, most_bytes: int = MOST_BYTES) -> str:
    """Read a UTF-8 file, with or without a byte order mark.

    Raises an `error_type` if the file is missing, larger than `most_bytes` or not text.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise OSError("found no regular file")  # reading a pipe or a device may never end
        if status.st_size > most_bytes:
            raise OSError(f"found {status.st_size:,} bytes, expected at most {most_bytes:,}")
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise error_type(f'"{path}" cannot be read: {error}') from None


def read_json_or_empty(path: Path) -> dict[str, Any]:
    """Return the JSON object in a small file written by zoo; {} if the file is missing or damaged."""
    try:
        found = json.loads(read_text(path))
    except (ZooError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, atomically."""
    write_atomic(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


@contextmanager
def writing(what: str, error_type: type[ZooError] = ZooError) -> Iterator[None]:
    """Turn an `OSError` inside the block into an `error_type` that says `what` cannot be written."""
    try:
        yield
    except OSError as error:
        raise error_type(f"{what} cannot be written: {error.strerror or error}") from None


def supported_workers(wanted: int) -> int:
    """Return the number of processes that may send images: 0, with a warning, where /dev/shm is small."""
    place = "/dev/shm"  # of a container 64 MiB, if nothing else is said
    if isdir(place) and (found := shutil.disk_usage(place)).total and found.free < 1 << 30:
        why = f"less than 1 GiB of {place} is free (docker run --shm-size=8g)"
        warnings.warn(f"workers: 0 in place of {wanted}, since {why}", ZooWarning, stacklevel=2)
        return 0
    return wanted


def check_writable(file: Path, key: str, endings: str) -> None:
    """Create a file's folder; raise a `ZooError` for a wrong suffix, or if writing would fail later."""
    if file.suffix.lower() not in endings.split():
        raise ZooError(f'{key}: found "{file}", expected a file that ends in {" or ".join(endings.split())}')
    with writing(f'"{file}"'):
        file.parent.mkdir(parents=True, exist_ok=True)
        if isdir(file) or not os.access(file.parent, os.W_OK):
            raise OSError("it is a folder" if isdir(file) else "no files may be made in its folder")


@contextmanager
def staging(target: Path, *, inside: bool = False) -> Iterator[Path]:
    """Yield a new hidden folder beside `target`, or `inside` it, to stage its content; then remove it.

    The process locks the folder, and the system releases the lock when the process dies: folders that dead
    processes left in either place are removed first.
    """
    place = target if inside else target.parent
    place.mkdir(parents=True, exist_ok=True)
    own = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{32}}")
    for left in [*target.parent.iterdir(), *(target.iterdir() if inside else ())]:
        if own.fullmatch(left.name) and left.is_dir():
            with suppress(OSError), _opened(left) as descriptor:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
    folder = place / f".{target.name}.{uuid.uuid4().hex}"
    try:
        folder.mkdir()
        with _opened(folder) as descriptor:
            with suppress(OSError):  # a file system without locks: then nobody removes what others left
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def temporary_files(folder: Path) -> list[Path]:
    """Return `write_atomic`'s temporary files in `folder`: in progress, or left by a killed process."""
    return [file for file in folder.glob(".*") if _TEMPORARY.fullmatch(file.name)]


def sync(path: Path) -> None:
    """Flush a file's content, or a folder's entries where the file system can, to disk with fsync."""
    with _opened(path) as descriptor, suppress(OSError) if isdir(path) else nullcontext():
        os.fsync(descriptor)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
