"""One process for a run folder."""

from __future__ import annotations

import json
import os
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from zoo import locks
from zoo.errors import InUse, ZooWarning
from zoo.files import exists, is_file, read_object, write_text
from zoo.training.disk import writing

PATIENCE = 20.0
"""Seconds that what a killed process has left (its data workers hold its lock, too) is given to end."""


@contextmanager
def hold(folder: Path, *, used: Path) -> Iterator[None]:
    """Hold `folder` against every other process, here or on another host, and a second use in this one.

    The system releases a killed process's lock. Should the folder be made here and `used` not come into
    being, it is removed again.

    Raises:
        InUse: naming the process that holds it.
        TrainingError: if it cannot be written.
    """
    made = [path for path in (folder, *folder.parents) if not exists(path)]
    lock, holder = FileLock(folder / ".lock"), folder / ".holder.json"
    with writing(f'run folder "{folder}"', folder):
        folder.mkdir(parents=True, exist_ok=True)
        locked = _acquire(lock, holder, folder)
        since = datetime.now(UTC).isoformat(timespec="seconds")
        me = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
        write_text(holder, json.dumps(me), parents=False)
    try:
        yield
    finally:
        with suppress(OSError):  # read-only or gone by now
            holder.unlink(missing_ok=True)
            if made and not exists(used):
                (folder / ".lock").unlink(missing_ok=True)
                for path in made:
                    path.rmdir()
        if locked:
            lock.release()


def is_held(folder: Path) -> bool:
    """Whether a process holds `folder`; what a dead one has left gives it up soon, `hold` waits for that."""
    if not is_file(folder / ".lock"):
        return False
    try:
        with FileLock(folder / ".lock").acquire(timeout=0):
            return False
    except Timeout:
        return not _is_dead(folder / ".holder.json")
    except (OSError, NotImplementedError):  # no locks here, or not for us: whoever needs the folder says so
        return False


@contextmanager
def turn(file: Path) -> Iterator[None]:
    """Let one process after another into the block, see `zoo.locks.turn`.

    Raises:
        TrainingError: if `file`, or its folder, cannot be written.
    """
    with ExitStack() as held:
        with writing(f'"{file}"', file.parent):
            held.enter_context(locks.turn(file))
        yield


def _acquire(lock: FileLock, holder: Path, folder: Path) -> bool:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            locked = locks.acquire(lock, timeout=0)
        except Timeout:
            if time.monotonic() > deadline or not _is_dead(holder):
                raise InUse(
                    f'run folder "{folder}" is in use by {_describe(holder)}; wait for it or stop it, or '
                    "choose another --out"
                ) from None
            time.sleep(0.1)
            continue
        if not locked:
            warnings.warn(
                f'"{folder}" lies on a file system without locks: nothing keeps a second process out of it',
                ZooWarning,
                stacklevel=2,
            )
        return locked


def _is_dead(holder: Path) -> bool:
    """Whether the process that took the lock is known to have ended; one of another host never is."""
    found = read_object(holder)
    pid = found.get("pid")
    if found.get("host") != socket.gethostname() or not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Whether a process has ended and its parent has not asked for its status yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] == "Z"


def _describe(holder: Path) -> str:
    found = read_object(holder)
    if not found:
        return "another process"
    if (found.get("pid"), found.get("host")) == (os.getpid(), socket.gethostname()):
        return f"this process (pid {found['pid']}) already, since {found.get('since')}"
    return f"process {found.get('pid')} on {found.get('host')} since {found.get('since')}"
