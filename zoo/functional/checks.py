"""What everything that is computed from features of a data set requires of them."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.errors import DataError

_ROWS = 16384  # at a time: looking at all of a bank of gigabytes at once would take more than itself


def check_features(features: Tensor, what: str, *, dim: int | None = None) -> None:
    """Raise `DataError` unless `features` is a finite, non-empty floating `[N, D]` with `D == dim`."""
    shape = tuple(features.shape)
    if features.ndim != 2 or 0 in shape or not features.is_floating_point():
        found = f"{str(features.dtype).removeprefix('torch.')} {shape}"
        raise DataError(f"{what}: found {found}, expected floating [N, D] with N, D >= 1")
    if dim is not None and features.shape[1] != dim:
        raise DataError(f"{what}: found {features.shape[1]} dimensions, expected {dim}")
    bad = sum((~rows.isfinite().all(dim=1)).sum() for rows in torch.split(features, _ROWS))
    if bad:
        raise DataError(
            f"{what}: {int(bad)} of {shape[0]} rows hold NaN or infinity; has the encoder diverged?"
        )


def check_labels(labels: Tensor, what: str, *, count: int, num_classes: int) -> None:
    """Raise `DataError` unless `labels` is integer `[count]` with values in `[0, num_classes)`."""
    if tuple(labels.shape) != (count,) or labels.is_floating_point() or labels.is_complex():
        found = f"{str(labels.dtype).removeprefix('torch.')} {tuple(labels.shape)}"
        raise DataError(f"{what}: found {found}, expected one integer for each of {count} rows")
    if count and (int(labels.min()) < 0 or int(labels.max()) >= num_classes):
        found = f"{int(labels.min())} to {int(labels.max())}"
        raise DataError(f"{what}: found values from {found}, expected 0 to {num_classes - 1}")
