"""What torchrun, or another launcher, says in the environment, read without torch.

Each function raises a ZooError where the environment has no number.
"""

from __future__ import annotations

import os

from zoo.errors import ZooError


def launched() -> int:
    """Return how many processes train together; 1 without a launcher."""
    return _number("WORLD_SIZE", least=1)


def rank() -> int:
    """Return the number of this process, from 0."""
    return _number("RANK") if launched() > 1 else 0


def local_rank() -> int:
    """Return its number on its node, from 0."""
    return _number("LOCAL_RANK")


def processes_per_node() -> int:
    """Return among how many processes a node's cores are divided."""
    return _number("LOCAL_WORLD_SIZE", least=1)


def restarted() -> bool:
    """Whether torchrun has started this job again after a failure."""
    return _number("TORCHELASTIC_RESTART_COUNT") > 0


def forwards_signals() -> bool:
    """Whether a launcher forwards the signals that it gets, so that one may come twice."""
    return launched() > 1 or "TORCHELASTIC_RUN_ID" in os.environ


def _number(variable: str, least: int = 0) -> int:
    found = os.environ.get(variable, str(least))
    if not (found.isascii() and found.isdecimal() and int(found) >= least):
        expected = f"a whole number from {least} on, as torchrun sets it, or no such variable"
        raise ZooError(f'the variable {variable}: found "{found}", expected {expected}')
    return int(found)
