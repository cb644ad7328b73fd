"""Changing some images of a batch, where which ones is known on the device only."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor


def can_look(device: torch.device) -> bool:
    """Whether values may decide what is computed: on the CPU that costs nothing, elsewhere it is a wait."""
    return device.type == "cpu"


def only(chosen: Tensor, change: Callable[..., Tensor], images: Tensor, *parameters: Tensor) -> Tensor:
    """Return `images` with those that are `chosen` replaced by `change(images, *parameters)`.

    Args:
        chosen: `[B]`, bool.
        change: a function of each image alone; its result has the shape of its first argument.
        images: `[B, ...]`, left as they are.
        parameters: `[B, ...]` each.
    """
    if can_look(images.device):
        index = chosen.nonzero()[:, 0]
        if len(index) == 0:
            return images
        changed = change(*(each.index_select(0, index) for each in (images, *parameters)))
        return images.index_copy(0, index, changed)
    return torch.where(chosen.view(-1, *[1] * (images.dim() - 1)), change(images, *parameters), images)


@cache
def constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return `values` on `device`, copied there once: each copy waits for the device."""
    return torch.tensor(values, device=device)
