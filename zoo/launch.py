"""What a launcher such as torchrun says in the environment, read without torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from zoo.errors import ZooError

_PLACE = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK")
_crowd = 1
_neighbours = 1
_others_wait = False


def launched() -> int:
    """Return how many processes have been started for this job; 1 without a launcher.

    Raises:
        ZooError: where the environment has no number; so do `rank`, `local_rank`, `neighbours` and
            `restarted`.
    """
    return _number("WORLD_SIZE", least=1)


def rank() -> int:
    """Return the number of this one, from 0."""
    return _number("RANK") if launched() > 1 else 0


def local_rank() -> int:
    """Return its number on its node, from 0."""
    return _number("LOCAL_RANK")


def neighbours() -> int:
    """Return among how many processes a node's cores are divided: those started on it together.

    Also inside `alone`, where each has work of its own; 1 inside `others_waiting`, and without a launcher.
    """
    return 1 if _others_wait else max(_number("LOCAL_WORLD_SIZE", least=1), _neighbours)


def restarted() -> bool:
    """Whether torchrun has started this job again after a failure."""
    return _number("TORCHELASTIC_RESTART_COUNT") > 0


def handed_on() -> bool:
    """Whether a launcher hands on the signals that it gets, so that one may come twice."""
    return launched() > 1 or "TORCHELASTIC_RUN_ID" in os.environ


def job() -> str | None:
    """Name what started several processes with one command, the same in all of them.

    That is a start of torchrun (on however many nodes), or an array job of SLURM; None for a process that
    a person started.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
        return "torchrun " + " ".join(os.environ.get(name, "") for name in names)
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return None if array is None else f"slurm {array}"


def _number(variable: str, least: int = 0) -> int:
    """Return what a launcher says in a variable of the environment; `least` where it is not set."""
    found = os.environ.get(variable)
    if found is None:
        return least
    if not (found.isascii() and found.isdecimal() and int(found) >= least):
        raise ZooError(
            f'the variable {variable}: found "{found}", expected a whole number from {least} on, as torchrun '
            f"sets it; without a launcher it is not to be set: unset {variable}"
        )
    return int(found)


def crowd() -> int:
    """Return how many processes were started together, also inside `alone`: they share a terminal."""
    return max(launched(), _crowd)


@contextmanager
def alone() -> Iterator[None]:
    """Let this process, and those that it starts, act inside the block as if no launcher had started it."""
    global _crowd, _neighbours
    before, kept = (_crowd, _neighbours), {n: os.environ[n] for n in _PLACE if n in os.environ}
    _crowd, _neighbours = crowd(), neighbours()
    for name in kept:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(kept)
        _crowd, _neighbours = before


@contextmanager
def others_waiting() -> Iterator[None]:
    """Inside the block the other ranks of this training wait for this one, which has its node for itself."""
    global _others_wait  # noqa: PLW0603
    before, _others_wait = _others_wait, launched() > 1
    try:
        yield
    finally:
        _others_wait = before
