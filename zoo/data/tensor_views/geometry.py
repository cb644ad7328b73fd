"""Geometric augmentation of a batch, with other parameters for every image.

Crops, resizing, padding, blur: each is linear and separable, out = R X C^T for a channel X, with R
`[B, h, H]` and C `[B, w, W]` one matrix per image. So two small batched matrix products replace a
loop over images, and antialiasing is just more non-zeros in a row. Source of the
filters: Pillow's `Resample.c`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.data.ops import Interpolation, RandomResizedCrop
from zoo.data.tensor_views.draws import Draws

CROP_ATTEMPTS = 10  # torchvision's, after which it takes the central crop


def crop_boxes(
    op: RandomResizedCrop, height: int, width: int, draws: Draws
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw crops as torchvision's RandomResizedCrop does: top, left, height, width, each `[B]`, in pixels."""
    area = draws.uniform(op.scale[0], op.scale[1], CROP_ATTEMPTS) * (height * width)
    ratio = draws.uniform(math.log(op.ratio[0]), math.log(op.ratio[1]), CROP_ATTEMPTS).exp()
    w, h = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    first = fits.int().argmax(1, keepdim=True)
    found = fits.any(1)
    fallback_h, fallback_w = _central_box(op, height, width)
    h = torch.where(found, h.gather(1, first)[:, 0], float(fallback_h))
    w = torch.where(found, w.gather(1, first)[:, 0], float(fallback_w))
    top = torch.where(found, draws.randint(height - h + 1), float((height - fallback_h) // 2))
    left = torch.where(found, draws.randint(width - w + 1), float((width - fallback_w) // 2))
    return top, left, h, w


def crop_matrices(op: RandomResizedCrop, height: int, width: int, draws: Draws) -> tuple[Tensor, Tensor]:
    """Draw crops and return the matrices that resize them: rows `[B, size, H]`, columns `[B, size, W]`."""
    top, left, h, w = crop_boxes(op, height, width, draws)
    # both at once: what lies beyond the shorter side has no weight
    start, length = torch.cat([top, left]), torch.cat([h, w])
    matrices = resample_matrix(start, length, op.size, max(height, width), op.interpolation)
    rows, cols = torch.tensor_split(matrices, 2)
    return rows[..., :height], cols[..., :width]


def _central_box(op: RandomResizedCrop, height: int, width: int) -> tuple[int, int]:
    if width / height < op.ratio[0]:
        return round(width / op.ratio[0]), width
    if width / height > op.ratio[1]:
        return height, round(height * op.ratio[1])
    return height, width


def resample_matrix(
    start: Tensor, length: Tensor, size: int, source: int, interpolation: Interpolation
) -> Tensor:
    """Return the matrices `[B, size, source]` that resize the pixels start .. start + length - 1 to `size`.

    Args:
        start: first pixel `[B]`.
        length: number of pixels `[B]`; those outside have no influence.
        size: pixels after resizing.
        source: pixels of the image.
        interpolation: Pillow's filter of that name, widened when shrinking (antialiasing).
    """
    scale = length / size
    widening = scale.clamp(min=1)
    device = start.device
    centers = (torch.arange(size, device=device) + 0.5) * scale[:, None] + start[:, None]
    pixels = torch.arange(source, device=device) + 0.5
    distance = ((pixels - centers[:, :, None]) / widening[:, None, None]).abs_()
    weights = (1 - distance).clamp_(min=0) if interpolation == "bilinear" else _bicubic(distance)
    inside = (pixels > start[:, None]) & (pixels < (start + length)[:, None])
    weights *= inside[:, None, :]
    return weights.div_(weights.sum(2, keepdim=True))


def _bicubic(x: Tensor, a: float = -0.5) -> Tensor:
    """Keys' kernel at distances `x` >= 0, with Pillow's a."""
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


def blur_matrix(sigma: Tensor, kernel_size: int, size: int) -> Tensor:
    """Return Gaussian blurs `[B, size, size]` of standard deviation `sigma` `[B]`; sigma 0 is the identity.

    `kernel_size` taps, normalised to sum 1, edges reflected without repeating the last pixel: torchvision's.
    """
    radius = kernel_size // 2
    taps = torch.arange(-radius, radius + 1, device=sigma.device)
    kernel = torch.exp(-0.5 * (taps / sigma.clamp(min=1e-6)[:, None]) ** 2)
    kernel = kernel / kernel.sum(1, keepdim=True)
    source = torch.arange(size, device=sigma.device)[None, :] + taps[:, None]
    source = source.abs()
    source = torch.where(source >= size, 2 * (size - 1) - source, source)  # [K, size]
    where = (source[..., None] == torch.arange(size, device=sigma.device)).float()  # [K, size, size]
    return (kernel @ where.view(kernel_size, -1)).view(-1, size, size)


def blur(images: Tensor, sigma: Tensor, kernel_size: int) -> Tensor:
    """Blur each of `images` `[B, 3, H, W]` by its `sigma` `[B]` pixels, with `kernel_size` taps."""
    height, width = images.shape[-2:]
    rows = blur_matrix(sigma, kernel_size, height)
    cols = rows if width == height else blur_matrix(sigma, kernel_size, width)
    return apply_separable(images, rows, cols, clip=False)


def apply_separable(images: Tensor, rows: Tensor, cols: Tensor, *, clip: bool) -> Tensor:
    """Return R X C^T for every channel.

    Args:
        images: `[B, 3, H, W]` in 0..1.
        rows: `[B, h, H]`.
        cols: `[B, w, W]`.
        clip: keep values in 0..1 after each of the two passes, as Pillow does; only bicubic leaves it.

    Returns:
        `[B, 3, h, w]`.
    """
    batch, channels, height, width = images.shape
    wide = torch.bmm(images.reshape(batch, channels * height, width), cols.transpose(1, 2))
    if clip:
        wide = wide.clamp_(0, 1)
    out = rows[:, None] @ wide.view(batch, channels, height, cols.shape[1])
    return out.clamp_(0, 1) if clip else out


def affine(images: Tensor, degrees: Tensor, shift_x: Tensor, shift_y: Tensor, scale: Tensor) -> Tensor:
    """Rotate, zoom and shift about the centre, bilinear, zeros outside, as Pillow does.

    Args:
        images: `[B, 3, H, W]`.
        degrees: counter-clockwise in mathematical axes, clockwise as seen, `[B]` (torchvision's).
        shift_x: pixels to the right `[B]`.
        shift_y: pixels down `[B]`.
        scale: zoom factor `[B]`.
    """
    if len(images) == 0:
        return images  # `affine_grid` refuses them
    height, width = images.shape[-2:]
    angle = torch.deg2rad(degrees)
    cos, sin = angle.cos() / scale, angle.sin() / scale
    theta = torch.stack(
        [
            torch.stack([cos, sin * (height / width), -(cos * shift_x + sin * shift_y) * (2 / width)], 1),
            torch.stack([-sin * (width / height), cos, (sin * shift_x - cos * shift_y) * (2 / height)], 1),
        ],
        1,
    )
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    moved = F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
    inside = ((grid >= -1) & (grid < 1)).all(-1)  # Pillow blends nothing in from outside
    return moved * inside[:, None]


def windows(images: Tensor, top: Tensor, left: Tensor, size: int) -> Tensor:
    """Return `size` x `size` pixels of each image from row `top` and column `left` on, `[B]`, int64."""
    every = images.unfold(2, size, 1).unfold(3, size, 1)  # a view: [B, 3, rows, columns, size, size]
    return every[torch.arange(len(images), device=images.device), :, top, left]


def cutout(images: Tensor, center_y: Tensor, center_x: Tensor, size: Tensor) -> Tensor:
    """Blacken squares of `size` `[B]` pixels around centres `[B]`; size 0 leaves an image as it is."""
    height, width = images.shape[-2:]
    half = (size / 2).floor()

    def covered(center: Tensor, length: int) -> Tensor:
        start = (center - half)[:, None]
        position = torch.arange(length, device=images.device)
        return ((position >= start) & (position < start + size[:, None])).to(images.dtype)

    hole = covered(center_y, height)[:, :, None] * covered(center_x, width)[:, None, :]
    return images * (1 - hole)[:, None]
