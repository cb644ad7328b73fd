"""Labels as files hold them: whole numbers, and the names of classes that have none."""

from __future__ import annotations

from zoo.errors import DataError

MAX_CLASSES = 1 << 21  # far above any data set's: a label beyond is a mistake
_DIGITS = 18  # of the largest number that int64 surely holds


def is_whole(text: str) -> bool:
    """Whether `text` is 0, 1, ... in ASCII digits, and fits into int64."""
    return text.isascii() and text.isdecimal() and len(text.lstrip("0")) <= _DIGITS


def numbered(largest: int, where: str) -> list[str]:
    """Return the names "0", "1", ... of classes up to the `largest` label.

    Raises:
        DataError: beginning with `where`, for more classes than can be.
    """
    if largest >= MAX_CLASSES:
        raise DataError(f"{where}: found label {largest}, expected at most {MAX_CLASSES:,} classes")
    return [str(c) for c in range(largest + 1)]
