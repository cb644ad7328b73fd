"""What a launcher such as torchrun says in the environment, read without torch."""

from __future__ import annotations

import os


def launched() -> int:
    """Return how many processes have been started for this job; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Return the number of this one, from 0."""
    return int(os.environ.get("RANK", "0")) if launched() > 1 else 0


def local_rank() -> int:
    """Return its number on its node, from 0."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def restarted() -> bool:
    """Whether torchrun has started this job again after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
