"""How much memory malloc takes from the system with and without `zoo.allocator`.

Prints one JSON line, in MiB. Unlike page faults, which depend on how many pages the kernel brings with each
and on where the heap came to lie, these numbers are the C library's own.

python -m tests.programs.held kept|given_back
"""

from __future__ import annotations

import ctypes
import json
import sys

from zoo.allocator import keep_freed_memory

# MiB: above 32, the largest threshold that glibc adapts itself to; each fits into the one before, aligned.
BLOCKS = 64, 60, 56, 52


class MallInfo2(ctypes.Structure):
    """What glibc says of its heap. Source: https://man7.org/linux/man-pages/man3/mallinfo.3.html."""

    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")] + [
        (name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    ]


def main() -> None:
    """Take and free the blocks one after the other, and say what the system had to give for each."""
    keep = sys.argv[1] == "kept" and keep_freed_memory()
    import torch  # after the heap is set, as in the command line

    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    taken = []
    if mallinfo2 is not None:  # glibc 2.33
        mallinfo2.restype = MallInfo2
        for size in BLOCKS:
            before = mallinfo2()
            block = torch.empty(size * 2**20, dtype=torch.uint8)
            after = mallinfo2()
            taken.append((after.arena + after.hblkhd - before.arena - before.hblkhd) / 2**20)
            del block
    print(json.dumps({"kept": keep, "taken": taken}))


if __name__ == "__main__":
    main()
