"""What goes wrong when files are written, in words that say what to do."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zoo.errors import TrainingError
from zoo.files import is_dir

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}  # the disk, the user's share of it, a limit of the process
_CLOSED = {errno.EROFS, errno.EACCES, errno.EPERM}
_GONE = {errno.ENOENT, errno.ESTALE, errno.ENOTDIR}


@contextmanager
def writing(what: str, folder: Path, size: int | None = None) -> Iterator[None]:
    """Turn a failed write inside the block into one clear error.

    Args:
        what: what is written, as the message begins.
        folder: where; it should exist.
        size: bytes it takes, if known.

    Raises:
        TrainingError: saying why it cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise TrainingError(f"{what} cannot be written: {_reason(error, folder, size)}") from None


def gone(folder: Path) -> TrainingError:
    """Return the error for a folder that is no longer where it was."""
    return TrainingError(
        f'the run folder "{folder}" is gone: it was moved, deleted or replaced while the run was going. '
        "If it was moved, move it back and give the same command with --resume"
    )


def readable(size: int) -> str:
    """Return a number of bytes as a person reads it, e.g. `12.3 MB`."""
    value, units = float(size), ["B", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.3g} {units[0]}" if value < 1000 else f"{value:.0f} {units[0]}"


def _reason(error: OSError, folder: Path, size: int | None) -> str:
    if error.errno in _FULL:
        needs = "" if size is None else f"it needs {readable(size)}, "
        return f"{error.strerror}: {needs}{_free(folder)}. Make room and give the same command with --resume"
    if error.errno in _CLOSED:
        return f"{error.strerror}; make the folder writable and give the same command with --resume"
    if error.errno in _GONE and not is_dir(folder):
        return f'the folder "{folder}" is not there ({error.strerror})'
    return str(error)


def _free(folder: Path) -> str:
    try:
        return f"{readable(shutil.disk_usage(folder).free)} are free"
    except OSError:
        return "and how much is free cannot be found out"
