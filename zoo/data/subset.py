"""Few labels: a part of each class, the same for every run with one seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from zoo.data.config import Subset
from zoo.data.long_tail import class_word
from zoo.errors import DataError


def select_subset(
    config: Subset, labels: NDArray[np.int64], num_classes: int, names: Sequence[str] = ()
) -> NDArray[np.int64]:
    """Return the kept positions in `labels` `[N]`, in their order.

    NumPy's legacy RandomState(seed) permutes the positions of each class, in class order and from one stream,
    and the first ones stay: so with one seed 1 % of the labels are among the 10 %. A class keeps its
    `fraction` rounded to the nearest image (a half to the even one), and one at least; a class without images
    has none to keep. `names`, of the classes, are for the error.

    Raises:
        DataError: naming the first class that has fewer than `per_class` images.
    """
    random = np.random.RandomState(config.seed)  # its stream never changes between versions
    kept = []
    for c in range(num_classes):
        members = random.permutation(np.flatnonzero(labels == c))
        count = len(members)
        if config.per_class is None:
            size = min(count, max(1, round((config.fraction or 0) * count)))
        else:
            size = config.per_class
        if size > count:
            raise DataError(
                f"subset: {class_word(c, names)} has {count} images, expected at least per_class ({size}); "
                "lower it, or give a fraction"
            )
        kept.append(members[:size])
    return np.sort(np.concatenate(kept)).astype(np.int64)
