"""Pillow's operations on 8-bit images, for a batch and with other parameters for every image.

Results are Pillow's to the bit: the same integers, and where it computes in floats the same roundings. Images
are `[B, 3, H, W]`, uint8. Sources: Pillow's `Geometry.c`, `Blend.c`, `Convert.c`, `ImageOps.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

FIXED_POINT = 16  # bits behind the point of `transform`'s matrices
LEVELS = 256


def transform(images: Tensor, matrix: Tensor, fill: int = 0) -> Tensor:
    """Take every pixel from where an affine map says, the nearest one; `fill` outside.

    Args:
        images: `[B, 3, H, W]`, uint8.
        matrix: a0..a5 `[B, 6]`, int32, in units of 2^-16 pixels: column x and row y come from column
            a0 x + a1 y + a2 and row a3 x + a4 y + a5, rounded down.
        fill: 0..255.
    """
    batch, channels, height, width = images.shape
    x = torch.arange(width, device=images.device, dtype=torch.int32)
    y = torch.arange(height, device=images.device, dtype=torch.int32)[:, None]
    a = matrix.view(batch, 6, 1, 1).unbind(1)
    column = (a[0] * x + a[1] * y + a[2]) >> FIXED_POINT
    row = (a[3] * x + a[4] * y + a[5]) >> FIXED_POINT
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    source = (row * width + column) * inside
    source = source.long().view(batch, 1, -1).expand(-1, channels, -1)
    moved = images.flatten(2).gather(2, source).view_as(images)
    return moved * inside[:, None] if fill == 0 else moved.masked_fill_(~inside[:, None], fill)


def shear(images: Tensor, slope: Tensor, fill: int = 0) -> Tensor:
    """Shear along x or y with Pillow's bicubic filter; `fill` outside.

    Args:
        images: `[B, 3, H, W]`, uint8.
        slope: `[B, 2]`, float64, one of each two 0: columns per row, rows per column.
        fill: 0..255.
    """
    batch, channels, height, width = images.shape
    x = torch.arange(width, device=images.device, dtype=torch.float64).add_(0.5)
    y = torch.arange(height, device=images.device, dtype=torch.float64).add_(0.5)[:, None]
    along_x, along_y = slope.view(batch, 2, 1, 1).unbind(1)
    column, row = x + along_x * y, along_y * x + y
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    column, row = column - 0.5, row - 0.5
    left, top = column.floor(), row.floor()
    part = ((column - left) + (row - top))[:, None]  # behind the left or upper pixel; one of the two is 0
    taps = []
    for step in (-1, 0, 1, 2):
        near = (left + step * (along_x != 0)).clamp_(0, width - 1)
        near = near + (top + step * (along_y != 0)).clamp_(0, height - 1) * width
        taps.append(near.long().view(batch, 1, -1).expand(-1, channels, -1))
    a, b, c, d = (images.flatten(2).gather(2, tap).view_as(images).double() for tap in taps)
    cubic = b + part * ((c - a) + part * ((2 * (a - b) + c - d) + part * (b - a - c + d)))
    return cubic.clamp_(0, 255).to(torch.uint8).masked_fill_(~inside[:, None], fill)


def look_up(images: Tensor, tables: Tensor) -> Tensor:
    """Replace each value v of channel c by `tables[b, c, v]`, `[B, 3, 256]`."""
    return tables.gather(2, images.flatten(2).long()).view_as(images)


def _unchanged(device: torch.device) -> Tensor:
    return torch.arange(LEVELS, device=device, dtype=torch.uint8)


def auto_contrast_tables(images: Tensor) -> Tensor:
    """Return the tables `[B, 3, 256]` that stretch each channel of each image to 0..255."""
    flat = images.flatten(2)
    low, high = (limit.double()[..., None] for limit in (flat.amin(2), flat.amax(2)))
    scale = torch.full_like(low, 255).div_((high - low).clamp(min=1))  # 255 / x would be 255 * (1 / x)
    values = torch.arange(LEVELS, device=images.device, dtype=torch.float64)
    tables = (values * scale + -low * scale).clamp_(0, 255).to(torch.uint8)
    return torch.where(high > low, tables, _unchanged(images.device))


def equalize_tables(images: Tensor) -> Tensor:
    """Return the tables `[B, 3, 256]` that make the values of each channel of each image equally frequent."""
    flat = images.flatten(2).long()
    counts = flat.new_zeros((*flat.shape[:2], LEVELS))
    counts.scatter_add_(2, flat, flat.new_ones(()).expand_as(flat))
    of_largest = counts.gather(2, flat.amax(2, keepdim=True))
    step = (flat.shape[2] - of_largest) // 255
    below = counts.cumsum(2) - counts
    tables = ((step // 2 + below) // step.clamp(min=1)).clamp_(max=255).to(torch.uint8)
    return torch.where(step > 0, tables, _unchanged(images.device))


def luminance(images: Tensor) -> Tensor:
    """Return Pillow's mode "L" `[B, 1, H, W]`, whole numbers as float32: all sums stay below 2^24."""
    red, green, blue = torch.split(images.float(), 1, 1)
    return (red * 19595 + green * 38470 + blue * 7471 + 32768).div_(65536).floor_()


def rounded_mean(grey: Tensor) -> Tensor:
    """Return the mean of each image `[B, 1, H, W]`, rounded to a whole number, `[B, 1, 1, 1]`."""
    mean = grey.mean((1, 2, 3), keepdim=True, dtype=torch.float64)  # float32 is exact up to 256x256 pixels
    return (mean + 0.5).floor_().to(grey.dtype)


def smooth(images: Tensor) -> Tensor:
    """Return a 3x3 blur, the centre five times as heavy as each neighbour; edges stay. float32."""
    values = images.float()
    columns = values[..., :-2] + values[..., 1:-1] + values[..., 2:]
    total = columns[..., :-2, :] + columns[..., 1:-1, :] + columns[..., 2:, :]
    blurred = values.clone()
    inner = blurred[..., 1:-1, 1:-1]
    inner.mul_(4).add_(total).div_(13).round_()
    return blurred


def blend(base: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """Return base + factor (image - base), rounded down, kept in 0..255.

    Args:
        base: whole numbers, float32, broadcastable to the images.
        images: `[B, 3, H, W]`, uint8.
        factor: `[B]`, float32.
    """
    changed = (images.float() - base).mul_(factor[:, None, None, None]).add_(base)
    return changed.clamp_(0, 255).to(torch.uint8)
