"""One process, and one thread of it, after another."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

_NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK}


@contextmanager
def turn(file: Path) -> Iterator[None]:
    """Let one after another into the block; where the file system has no locks, all of them.

    The system releases a killed process's lock. `file` stays: to remove it would let two in.

    Raises:
        OSError: if `file`, or its folder, cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(file)
    locked = acquire(lock)
    try:
        yield
    finally:
        if locked:
            lock.release()


def acquire(lock: FileLock, timeout: float = -1) -> bool:
    """Take a lock; return whether the file system has any.

    Args:
        lock: not taken yet.
        timeout: seconds to wait for it; without end when negative.

    Raises:
        Timeout: if another has it for longer.
        OSError: if its file cannot be written.
    """
    try:
        lock.acquire(timeout=timeout)
    except NotImplementedError:
        return False
    except OSError as error:  # as a Timeout is, without a number
        if error.errno in _NO_LOCKS:
            return False
        raise
    return True
