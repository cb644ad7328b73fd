"""Which training images, and labels, are kept: long tails, few labels, and partial labels, from a seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zoo.data.config import GroupedCandidates, LongTail, Subset, UniformCandidates
from zoo.errors import DataError, did_you_mean

CHUNK = 1 << 22  # entries at a time: 32 MiB of float64 where the whole of ImageNet would be 9.6 GB


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
        raise DataError(f"long_tail: {_called(smallest, names)} has no images, expected some of every class")
    n_max = config.max_per_class or int(counts[smallest])
    sizes = class_sizes(config, n_max, num_classes)
    for c, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        if not 0 < size <= count:
            raise DataError(
                f"long_tail: {_called(c, names)} has {count} images and would keep {size}, with imbalance "
                f"{config.imbalance:g} and at most {n_max} images of a class; lower the imbalance or "
                "max_per_class; of data that are long-tailed already: --set data.long_tail=null"
            )
    random = np.random.RandomState(config.seed)  # the literature's generator
    kept = []
    for c, size in enumerate(sizes):
        members = np.flatnonzero(labels == c)
        random.shuffle(members)
        kept.append(members[:size])
    return np.concatenate(kept).astype(np.int64)


def _called(c: int, names: Sequence[str]) -> str:
    return f'class "{names[c]}"' if names else f"class {c}"


def select_subset(
    config: Subset, labels: NDArray[np.int64], num_classes: int, names: Sequence[str] = ()
) -> NDArray[np.int64]:
    """Return the positions of few labelled images in `labels` `[N]`, in their order.

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
        size = config.per_class or min(count, max(1, round((config.fraction or 0) * count)))
        if size > count:
            raise DataError(
                f"subset: {_called(c, names)} has {count} images, expected at least per_class ({size}); "
                "lower it, or give a fraction"
            )
        kept.append(members[:size])
    return np.sort(np.concatenate(kept)).astype(np.int64)


def draw_candidates(
    config: UniformCandidates | GroupedCandidates, labels: NDArray[np.int64], class_names: Sequence[str]
) -> NDArray[np.bool_]:
    """Draw partial labels: which classes are possible for each image, exactly one of which is the true one.

    Entry (i, c) is possible when number i C + c of NumPy's legacy RandomState(seed) is below `rate`, and for
    `grouped` only where c is in the group of the true label; the true label always is. With one seed,
    `grouped` is `uniform` cut to the groups. Source: PiCO (https://arxiv.org/abs/2201.08984), sections 4.1
    and 4.4; authors' code https://github.com/hbzju/PiCO, `utils/utils_algo.py`.

    Args:
        config: how.
        labels: true class of each image `[N]`.
        class_names: of the C classes.

    Returns:
        Candidates `[N, C]`.

    Raises:
        DataError: for groups that do not have every class exactly once.
    """
    count, classes = len(labels), len(class_names)
    group = _group_of(config.groups, class_names) if isinstance(config, GroupedCandidates) else None
    random = np.random.RandomState(config.seed)  # its stream never changes between versions
    candidates = np.empty((count, classes), dtype=np.bool_)
    for rows in _chunks(count, classes):
        drawn = random.random_sample((rows.stop - rows.start, classes)) < config.rate
        if group is not None:
            drawn &= group[labels[rows], None] == group
        candidates[rows] = drawn
    candidates[np.arange(count), labels] = True
    return candidates


def as_candidates(matrix: ArrayLike, labels: NDArray[np.int64], num_classes: int) -> NDArray[np.bool_]:
    """Return a checked copy of candidates `[N, C]`.

    Args:
        matrix: bool or 0 and 1.
        labels: true class of each image `[N]`.
        num_classes: C.

    Raises:
        DataError: for another shape, other values, or rows without their true label.
    """
    given = np.asarray(matrix)
    if given.shape != (len(labels), num_classes):
        raise DataError(
            f"partial_labels: found candidates of shape {list(given.shape)}, expected [N, C] = "
            f"[{len(labels)}, {num_classes}]: a row for each training image (after long_tail), a column for "
            "each class"
        )
    candidates: NDArray[np.bool_] = np.asarray(given == 1)
    if not (candidates | (given == 0)).all():
        raise DataError("partial_labels: found other values than bool, or 0 and 1")
    lacking = np.flatnonzero(~candidates[np.arange(len(labels)), labels])
    if len(lacking):
        first = int(lacking[0])
        raise DataError(
            f"partial_labels: {len(lacking)} of {len(labels)} rows lack the true label, the first is row "
            f"{first} with label {labels[first]}; expected it in every row"
        )
    return candidates


def _chunks(rows: int, columns: int) -> Iterator[slice]:
    step = max(1, CHUNK // columns)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def _group_of(groups: Sequence[Sequence[str]], class_names: Sequence[str]) -> NDArray[np.int64]:
    """Return the number of the group of each class `[C]`."""
    group_of = {name: number for number, group in enumerate(groups) for name in group}
    unknown = next((name for name in group_of if name not in class_names), None)
    if unknown is not None:
        raise DataError(
            f'partial_labels.groups: "{unknown}" is no class of the data.{did_you_mean(unknown, class_names)}'
        )
    missing = [name for name in class_names if name not in group_of]
    if missing or len(group_of) < len(class_names):  # e.g. ImageNet has two classes "crane"
        what = f'class "{missing[0]}" is in no group' if missing else "several classes have one name"
        raise DataError(
            f"partial_labels.groups: {what}, expected each of the {len(class_names)} classes in exactly one"
        )
    return np.array([group_of[name] for name in class_names], dtype=np.int64)
