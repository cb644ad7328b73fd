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


def require_same_classes(train: Sequence[str], test: Sequence[str], where: str = "") -> None:
    """Make sure that a training and a test split have the same classes in the same order.

    Raises:
        DataError: beginning with `where`, with the first classes that differ.
    """
    if tuple(train) != tuple(test):
        raise DataError(
            f"{where}training and test split have other classes, {len(train)} and {len(test)}: "
            f"{difference(train, test, 'training', 'test')}"
        )


def difference(ours: Sequence[str], theirs: Sequence[str], us: str, them: str) -> str:
    """Say how two lists of classes that are not equal differ: in names, or else the first place that does."""
    lacking = [
        f"only {who} has {_few(only)}"
        for only, who in ((_without(ours, theirs), us), (_without(theirs, ours), them))
        if only
    ]
    if lacking:
        return ", ".join(lacking)
    place = next((c for c, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    if place is None:
        return "one has names twice"
    return f'class {place} is "{ours[place]}" in {us} and "{theirs[place]}" in {them}'


def _without(names: Sequence[str], others: Sequence[str]) -> list[str]:
    known = set(others)
    return [name for name in dict.fromkeys(names) if name not in known]


def _few(names: Sequence[str]) -> str:
    return ", ".join(f'"{name[:80]}"' for name in names[:3]) + (", ..." if len(names) > 3 else "")


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
