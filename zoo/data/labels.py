"""Labels as files hold them: whole numbers, and the names of classes that have none; or words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from zoo.errors import DataError, did_you_mean

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


def classes_of(words: Sequence[str]) -> list[str]:
    """Return the classes of labels that are words, the training split's, in the order of their text."""
    return sorted(set(words))


def indices_of(
    words: Sequence[str], classes: Sequence[str], of: str, where: Callable[[int], str]
) -> NDArray[np.int64]:
    """Return the place of each word among the `classes`, `[N]`.

    Args:
        words: N labels.
        classes: their names, in order.
        of: what these are from, for messages.
        where: names the row of a label, for messages.

    Raises:
        DataError: for a word that is no class, or classes of one name.
    """
    places = {name: place for place, name in enumerate(classes)}
    if len(places) < len(classes):
        twice = next(name for place, name in enumerate(classes) if places[name] != place)
        raise DataError(f'{of}: found the class "{twice}" twice, expected each once: labels are words')
    unknown = next((row for row, word in enumerate(words) if word not in places), None)
    if unknown is not None:
        word = words[unknown]
        raise DataError(
            f'{where(unknown)}: label "{word[:80]}" is none of the {len(classes)} classes of {of}.'
            f"{did_you_mean(word, classes)}"
        )
    return np.array([places[word] for word in words], dtype=np.int64)
