"""What equations require of their arguments, and the precision in which they are computed."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from zoo.errors import ArgumentError, DataError

Counts = Tensor | Sequence[int] | Sequence[float]

_ROWS = 16384  # checked at a time: a mask of a whole bank of features would take gigabytes


def to_float32(x: Tensor) -> Tensor:
    """Raise half precision to float32 and leave float64: exponentials of s / 0.01 need the digits."""
    return x if x.dtype == torch.float64 else x.float()


def to_same_precision(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Raise tensors that meet in one product to float64 if one of them has it, else to float32."""
    highest = torch.float64 if any(x.dtype == torch.float64 for x in tensors) else torch.float32
    return tuple(x.to(highest) for x in tensors)


def check_range(low: float, high: float = math.inf, **numbers: float | Tensor) -> None:
    """Raise `ArgumentError` for a number that is not finite or not in `[low, high]`; tensors are not read."""
    for name, value in numbers.items():
        if not isinstance(value, Tensor) and not (low <= value <= high and math.isfinite(value)):
            bounds = f"of {low:g} or more" if math.isinf(high) else f"from {low:g} to {high:g}"
            raise ArgumentError(f"{name}: found {value}, expected a finite number {bounds}")


def check_positive(**numbers: float | Tensor) -> None:
    """Raise `ArgumentError` for a number that is not finite and above 0.

    A tensor, such as a learned temperature, is not read: that would wait for the device.
    """
    for name, value in numbers.items():
        if not isinstance(value, Tensor) and not 0 < value < math.inf:
            raise ArgumentError(f"{name}: found {value}, expected a finite number above 0")


def check_counts(
    class_counts: Counts, num_classes: int | None = None, *, device: torch.device | None = None
) -> Tensor:
    """Return `class_counts` `[C]` as a tensor on the device; each is 0 or more, finite, and not all are 0.

    Values are checked where that waits for no device.
    """
    counts = torch.as_tensor(class_counts)
    if counts.ndim != 1 or len(counts) != (num_classes or len(counts)) or not len(counts):
        expected = "one number for each class" if num_classes is None else f"[{num_classes}]"
        raise ArgumentError(f"class_counts: found shape {list(counts.shape)}, expected {expected}")
    if _fails((counts >= 0).all() & (counts.max() > 0) & (counts.max() < math.inf)):
        found = f"{float(counts.min()):g} to {float(counts.max()):g}"
        raise ArgumentError(f"class_counts: found {found}, expected 0 or more, and not all 0")
    return counts if device is None else counts.to(device)


def check_classes(labels: Tensor, num_classes: int) -> None:
    """Raise `ArgumentError` for labels `[N]` outside 0 to C - 1, where that waits for no device."""
    if labels.ndim == 1 and _fails(((labels >= 0) & (labels < num_classes)).all()):
        found = f"{int(labels.min())} to {int(labels.max())}"
        raise ArgumentError(f"labels: found {found}, expected classes 0 to {num_classes - 1}")


def _fails(condition: Tensor) -> bool:
    """Whether a condition `[]` on the CPU does not hold; other devices are not waited for."""
    try:
        if condition.device.type == "cpu" and not torch.compiler.is_compiling():
            torch._assert_async(condition)  # does not hand the value to Python, as a step must not do
    except RuntimeError:
        return True
    return False


def check_features(features: Tensor, what: str, *, dim: int | None = None) -> None:
    """Raise `DataError` unless `features` is a finite, non-empty floating `[N, D]` with `D == dim`."""
    if features.ndim != 2 or 0 in features.shape or not features.is_floating_point():
        found = f"{str(features.dtype).removeprefix('torch.')} {tuple(features.shape)}"
        raise DataError(f"{what}: found {found}, expected floating [N, D] with N, D >= 1")
    if dim is not None and features.shape[1] != dim:
        raise DataError(f"{what}: found {features.shape[1]} dimensions, expected {dim}")
    bad = sum(int((~rows.isfinite().all(dim=1)).sum()) for rows in torch.split(features, _ROWS))
    if bad:
        raise DataError(f"{what}: {bad} of {len(features)} rows hold NaN or infinity; has training diverged?")


def check_labels(labels: Tensor, what: str, *, count: int, num_classes: int) -> None:
    """Raise `DataError` unless `labels` is integer `[count]` with values in `[0, num_classes)`."""
    if tuple(labels.shape) != (count,) or labels.is_floating_point() or labels.is_complex():
        found = f"{str(labels.dtype).removeprefix('torch.')} {tuple(labels.shape)}"
        raise DataError(f"{what}: found {found}, expected one integer for each of {count} rows")
    if count and (int(labels.min()) < 0 or int(labels.max()) >= num_classes):
        found = f"{int(labels.min())} to {int(labels.max())}"
        raise DataError(f"{what}: found values from {found}, expected 0 to {num_classes - 1}")
