"""Seeded selection of images and labels: long tails, subsets, partial labels, stratified splits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zoo.data.config import GroupedCandidates, LongTail, Subset, UniformCandidates
from zoo.errors import DataError

Integers = NDArray[np.int64]


def select_long_tail(config: LongTail, labels: Integers, num_classes: int) -> Integers:
    """Return the indices to keep of `labels` `[N]`, class by class, in shuffled order within a class.

    NumPy's legacy RandomState(seed) shuffles each class's indices, in class order and from one stream, and
    the first n_c = int(n_max * (1 / imbalance)^(c / (C - 1))) are kept. n_max is `max_per_class`, by default
    the size of the smallest class. Raises DataError naming the first class that would keep no image, or more
    than it has. Source: LDAM (1906.07413), `imbalance_cifar.py` in https://github.com/kaidic/LDAM-DRW
    """
    if num_classes < 2:
        raise DataError(f"long_tail: the data has {num_classes} class, expected at least 2")
    random = np.random.RandomState(config.seed)  # the literature's generator
    n_max = config.max_per_class or int(np.bincount(labels, minlength=num_classes).min())
    kept = []
    for c in range(num_classes):
        size = int(n_max * (1 / config.imbalance) ** (c / (num_classes - 1)))
        members = np.flatnonzero(labels == c)
        if not 0 < size <= len(members):
            found = f"class {c} has {len(members)} images and would keep {size}"
            hint = "lower imbalance or max_per_class; of long-tailed data: --set data.long_tail=null"
            raise DataError(f"long_tail: {found}; {hint}")
        random.shuffle(members)
        kept.append(members[:size])
    return np.concatenate(kept).astype(np.int64)


def select_subset(config: Subset, labels: Integers, num_classes: int) -> Integers:
    """Return the ascending indices of the labelled images to keep, given all `labels` `[N]`.

    NumPy's legacy RandomState(seed) permutes each class's indices, in class order and from one stream, and
    the first ones are kept: with one seed, 1 % of the labels are a subset of 10 %. A class keeps its rounded
    `fraction` (half to even), at least one image. DataError names a class with fewer than `per_class` images.
    """
    random = np.random.RandomState(config.seed)  # its stream never changes between versions
    kept = []
    for c in range(num_classes):
        members = random.permutation(np.flatnonzero(labels == c))
        count = len(members)
        size = config.per_class or min(count, max(1, round((config.fraction or 0) * count)))
        if size > count:
            raise DataError(f"subset: class {c} has {count} images, expected at least per_class ({size})")
        kept.append(members[:size])
    return np.sort(np.concatenate(kept)).astype(np.int64)


def draw_candidates(
    config: UniformCandidates | GroupedCandidates, labels: Integers, class_names: Sequence[str]
) -> NDArray[np.bool_]:
    """Return partial labels `[N, C]`: the possible classes of each image, including the true one.

    Class c is possible for image i if number i C + c of NumPy's legacy RandomState(seed) is below `rate` and,
    for `grouped`, c is in the true label's group; the true label always is. Source: PiCO
    (https://arxiv.org/abs/2201.08984), sections 4.1 and 4.4; authors' code https://github.com/hbzju/PiCO,
    `utils/utils_algo.py`.

    `labels` `[N]` are the true classes. Raises DataError unless every class is in exactly one group.
    """
    random = np.random.RandomState(config.seed)  # its stream never changes between versions
    candidates: NDArray[np.bool_] = random.random_sample((len(labels), len(class_names))) < config.rate
    if isinstance(config, GroupedCandidates):
        group_of = {name: number for number, names in enumerate(config.groups) for name in names}
        if sorted(name for names in config.groups for name in names) != sorted(class_names):
            odd = ", ".join(sorted({*group_of} ^ {*class_names})) or "one that is there twice"
            raise DataError(f"partial_labels.groups: found {odd[:80]}, expected each class once")
        group = np.array([group_of[name] for name in class_names])
        candidates &= group[labels, None] == group
    candidates[np.arange(len(labels)), labels] = True
    return candidates


def rank_in_class(labels: Tensor, seed: int) -> Tensor:
    """Return the rank `[N]` of each row in a random order of its class, from 0, on the CPU.

    So `rank < n` draws n rows of each class, and a smaller n draws a subset. `labels` `[N]` start at 0.
    """
    labels = labels.cpu()
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator)
    order = order[labels[order].argsort(stable=True)]  # grouped by class, shuffled inside each
    counts = torch.bincount(labels)
    rank = torch.arange(len(labels)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    return torch.empty_like(rank).index_copy_(0, order, rank)


def stratified_split(labels: Integers, fraction: float, seed: int) -> tuple[Integers, Integers]:
    """Return ascending row indices (rest, held out): about `fraction` of every class is held out.

    From 1 to n - 1 rows of a class with n >= 2 rows are held out, and none of a class with one row.
    """
    counts = np.bincount(labels).astype(np.float32)
    held = np.minimum(np.rint(counts * np.float32(fraction)).clip(min=1), counts - 1).clip(min=0)
    is_held = rank_in_class(torch.from_numpy(labels.copy()), seed).numpy() < held[labels]
    return np.flatnonzero(~is_held), np.flatnonzero(is_held)
