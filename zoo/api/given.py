"""What callers give to several functions: names, one by one or as a list, and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zoo.errors import ZooError


def listed(given: Sequence[Any]) -> Sequence[Any]:
    """Return what `*names` holds: each by itself, or all in one list."""
    return given[0] if len(given) == 1 and isinstance(given[0], list | tuple) else given


def check_workers(workers: int | None) -> None:
    """Make sure that so many processes can be started; None leaves it to a recipe.

    Raises:
        ZooError: naming what was found.
    """
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 0):
        raise ZooError(f"workers: found {workers!r}, expected 0 or more")
