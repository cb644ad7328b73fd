"""Labels as data hold them: whole numbers from 0, with or without names of their classes, or text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from zoo.errors import DataError, did_you_mean

MAX_CLASSES = 1 << 21  # far above any data set's: a label beyond is a mistake


def class_labels(
    labels: Sequence[Any],
    where: Callable[[int], str],
    *,
    of_training: Sequence[Any] | None = None,
    names: Sequence[str] | None = None,
) -> tuple[NDArray[np.int64], list[str]]:
    """Return the class of each image `[N]`, int64, and the names of the C classes, in the Unicode form NFC.

    The classes of text are the training split's words, sorted; of numbers "0", "1", ... up to its largest.

    Args:
        labels: N whole numbers from 0, or N texts.
        where: names the row of a label, for errors.
        of_training: the training split's, where `labels` are another split's.
        names: of the classes in order, where the data say.

    Raises:
        DataError: for numbers beside text, or a label that is no class.
    """
    trained = labels if of_training is None else of_training
    if all(isinstance(label, str) for each in (labels, trained) for label in each):
        classes = list(dict.fromkeys(normalize("NFC", name) for name in names or sorted({*trained})))
        places = {name: place for place, name in enumerate(classes)}
        numbers = np.array([places.get(normalize("NFC", label), -1) for label in labels], dtype=np.int64)
        expected = f"one of the training split's {len(classes)} classes"
    else:
        numbers = np.array([_number(label) for label in labels], dtype=np.int64)
        count = len(names) if names else max(map(_number, trained), default=-1) + 1
        classes = [normalize("NFC", str(name)) for name in names or range(count)]
        numbers[numbers >= count] = -1
        expected = f"0 to {count - 1}, or text for all images"
    if (numbers < 0).any():
        row = int(numbers.argmin())
        hint = did_you_mean(labels[row], classes)
        raise DataError(f"{where(row)}: found label {str(labels[row])[:80]!r}, expected {expected}.{hint}")
    return numbers, classes


def _number(label: Any) -> int:
    """Return a label of any type of number; -1: it is no class."""
    value = label.item() if getattr(label, "shape", None) == () else label
    is_class = isinstance(value, int | float) and 0 <= value < MAX_CLASSES and value == int(value)
    return int(value) if is_class else -1


def require_same_classes(train: Sequence[str], test: Sequence[str], where: str = "") -> None:
    """Make sure that a training and a test split have the same classes in the same order.

    Raises:
        DataError: beginning with `where`, with the first class that differs.
    """
    if tuple(train) != tuple(test):
        odd = min({*train} ^ {*test}, default=None)
        differs = "the same in another order" if odd is None else f'"{odd[:80]}" is in one of them alone'
        raise DataError(
            f"{where}training and test split have other classes, {len(train)} and {len(test)}: {differs}"
        )
