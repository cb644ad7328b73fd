"""Whether a file has its recorded SHA-256; a file that was hashed once is not hashed again by the next load.

The record is `$XDG_CACHE_HOME/zoo/verified.json` (default `~/.cache/zoo`). A file counts as the one that was
hashed while its inode, size, modification and change time are the same; without a record that can be read or
written, files are hashed every time.
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

_MAX_ENTRIES = 256  # the newest; an older file is hashed again
_SETTLED_NS = 2_000_000_000  # the coarsest clock of a file system: a younger file may change without a trace


def known_sha256(file: Path) -> str:
    """Return the SHA-256 of `file`, by the record or by hashing it.

    Raises:
        ReleaseError: when it is missing or cannot be read.
    """
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        record = (Path(cache) if cache else Path.home() / ".cache") / "zoo" / "verified.json"
        path, status = str(file.resolve(strict=True)), file.stat()
        identity = [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
        entries = read_object(record)
        entry = entries.pop(path, None)
        if isinstance(entry, list) and entry[:-1] == identity:
            return str(entry[-1])
        found = sha256(file)
    except FileNotFoundError:
        raise ReleaseError(f"{file.parent}: {file.name} is missing") from None
    except (OSError, RuntimeError) as error:
        raise ReleaseError(f"{file}: cannot be read: {error}") from None
    if time.time_ns() - max(identity[2:]) > _SETTLED_NS:
        newest = dict([*entries.items(), (path, [*identity, found])][-_MAX_ENTRIES:])
        with suppress(OSError, ValueError):
            write_text(record, json.dumps(newest))
    return found


def check_sha256(file: Path, expected: str, *, every_byte: bool = False) -> None:
    """Make sure that `file` has the SHA-256 `expected`, by the record or, with `every_byte`, by hashing it.

    Raises:
        ReleaseError: naming both hashes, or why the file cannot be read.
    """
    try:
        found = sha256(file) if every_byte else known_sha256(file)
    except FileNotFoundError:
        raise ReleaseError(f"{file.parent}: {file.name} is missing") from None
    except OSError as error:
        raise ReleaseError(f"{file}: cannot be read: {error}") from None
    if found != expected:
        cached = file.parent.parent.name == "snapshots"  # of huggingface_hub
        hint = '; "zoo pull" of the repository mends the cache' if cached else ""
        raise ReleaseError(f"{file}: sha256 {found}, but {CONFIG} records {expected}{hint}")
