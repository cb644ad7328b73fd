"""Checks of the equations' arguments, and casts to the precision in which they are computed."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from zoo.errors import ArgumentError, DataError

Counts = Tensor | Sequence[int] | Sequence[float]

_ROWS = 16384  # rows checked at a time: a mask of a whole feature bank would take gigabytes


def to_float32(x: Tensor) -> Tensor:
    """Cast to float32 unless already float64: exponentials of s / 0.01 need the precision."""
    return x if x.dtype == torch.float64 else x.float()


def to_same_precision(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast tensors that are multiplied together to float64 if one of them is float64, else to float32."""
    kinds = {x.dtype for x in tensors}
    highest = torch.float64 if torch.float64 in kinds else torch.float32
    return tensors if kinds == {highest} else tuple(x.to(highest) for x in tensors)


def check_range(low: float, high: float = math.inf, **numbers: float | Tensor) -> None:
    """Raise `ArgumentError` unless numbers are finite and in `[low, high]`; tensors are not checked."""
    for name, value in numbers.items():
        if not isinstance(value, Tensor) and not (low <= value <= high and math.isfinite(value)):
            raise ArgumentError(f"{name}: found {value}, expected a finite number from {low:g} to {high:g}")


def check_positive(**numbers: float | Tensor) -> None:
    """Raise `ArgumentError` unless numbers are finite and above 0; skips tensors, which would need a sync."""
    for name, value in numbers.items():
        if not isinstance(value, Tensor) and not 0 < value < math.inf:
            raise ArgumentError(f"{name}: found {value}, expected a finite number above 0")


def check_pairs(a: Tensor, b: Tensor) -> None:
    """Raise `ArgumentError` unless two views have the same shape `[N, D]`: others would be broadcast."""
    if a.shape != b.shape or a.ndim != 2:
        raise ArgumentError(f"pairs: found shapes {list(a.shape)} and {list(b.shape)}, expected two [N, D]")


def check_counts(
    class_counts: Counts, num_classes: int | None = None, *, device: torch.device | None = None
) -> Tensor:
    """Return `class_counts` `[C]` on `device`; counts on the CPU must be finite, at least 0 and not all 0."""
    counts = torch.as_tensor(class_counts)
    if counts.ndim != 1 or len(counts) != (num_classes or len(counts)) or not len(counts):
        expected = [num_classes or "C"]
        raise ArgumentError(f"class_counts: found shape {list(counts.shape)}, expected {expected}")
    if _fails((counts >= 0).all() & (counts.max() > 0) & (counts.max() < math.inf)):
        found = f"found {float(counts.min()):g} to {float(counts.max()):g}"
        raise ArgumentError(f"class_counts: {found}, expected 0 or more, and not all 0")
    return counts if device is None else counts.to(device)


def check_classes(labels: Tensor, num_classes: int) -> None:
    """Raise `ArgumentError` for labels `[N]` outside 0 to C - 1; only labels on the CPU are checked."""
    if labels.ndim == 1 and _fails(((labels >= 0) & (labels < num_classes)).all()):
        found = f"{int(labels.min())} to {int(labels.max())}"
        raise ArgumentError(f"labels: found {found}, expected classes 0 to {num_classes - 1}")


def _fails(condition: Tensor) -> bool:
    """Whether a condition `[]` on the CPU is false; always False on other devices, which need a sync."""
    try:
        if condition.device.type == "cpu" and not torch.compiler.is_compiling():
            torch._assert_async(condition)  # keeps the value out of Python, as a training step must
    except RuntimeError:
        return True
    return False


def check_features(features: Tensor, what: str, *, dim: int | None = None) -> None:
    """Raise `DataError` unless `features` is a finite, non-empty floating `[N, D]` with `D == dim`."""
    if features.ndim != 2 or 0 in features.shape or not features.is_floating_point():
        found = f"{features.dtype} {list(features.shape)}"
        raise DataError(f"{what}: found {found}, expected floating [N, D] with N, D >= 1")
    if dim is not None and features.shape[1] != dim:
        raise DataError(f"{what}: found {features.shape[1]} dimensions, expected {dim}")
    bad = sum(int((~rows.isfinite().all(dim=1)).sum()) for rows in torch.split(features, _ROWS))
    if bad:
        raise DataError(f"{what}: {bad} of {len(features)} rows hold NaN or infinity; has training diverged?")


def check_labels(labels: Tensor, what: str, *, count: int, num_classes: int) -> None:
    """Raise `DataError` unless `labels` is integer `[count]` with values in `[0, num_classes)`."""
    if tuple(labels.shape) != (count,) or labels.is_floating_point() or labels.is_complex():
        found = f"{labels.dtype} {list(labels.shape)}"
        raise DataError(f"{what}: found {found}, expected one integer for each of {count} rows")
    if count and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        found = f"{int(labels.min())} to {int(labels.max())}"
        raise DataError(f"{what}: found values from {found}, expected 0 to {num_classes - 1}")
