"""Memory that a training frees and takes again, step after step."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of glibc's malloc.h
_KEPT = 2**31 - 1  # bytes, the most that mallopt takes: larger than any activation of a step on a CPU
_REFUSED, _OLD_MOST = 0, 32 * 2**20  # older versions of glibc refuse a threshold above HEAP_MAX_SIZE / 2


def keep_freed_memory() -> bool:
    """Let this process keep what it frees, where the C library is glibc.

    By default glibc hands large blocks, and the free top of its heap, back to the system at once. A training
    on a CPU frees its activations in every step and takes as much again in the next, and the system has to
    clear each page once more: 8 % of a step of ResNet-32 on 128 images (`tests.benchmarks.heap`, AMD EPYC).
    Between peaks the process holds on to the memory, and the peak grows by a few percent. That is for a
    program to decide, not for a library: the command line calls this before it trains.

    Returns:
        Whether there was something to set; not with another C library, or on another system.

    Source: https://man7.org/linux/man-pages/man3/mallopt.3.html
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # musl, macOS; Windows
        return False
    # This one first: with the other alone, every larger block would be mapped and cleared anew in each step.
    for most in (_KEPT, _OLD_MOST):
        if mallopt(_MMAP_THRESHOLD, most) != _REFUSED:
            return bool(mallopt(_TRIM_THRESHOLD, _KEPT))
    return False
