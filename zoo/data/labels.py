"""Labels as data hold them: whole numbers from 0, with or without names of their classes, or text."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

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
        classes = list(dict.fromkeys(map(_composed, names or sorted(set(trained)))))
        places = {name: place for place, name in enumerate(classes)}
        found = np.array([places.get(_composed(label), -1) for label in labels], dtype=np.int64)
        if (found < 0).any():
            row = int(found.argmin())
            raise DataError(
                f'{where(row)}: label "{labels[row][:80]}" is none of the {len(classes)} classes of the '
                f"training split.{did_you_mean(labels[row], classes)}"
            )
        return found, classes
    numbers = _numbers(labels, where)
    count = len(names) if names else int(_numbers(trained, where).max(initial=-1)) + 1
    if numbers.max(initial=0) >= count:
        row = int(numbers.argmax())
        raise DataError(
            f"{where(row)}: found label {numbers[row]}, expected 0 to {count - 1}, as the training split has"
        )
    return numbers, [_composed(str(name)) for name in names or range(count)]


def _numbers(labels: Sequence[Any], where: Callable[[int], str]) -> NDArray[np.int64]:
    found = [label.item() if getattr(label, "shape", None) == () else label for label in labels]
    for row, label in enumerate(found):
        if not isinstance(label, int | float) or not 0 <= label < MAX_CLASSES or label != int(label):
            raise DataError(
                f"{where(row)}: found label {label!r}, expected 0, 1, ..., or text for all images"
            )
    return np.array(found, dtype=np.int64)


def _composed(name: str) -> str:
    """Return a name in the Unicode form NFC: macOS writes another one."""
    return unicodedata.normalize("NFC", name)


def require_same_classes(train: Sequence[str], test: Sequence[str], where: str = "") -> None:
    """Make sure that a training and a test split have the same classes in the same order.

    Raises:
        DataError: beginning with `where`, with the first class that differs.
    """
    if tuple(train) != tuple(test):
        odd = next(iter({*train} ^ {*test}), None)
        differs = "the same in another order" if odd is None else f'"{odd[:80]}" is in one of them alone'
        raise DataError(
            f"{where}training and test split have other classes, {len(train)} and {len(test)}: {differs}"
        )
