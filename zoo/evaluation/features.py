"""Features of a data set, computed once and shared by every measure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from zoo.errors import DataError


class Features(NamedTuple):
    """Encoded images in the order in which they came.

    Attributes:
        features: `[N, D]`, float32, on the CPU, as the model gave them (not normalised).
        labels: class indices `[N]`, int64, on the CPU.
    """

    features: Tensor
    labels: Tensor


def extract(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    device: torch.device | str,
    progress: Callable[[int], object] | None = None,
) -> Features:
    """Encode `batches` with `model` in evaluation mode and without gradients.

    The model stays where it is moved (`device`), computes in the type of its own parameters whatever
    autocast surrounds the call, and leaves with each module in the mode it came in.

    Args:
        model: maps images `[B, 3, H, W]` to features `[B, D]`.
        batches: pairs of images `[B, 3, H, W]` and labels `[B]`.
        device: where to compute.
        progress: called after each batch with the number of images in it.

    Raises:
        DataError: when there is no image, or the model's output is not `[B, D]`.
    """
    device = torch.device(device)
    model.to(device)
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    features, labels = [], []
    # `train(True)` afterwards would wake the BatchNorm layers that somebody froze: remember each module.
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        # no_grad, not inference_mode: the features may well enter a differentiable loss later
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            for images, targets in batches:
                output = model(images.to(device=device, dtype=dtype, non_blocking=True))
                _check_output(output, len(images))
                # From a GPU these go to pinned memory while the next batch is prepared; nothing waits here.
                features.append(output.float().to("cpu", non_blocking=True))
                labels.append(targets.long().to("cpu", non_blocking=True))
                if progress is not None:
                    progress(len(images))
            if device.type == "cuda":
                torch.cuda.synchronize(device)  # before the copies are read
    finally:
        for module, training in modes:
            module.training = training
    if not features:
        raise DataError("features: the data set gave no batch, expected at least one image")
    return Features(torch.cat(features), torch.cat(labels))


def _check_output(output: object, count: int) -> None:
    if not isinstance(output, Tensor):
        raise DataError(f"features: the model returned a {type(output).__name__}, expected a tensor [B, D]")
    if output.ndim != 2 or len(output) != count:
        raise DataError(
            f"features: the model returned {tuple(output.shape)} for {count} images, expected [{count}, D]"
            " (a headless encoder with pooling: num_classes=0)"
        )
