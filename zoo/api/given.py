"""What callers give to several functions: names, one by one or as a list, and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zoo.config import plain_kind
from zoo.errors import ZooError


def listed(given: Sequence[Any]) -> Sequence[Any]:
    """Return what `*names` holds: each by itself, or all in one list."""
    return given[0] if len(given) == 1 and isinstance(given[0], list | tuple) else given


def check_workers(workers: int | None) -> None:
    """Make sure that so many processes can be started; None leaves it to a recipe.

    Raises:
        ZooError: naming what was found.
    """
    if workers is not None:
        check_number("workers", workers, 0)


def check_number(name: str, value: object, least: int) -> None:
    """Make sure that an argument is a whole number, of at least so many.

    Raises:
        ZooError: naming the argument and what was found.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ZooError(f"{name}: found {value!r}, expected {least} or more")


def check_path(name: str, path: object) -> None:
    """Make sure that an argument is a file's or folder's path; None is none.

    Raises:
        ZooError: naming the argument and what was found.
    """
    if path is not None and not isinstance(path, str | Path):
        raise ZooError(f"{name}: found {plain_kind(path)}, expected a path (str or Path)")
