"""What Linux says of this process's memory."""

from __future__ import annotations

from pathlib import Path


def status(field: str) -> int:
    """Return the bytes of a field of `/proc/self/status`: `VmRSS` is held now, `VmHWM` was the most.

    Not `ru_maxrss`, which begins at what the parent had.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))
