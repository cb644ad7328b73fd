"""Features of a data set, computed once and shared by every measure."""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from zoo.config import plain_kind
from zoo.errors import DataError
from zoo.modules import evaluating
from zoo.training.precision import float32_products

LARGE = 1 << 30
"""Bytes from which on features lie in a temporary file instead of memory."""

_AHEAD = 4  # batches on their way from a GPU while the next ones are encoded


class Features(NamedTuple):
    """Encoded images in the order in which they came.

    Attributes:
        features: `[N, D]`, float32, on the CPU, as the model gave them (not normalised). From `LARGE` bytes
            on mapped from a file without a name: the system may drop its pages and read them again.
        labels: class indices `[N]`, int64, on the CPU.
    """

    features: Tensor
    labels: Tensor


def extract(
    model: nn.Module,
    batches: Iterable[Tensor | Sequence[Tensor]],
    *,
    device: torch.device | str,
    count: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> Features:
    """Encode `batches` with `model` in evaluation mode and without gradients.

    The model stays where it is moved (`device`), computes in the type of its own parameters whatever
    autocast surrounds the call, and leaves with each module in the mode it came in.

    Args:
        model: maps images `[B, 3, H, W]` to features `[B, D]`.
        batches: images `[B, 3, H, W]`, or sequences of images, labels `[B]` and what else a loader yields,
            which is not looked at. Images alone have the label -1.
        device: where to compute.
        count: images in all `batches` together, or more; with it, features are held once. Without, all
            batches are held until they are joined, which takes twice as much.
        progress: called after each batch with the number of images in it.

    Raises:
        DataError: when there is no image, a batch is something else, or the model's output is not `[B, D]`.
    """
    device = torch.device(device)
    model.to(device)
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    rows = _Rows(count)
    # no_grad, not inference_mode: the features may well enter a differentiable loss later
    # a GPU's convolutions would round float32 to TensorFloat-32, and figures be others than a CPU's
    autocast = torch.autocast(device.type, enabled=False)
    with evaluating(model), torch.no_grad(), autocast, float32_products():
        for number, batch in enumerate(batches):
            images, targets = _parts_of(batch, number)
            output = model(images.to(device=device, dtype=dtype, non_blocking=True))
            _check_output(output, len(images))
            rows.add(output.float(), targets.long())
            if progress is not None:
                progress(len(images))
    return rows.all()


def _parts_of(batch: object, number: int) -> tuple[Tensor, Tensor]:
    """Return the images and labels of a batch of any loader.

    Raises:
        DataError: for anything that is neither images nor begins with them.
    """
    expected = "expected images [B, 3, H, W], alone or in a sequence with labels [B]"
    if isinstance(batch, Tensor):
        batch = (batch,)
    if not isinstance(batch, Sequence) or isinstance(batch, str | bytes) or not batch:
        raise DataError(f"features: batch {number}: found {plain_kind(batch)}, {expected}")
    images, *others = batch
    if not isinstance(images, Tensor) or not images.ndim:
        first = "a number" if isinstance(images, Tensor) else plain_kind(images)
        raise DataError(f"features: batch {number}: found {first} in the place of images, {expected}")
    if not others:
        return images, torch.full((len(images),), -1)
    labels = others[0]
    if not isinstance(labels, Tensor) or labels.shape != images.shape[:1]:
        found = list(labels.shape) if isinstance(labels, Tensor) else plain_kind(labels)
        raise DataError(f"features: batch {number}: found labels {found} of {len(images)} images, {expected}")
    return images, labels


class _Rows:
    """Collects features and labels; from a GPU each batch is copied while the next ones are computed."""

    def __init__(self, count: int | None) -> None:
        self._count = count
        self._place: Features | None = None
        self._filled = 0
        self._parts: list[Features] = []  # where the count is not known
        self._coming: deque[tuple[Features, torch.cuda.Event | None]] = deque()

    def add(self, features: Tensor, labels: Tensor) -> None:
        """Take `[B, D]` and `[B]` from any device."""
        arrived = None
        if features.is_cuda:
            features, labels = (each.to("cpu", non_blocking=True) for each in (features, labels))
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
        self._coming.append((Features(features, labels.cpu()), arrived))
        if arrived is None or len(self._coming) > _AHEAD:
            self._take()

    def _take(self) -> None:
        part, arrived = self._coming.popleft()
        if arrived is not None:
            arrived.synchronize()
        if self._count is None:
            self._parts.append(part)
            return
        if self._place is None:
            # labels too: kept one by one they would lie between freed batches, whose memory could not return
            dim = part.features.shape[1]
            self._place = Features(_room(self._count, dim), torch.empty(self._count, dtype=torch.int64))
        rows = slice(self._filled, self._filled + len(part.labels))
        for place, values in zip(self._place, part, strict=True):
            place[rows] = values
        self._filled = rows.stop

    def all(self) -> Features:
        """Return everything in the order in which it came."""
        while self._coming:
            self._take()
        if self._place is not None:
            return Features(*(place[: self._filled] for place in self._place))
        if not self._parts:
            raise DataError("features: the data set gave no batch, expected at least one image")
        return Features(*(torch.cat(parts) for parts in zip(*self._parts, strict=True)))


def _room(rows: int, dim: int) -> Tensor:
    """Return an uninitialised float32 `[rows, dim]`: in memory, or if it is large, in a file on disk.

    The file has no name, so it is gone with the tensor, however the process ends. Where there is no space for
    it (`TMPDIR` says where), or no such files, memory takes it.
    """
    size = rows * dim * torch.float32.itemsize
    if size >= LARGE and hasattr(os, "posix_fallocate"):
        try:
            with tempfile.NamedTemporaryFile(prefix="zoo-features-") as file:
                os.posix_fallocate(file.fileno(), 0, size)  # else a full disk would end the process later
                return torch.from_file(file.name, shared=True, size=rows * dim).view(rows, dim)
        except OSError:
            pass
    return torch.empty(rows, dim)


def _check_output(output: object, count: int) -> None:
    if not isinstance(output, Tensor):
        raise DataError(f"features: the model returned a {type(output).__name__}, expected a tensor [B, D]")
    if output.ndim != 2 or len(output) != count:
        raise DataError(
            f"features: the model returned {tuple(output.shape)} for {count} images, expected [{count}, D]"
            " (a headless encoder with pooling: num_classes=0)"
        )
