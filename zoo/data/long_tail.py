"""Long-tailed subsets of a data set: which images the literature would keep."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from zoo.data.config import LongTail
from zoo.errors import DataError

_NO_TAIL = "of data that are long-tailed already: --set data.long_tail=null"


def class_sizes(config: LongTail, n_max: int, num_classes: int) -> list[int]:
    """Return how many images of each class are kept, `[C]`, before any check that there are as many.

    Exponential: n_c = int(n_max * IF^(c / (C - 1))); step: n_max for the first C // 2 classes,
    int(n_max * IF) for the others, with IF = 1 / imbalance. Source: LDAM (1906.07413), its
    `imbalance_cifar.py` in https://github.com/kaidic/LDAM-DRW
    """
    factor = 1 / config.imbalance
    if config.profile == "step":
        head = num_classes // 2
        return [n_max] * head + [int(n_max * factor)] * (num_classes - head)
    return [int(n_max * factor ** (c / (num_classes - 1))) for c in range(num_classes)]


def class_word(c: int, names: Sequence[str]) -> str:
    """Say which class an error is about: by its name where that is known."""
    return f'class "{names[c]}"' if names else f"class {c}"


def select_long_tail(
    config: LongTail, labels: NDArray[np.int64], num_classes: int, names: Sequence[str] = ()
) -> NDArray[np.int64]:
    """Return the kept positions in `labels` `[N]`, class by class, in the shuffled order within a class.

    As in LDAM's code, NumPy's legacy RandomState(seed) shuffles the positions of each class, in class order
    and from one stream, and the first n_c stay. n_max is `max_per_class`, by default the size of the
    smallest class: that of every class where data is balanced, as in the literature, and always feasible.

    Args:
        config: profile, imbalance, seed and n_max.
        labels: `[N]`.
        num_classes: C.
        names: of the classes, for the errors.

    Raises:
        DataError: naming the first class that has fewer images than its n_c, or that would keep none.
    """
    counts = np.bincount(labels, minlength=num_classes)
    if num_classes < 2:
        raise DataError(f"long_tail: the data has {num_classes} class, expected at least 2")
    smallest = int(counts.argmin())
    if counts[smallest] == 0:
        raise DataError(
            f"long_tail: {class_word(smallest, names)} has no images, expected some of every class"
        )
    n_max = config.max_per_class or int(counts[smallest])
    sizes = class_sizes(config, n_max, num_classes)
    for c, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        if size > count:
            raise DataError(
                f"long_tail: {class_word(c, names)} has {count} images, the {config.profile} profile with "
                f"imbalance {config.imbalance:g} and max_per_class {n_max} keeps {size} of it; lower "
                f"max_per_class; {_NO_TAIL}"
            )
        if size == 0:
            of = "max_per_class" if config.max_per_class else f"all of {class_word(smallest, names)}"
            raise DataError(
                f"long_tail: {class_word(c, names)} would keep no image with imbalance {config.imbalance:g} "
                f"and at most {n_max} images of a class ({of}); expected an imbalance of at most {n_max}; "
                f"{_NO_TAIL}"
            )
    random = np.random.RandomState(config.seed)  # the literature's generator
    kept = []
    for c, size in enumerate(sizes):
        members = np.flatnonzero(labels == c)
        random.shuffle(members)
        kept.append(members[:size])
    return np.concatenate(kept).astype(np.int64)
