"""Random erasing of a batch: the rectangles that timm would draw, for all images at once.

Source: Zhong et al. 2017, https://arxiv.org/abs/1708.04896; `timm.data.random_erasing`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zoo.data import ops
from zoo.data.tensor_views.draws import Draws

ATTEMPTS = 10  # timm's: so often a rectangle is drawn until one fits into the image


def random_erasing(op: ops.RandomErasing, images: Tensor, draws: Draws) -> Tensor:
    """Return normalised `images` `[B, 3, H, W]` with up to `op.count[1]` rectangles filled in each."""
    height, width = images.shape[-2:]
    chosen = draws.chosen(op.p)
    least, most = op.count
    count = draws.randint(float(most - least + 1)) + least
    low, high = (math.log(bound) for bound in op.ratio)
    for number in range(most):
        area = draws.uniform(op.scale[0], op.scale[1], ATTEMPTS) * (height * width) / count[:, None]
        ratio = draws.uniform(low, high, ATTEMPTS).exp()
        tall, wide = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
        fits = (tall < height) & (wide < width)
        first = fits.byte().argmax(dim=1, keepdim=True)
        h, w = (sides.gather(1, first).squeeze(1) for sides in (tall, wide))
        top, left = draws.randint(height - h + 1), draws.randint(width - w + 1)
        erased = chosen & fits.any(dim=1) & (number < count)
        rows, columns = _covered(top, h, height), _covered(left, w, width)
        inside = (rows[:, :, None] & columns[:, None, :] & erased[:, None, None])[:, None]
        images = torch.where(inside, _fill(op, images, draws), images)
    return images


def _covered(start: Tensor, length: Tensor, size: int) -> Tensor:
    """Return which of `size` places lie in the `length` `[B]` from `start` `[B]` on, `[B, size]`, bool."""
    place = torch.arange(size, device=start.device)
    return (place >= start[:, None]) & (place < (start + length)[:, None])


def _fill(op: ops.RandomErasing, images: Tensor, draws: Draws) -> Tensor:
    if op.mode == "const":
        return images.new_zeros(())
    return draws.normal(3, *(images.shape[-2:] if op.mode == "pixel" else (1, 1)))
