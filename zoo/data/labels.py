"""Labels as data hold them: whole numbers, with or without names of their classes, or text."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zoo.errors import DataError, did_you_mean

MAX_CLASSES = 1 << 21  # far above any data set's: a label beyond is a mistake
_DIGITS = 18  # of the largest number that int64 surely holds


def is_whole(text: str) -> bool:
    """Whether `text` is 0, 1, ... in ASCII digits, and fits into int64."""
    return text.isascii() and text.isdecimal() and len(text.lstrip("0")) <= _DIGITS


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
        DataError: for numbers beside text, a label that is no class, or two classes of one name.
    """
    trained = labels if of_training is None else of_training
    if {type(label) is str for each in (labels, trained) for label in each} == {True}:
        classes = list(names or sorted(set(trained)))
        places = {name: place for place, name in enumerate(classes)}
        if len(places) < len(classes):
            twice = next(name for place, name in enumerate(classes) if places[name] != place)
            raise DataError(f'labels: found the class "{twice}" twice, expected each once: labels are text')
        for row, label in enumerate(labels):
            if label not in places:
                raise DataError(
                    f'{where(row)}: label "{label[:80]}" is none of the {len(classes)} classes of the '
                    f"training split.{nearest_class(label, classes)}"
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
    return numbers, [str(name) for name in names]


def _numbers(labels: Sequence[Any], where: Callable[[int], str]) -> NDArray[np.int64]:
    """Return labels `[N]` that are whole numbers from 0, in any type of number."""
    found = [label.item() if hasattr(label, "item") else label for label in labels]
    for row, label in enumerate(found):
        if not isinstance(label, int | float) or not 0 <= label < MAX_CLASSES or label != int(label):
            raise DataError(
                f"{where(row)}: found label {label!r}, expected 0, 1, ... below {MAX_CLASSES:,}, or text for "
                "all images"
            )
    return np.array(found, dtype=np.int64)


def nearest_class(name: str, names: Iterable[str]) -> str:
    """Suggest the nearest of the `names`; say where it is the same word in another Unicode form."""
    names = list(names)
    if _composed(name) in map(_composed, names):
        return f" {OTHER_FORM}"
    return did_you_mean(name, names)


OTHER_FORM = "It differs in the Unicode form of its letters alone (NFC, or NFD as macOS writes): rename one"


def look_alike(names: Sequence[str]) -> str | None:
    """Return a name that another one equals but for its Unicode form; None: there is none."""
    different = set(names)
    seen = dict[str, str]()
    return next((name for name in different if seen.setdefault(_composed(name), name) != name), None)


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def require_same_classes(train: Sequence[str], test: Sequence[str], where: str = "") -> None:
    """Make sure that a training and a test split have the same classes in the same order.

    Raises:
        DataError: beginning with `where`, with the first classes that differ.
    """
    if tuple(train) == tuple(test):
        return
    told = f"{where}training and test split have other classes, {len(train)} and {len(test)}"
    if [*map(_composed, train)] == [*map(_composed, test)]:
        name = next(ours for ours, theirs in zip(train, test, strict=True) if ours != theirs)
        raise DataError(f'{told}: "{name}". {OTHER_FORM}')
    for names, others, which in ((train, set(test), "training"), (test, set(train), "test")):
        only = [f'"{name[:80]}"' for name in names if name not in others]
        told += f"; only {which} has {', '.join(only[:3])}" if only else ""
    for place, (ours, theirs) in enumerate(zip(train, test, strict=False)):
        if ours != theirs:
            raise DataError(f'{told}; class {place} is "{ours[:80]}" in training, "{theirs[:80]}" in test')
    raise DataError(told)
