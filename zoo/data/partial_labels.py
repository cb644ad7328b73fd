"""Partial labels: for each image the classes that are possible, exactly one of which is the true one.

Source: PiCO (https://arxiv.org/abs/2201.08984), sections 4.1 and 4.4; authors' code
https://github.com/hbzju/PiCO, `utils/utils_algo.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zoo.data.config import GroupedCandidates, UniformCandidates
from zoo.errors import DataError, did_you_mean

CHUNK = 1 << 22  # entries at a time: 32 MiB of float64 where the whole of ImageNet would be 9.6 GB


def draw_candidates(
    config: UniformCandidates | GroupedCandidates, labels: NDArray[np.int64], class_names: Sequence[str]
) -> NDArray[np.bool_]:
    """Draw which classes are possible for each image.

    Entry (i, c) is possible when number i C + c of NumPy's legacy RandomState(seed) is below `rate`, and for
    `grouped` only where c is in the group of the true label; the true label always is. The authors draw so
    too, from NumPy's global generator. With one seed, `grouped` is `uniform` cut to the groups.

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


def read_candidates(file: Path) -> NDArray[np.generic]:
    """Read a matrix from a `.npy` file; `as_candidates` checks it.

    The file is mapped into memory, not read: one whose header lies cannot ask for more than it has.

    Raises:
        DataError: when it is no such file, or holds Python objects, which would be unpickled.
    """
    try:
        matrix = np.load(file, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # NumPy reads the header as Python, and passes on whatever that raises
        known = isinstance(error, OSError | ValueError | EOFError)
        reason = " ".join(str(error).split()) if known else "its header is damaged"
        raise DataError(
            f"partial_labels: {file} cannot be read as a .npy matrix of bool [N, C]: {reason}"
        ) from None
    if not isinstance(matrix, np.ndarray):
        matrix.close()
        raise DataError(f"partial_labels: {file} is an archive of arrays (.npz), expected one matrix (.npy)")
    return matrix


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
    if given.dtype.kind not in "biuf":
        raise DataError(f"partial_labels: found candidates of type {given.dtype}, expected bool, or 0 and 1")
    candidates = np.empty(given.shape, dtype=np.bool_)
    for rows in _chunks(*given.shape):
        chunk = given[rows]
        other = (chunk != 0) & (chunk != 1)
        if other.any():
            row, column = np.argwhere(other)[0]
            raise DataError(
                f"partial_labels: found {chunk[row, column]} in row {rows.start + row}, column {column}, "
                "expected bool, or 0 and 1"
            )
        candidates[rows] = chunk
    lacking = np.flatnonzero(~candidates[np.arange(len(labels)), labels])
    if len(lacking):
        first = int(lacking[0])
        raise DataError(
            f"partial_labels: {len(lacking)} of {len(labels)} rows lack the true label, the first is row "
            f"{first} with label {labels[first]}; expected it in every row, and the rows in the order of the "
            "data set (after long_tail)"
        )
    return candidates


def _chunks(rows: int, columns: int) -> Iterator[slice]:
    step = max(1, CHUNK // columns)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def _group_of(groups: Sequence[Sequence[str]], class_names: Sequence[str]) -> NDArray[np.int64]:
    """Return the number of the group of each class `[C]`."""
    group_of = {name: number for number, group in enumerate(groups) for name in group}
    for name, number in group_of.items():
        if name not in class_names:
            raise DataError(
                f'partial_labels.groups: "{name}" in group {number} is no class of the data.'
                f"{did_you_mean(name, class_names)}"
            )
    missing = [name for name in class_names if name not in group_of]
    if missing:
        raise DataError(
            f'partial_labels.groups: class "{missing[0]}" is in no group, expected each of the '
            f"{len(class_names)} classes of the data in exactly one; {len(missing)} in all are missing"
        )
    if len(group_of) < len(class_names):  # e.g. ImageNet has two classes "crane"
        twice = next(name for name in class_names if class_names.count(name) > 1)
        raise DataError(
            f'partial_labels.groups: the data has several classes of the name "{twice}", which no group can '
            'tell apart; give the candidates as a matrix instead (kind "file")'
        )
    return np.array([group_of[name] for name in class_names], dtype=np.int64)
