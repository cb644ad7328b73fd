"""Augmented views of a whole batch at once, on any device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from zoo.data import ops
from zoo.data.tensor_views import auto_augment, color, geometry
from zoo.data.tensor_views.draws import Draws, constant, only
from zoo.errors import DataError

# At 32 pixels, 128 images and what is computed from them stay in a core's cache of 2 MiB.
CPU_PART = 128


class TensorViews:
    """Augment batches of uint8 images; the parameters of every image are drawn from one generator.

    The operations and the distributions of their parameters are torchvision's. Values are not rounded to 8
    bits between operations, except in AutoAugment and RandAugment.
    """

    def __init__(
        self, views: Sequence[Sequence[ops.Op]], mean: Sequence[float], std: Sequence[float]
    ) -> None:
        """Take the operations of each view, and `mean` and `std` of the channels, for values in 0..1."""
        self._views = views
        self._mean = tuple(mean)
        self._std = tuple(std)

    def __call__(
        self, images: Tensor, generator: Generator, *, start: int = 0, total: int | None = None
    ) -> tuple[Tensor, ...]:
        """Return one batch `[B, 3, h, w]`, float32 and normalised, a view.

        Args:
            images: `[B, 3, H, W]`, uint8, rows of a batch that may be larger.
            generator: what is drawn of it is drawn for the whole batch.
            start: the first of these rows in the whole batch.
            total: images in the whole batch; None: these are all.

        Raises:
            DataError: when the images are too small for an operation.
        """
        mean, std = (constant(values, images.device).view(3, 1, 1) for values in (self._mean, self._std))
        total = len(images) if total is None else total
        step = CPU_PART if images.device.type == "cpu" else total
        views: list[Tensor] = []
        for first in range(0, total, step):  # also parts without a row of ours: their numbers must be drawn
            size = min(step, total - first)
            own = [min(max(edge - first, 0), size) for edge in (start, start + len(images))]
            here = slice(*(first + edge - start for edge in own)) if own[0] < own[1] else slice(0)
            pixels = images[here] * (1 / 255)
            for place, view in enumerate(self._views):
                done = augment(pixels, view, Draws(generator, size, *own))
                if first == 0:
                    views.append(done.new_empty(len(images), *done.shape[1:]))
                torch.sub(done, mean, out=views[place][here]).div_(std)
        return tuple(views)


def augment(images: Tensor, view: Sequence[ops.Op], draws: Draws) -> Tensor:
    """Apply the operations of one view in turn to `images` `[B, 3, H, W]`, float32 in 0..1.

    A flip that follows a random resized crop costs nothing: it mirrors a matrix of the crop.
    """
    crop: tuple[Tensor, Tensor, bool] | None = None  # rows, columns, clip: not yet applied
    for op in view:
        if isinstance(op, ops.HorizontalFlip):
            mirrored = draws.chosen(op.p)
            if crop is None:
                images = only(mirrored, lambda x: x.flip(-1), images)
            else:
                crop = crop[0], only(mirrored, lambda x: x.flip(1), crop[1]), crop[2]
            continue
        if crop is not None:
            images, crop = geometry.apply_separable(images, *crop[:2], clip=crop[2]), None
        if isinstance(op, ops.RandomResizedCrop):
            height, width = images.shape[-2:]
            crop = *geometry.crop_matrices(op, height, width, draws), op.interpolation == "bicubic"
        else:
            images = _OPERATIONS[type(op)](op, images, draws)
    return images if crop is None else geometry.apply_separable(images, *crop[:2], clip=crop[2])


def _pad_crop(op: ops.PadCrop, images: Tensor, draws: Draws) -> Tensor:
    height, width = images.shape[-2:]
    room = [length + 2 * op.padding - op.size for length in (height, width)]
    if min(room) < 0:
        raise DataError(
            f"pad_crop: images of {height}x{width} pixels padded by {op.padding} are smaller "
            f"than size {op.size}"
        )
    top, left = (draws.randint(float(space + 1)).long() for space in room)
    return geometry.windows(F.pad(images, [op.padding] * 4), top, left, op.size)


def _gaussian_blur(op: ops.GaussianBlur, images: Tensor, draws: Draws) -> Tensor:
    height, width = images.shape[-2:]
    if op.kernel_size // 2 >= min(height, width):
        raise DataError(
            f"gaussian_blur: kernel_size {op.kernel_size} is too large for images of {height}x{width} pixels,"
            f" expected at most {2 * min(height, width) - 1}"
        )
    sigma = draws.uniform(op.sigma[0], op.sigma[1])
    chosen = draws.chosen(op.p)
    return only(chosen, lambda x, sigma: geometry.blur(x, sigma, op.kernel_size), images, sigma)


def _color_jitter(op: ops.ColorJitter, images: Tensor, draws: Draws) -> Tensor:
    order = draws.rand(None, 3).argsort(1)
    hue_slot = draws.randint(4.0)
    chosen = draws.chosen(op.p)
    strengths = (op.brightness, op.contrast, op.saturation)
    factors = [draws.uniform(max(0.0, 1 - s), 1 + s) for s in strengths]
    hue = draws.uniform(-op.hue, op.hue)
    return color.color_jitter(
        images, order, hue_slot, torch.stack(factors, 1), hue if op.hue else None, chosen
    )


def _grayscale(op: ops.Grayscale, images: Tensor, draws: Draws) -> Tensor:
    return only(draws.chosen(op.p), color.grayscale, images)


def _solarize(op: ops.Solarize, images: Tensor, draws: Draws) -> Tensor:
    chosen = draws.chosen(op.p)
    return only(chosen, lambda x: color.solarize(x, op.threshold), images)


def _random_affine(op: ops.RandomAffine, images: Tensor, draws: Draws) -> Tensor:
    height, width = images.shape[-2:]
    degrees = draws.uniform(-op.degrees, op.degrees)
    limits = op.translate[0] * width, op.translate[1] * height
    shift_x, shift_y = (draws.uniform(-limit, limit).round() for limit in limits)
    scale = draws.uniform(op.scale[0], op.scale[1])
    return geometry.affine(images, degrees, shift_x, shift_y, scale)


def _cutout(op: ops.Cutout, images: Tensor, draws: Draws) -> Tensor:
    height, width = images.shape[-2:]
    center_y, center_x = (draws.randint(float(length)) for length in (height, width))
    size = draws.chosen(op.p) * float(op.size)
    return geometry.cutout(images, center_y, center_x, size)


_OPERATIONS: dict[type, Callable[[Any, Tensor, Draws], Tensor]] = {
    ops.PadCrop: _pad_crop,
    ops.GaussianBlur: _gaussian_blur,
    ops.ColorJitter: _color_jitter,
    ops.Grayscale: _grayscale,
    ops.Solarize: _solarize,
    ops.RandomAffine: _random_affine,
    ops.Cutout: _cutout,
    ops.AutoAugment: auto_augment.auto_augment,
    ops.RandAugment: auto_augment.rand_augment,
}
