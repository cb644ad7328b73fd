"""Which files have been compared with their recorded sha256: only the first load of a file hashes it.

The record is `$XDG_CACHE_HOME/zoo/verified.json` (default `~/.cache/zoo`). A file counts as the one that was
hashed while its path, inode, size, modification and change time are the same; without a record that can be
read or written, files are hashed every time.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path

from zoo.errors import ReleaseError
from zoo.files import read_object, write_text
from zoo.release.format import CONFIG, sha256

MAX_ENTRIES = 256  # the newest; an older file is hashed again
_SETTLED_NS = 2_000_000_000  # the coarsest clock of a file system: a younger file may change without a trace


def sha256_of(file: Path) -> str:
    """Return the SHA-256 of `file`, by the record or by hashing it.

    Raises:
        ReleaseError: when it is missing or cannot be read.
    """
    try:
        path, identity = str(file.resolve(strict=True)), _identity(file.stat())
        entry = _read().get(path)
        if isinstance(entry, list) and entry[:-1] == identity:
            return str(entry[-1])
        found = sha256(file)
        if _identity(file.stat()) == identity and time.time_ns() - max(identity[2:]) > _SETTLED_NS:
            _write(path, [*identity, found])
    except FileNotFoundError:
        raise ReleaseError(f"{file.parent}: {file.name} is missing") from None
    except OSError as error:
        raise ReleaseError(f"{file}: cannot be read: {error}") from None
    return found


def check_sha256(file: Path, expected: str) -> None:
    """Make sure that `file` has the SHA-256 `expected`, by the record or by hashing it.

    Raises:
        ReleaseError: naming both hashes, or why the file cannot be read.
    """
    if sha256_of(file) != expected:
        check_sha256_now(file, expected)


def check_sha256_now(file: Path, expected: str) -> None:
    """Hash `file`, whatever the record says.

    Raises:
        ReleaseError: when it is missing, cannot be read, or has another hash.
    """
    try:
        found = sha256(file)
    except FileNotFoundError:
        raise ReleaseError(f"{file.parent}: {file.name} is missing") from None
    except OSError as error:
        raise ReleaseError(f"{file}: cannot be read: {error}") from None
    if found != expected:
        cached = file.parent.parent.name == "snapshots"  # of huggingface_hub
        hint = '; "zoo pull" of the repository mends the cache' if cached else ""
        raise ReleaseError(f"{file}: sha256 {found}, but {CONFIG} records {expected}{hint}")


def _identity(status: os.stat_result) -> list[int]:
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _record() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "zoo" / "verified.json"


def _read() -> dict[str, object]:
    """Return the record, path -> identity and hash; empty when there is none that can be read."""
    with suppress(RuntimeError):  # there is no home folder
        return read_object(_record())
    return {}


def _write(path: str, entry: list[object]) -> None:
    entries = {**{key: value for key, value in _read().items() if key != path}, path: entry}
    newest = dict(list(entries.items())[-MAX_ENTRIES:])
    with suppress(OSError, ValueError, RuntimeError):
        write_text(_record(), json.dumps(newest))
