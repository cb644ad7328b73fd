"""Labels as data hold them: whole numbers, with or without names of their classes, or text."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zoo.errors import DataError, did_you_mean

MAX_CLASSES = 1 << 21  # far above any data set's: a label beyond is a mistake
OTHER_FORM = "It differs in the Unicode form of its letters alone (NFC, or NFD as macOS writes): rename one"


def class_labels(
    labels: Sequence[Any],
    where: Callable[[int], str],
    *,
    of_training: Sequence[Any] | None = None,
    names: Sequence[str] | None = None,
) -> tuple[NDArray[np.int64], list[str]]:
    """Return the class of each image `[N]`, int64, and the names of the C classes.

    Text stays text: its classes are the training split's words in sorted order. Numbers without names are
    called "0", "1", ... up to the largest label of the training split.

    Args:
        labels: N whole numbers from 0, or N texts.
        where: names the row of a label, for errors.
        of_training: the training split's, where `labels` are another split's; None: these are they.
        names: of the classes in order, where the data say.

    Raises:
        DataError: for numbers beside text, or a label that is no class.
    """
    trained = labels if of_training is None else of_training
    if all(isinstance(label, str) for each in (labels, trained) for label in each):
        classes = list(names or sorted(set(trained)))
        places = {name: place for place, name in enumerate(classes)}
        row = next((row for row, label in enumerate(labels) if label not in places), None)
        if row is not None:
            raise DataError(
                f'{where(row)}: label "{labels[row][:80]}" is none of the {len(classes)} classes of the '
                f"training split.{nearest_class(labels[row], classes)}"
            )
        return np.array([places[label] for label in labels], dtype=np.int64), classes
    numbers = _numbers(labels, where)
    if names is None:
        names = [str(c) for c in range(int(_numbers(trained, where).max(initial=0)) + 1)]
    if numbers.max(initial=0) >= len(names):
        row = int(numbers.argmax())
        raise DataError(
            f"{where(row)}: found label {numbers[row]}, expected 0 to {len(names) - 1}, the classes of the "
            "training split"
        )
    return numbers, list(map(str, names))


def _numbers(labels: Sequence[Any], where: Callable[[int], str]) -> NDArray[np.int64]:
    """Return labels `[N]` that are whole numbers from 0, in any type of number."""
    found = [label.item() if getattr(label, "shape", None) == () else label for label in labels]
    for row, label in enumerate(found):
        if not isinstance(label, int | float) or not 0 <= label < MAX_CLASSES or label != int(label):
            raise DataError(
                f"{where(row)}: found label {label!r}, expected 0, 1, ..., or text for all images"
            )
    return np.array(found, dtype=np.int64)


def nearest_class(name: str, names: Iterable[str]) -> str:
    """Suggest the nearest of the `names`; say where it is the same word in another Unicode form."""
    names = list(names)
    return f" {OTHER_FORM}" if composed(name) in map(composed, names) else did_you_mean(name, names)


def composed(name: str) -> str:
    """Return a name in the Unicode form NFC, in which names that look alike are equal."""
    return unicodedata.normalize("NFC", name)


def require_same_classes(train: Sequence[str], test: Sequence[str], where: str = "") -> None:
    """Make sure that a training and a test split have the same classes in the same order.

    Raises:
        DataError: beginning with `where`, with the first class that differs.
    """
    if tuple(train) == tuple(test):
        return
    odd = next(iter([*(set(test) - set(train)), *(set(train) - set(test))]), None)
    differs = "the same in another order" if odd is None else f'"{odd[:80]}" is in one of them alone'
    raise DataError(
        f"{where}training and test split have other classes, {len(train)} and {len(test)}: {differs}."
        f"{nearest_class(odd, train if odd in test else test) if odd else ''}"
    )
