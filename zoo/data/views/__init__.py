"""Augmented views of a whole batch at once, on any device."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from zoo.data import ops
from zoo.data.views import auto_augment
from zoo.data.views import transforms as t
from zoo.data.views.transforms import Draws, constant

# At 32 pixels, 128 images and what is computed from them stay in a core's cache of 2 MiB.
CPU_PART = 128
View = Sequence[ops.Op]


class TensorViews:
    """Augment batches of uint8 images; the parameters of every image are drawn from one generator.

    The operations and the distributions of their parameters are torchvision's. Values are not rounded to 8
    bits between operations, except in AutoAugment and RandAugment. `mean` and `std` are for values in 0..1.
    """

    def __init__(self, views: Sequence[View], mean: Sequence[float], std: Sequence[float]) -> None:
        self._views, self._mean, self._std = views, tuple(mean), tuple(std)

    def __call__(
        self, images: Tensor, generator: Generator, *, start: int = 0, total: int | None = None
    ) -> tuple[Tensor, ...]:
        """Return one batch `[B, 3, h, w]`, float32 and normalised, a view.

        `images` `[B, 3, H, W]`, uint8, are the rows from `start` of a batch of `total` images, for all of
        which numbers are drawn of `generator`; by default they are all. DataError for too small ones.
        """
        mean, std = (constant(values, images.device).view(3, 1, 1) for values in (self._mean, self._std))
        total = len(images) if total is None else total
        step = CPU_PART if images.device.type == "cpu" else total
        views: list[Tensor] = []
        for first in range(0, total, step):  # also parts without a row of ours: their numbers must be drawn
            size = min(step, total - first)
            own = [min(max(edge - first, 0), size) for edge in (start, start + len(images))]
            here = slice(*(first + edge - start for edge in own))
            pixels = images[here] * (1 / 255)
            for place, view in enumerate(self._views):
                done = augment(pixels, view, Draws(generator, size, *own))
                if first == 0:
                    views.append(done.new_empty(len(images), *done.shape[1:]))
                torch.sub(done, mean, out=views[place][here]).div_(std)
        return tuple(views)


def augment(images: Tensor, view: View, draws: Draws) -> Tensor:
    """Apply the operations of one view in turn to `images` `[B, 3, H, W]`, float32 in 0..1."""
    for op in view:
        images = _OPERATIONS[op.op](op, images, draws)
    return images


_OPERATIONS: dict[str, Callable[[Any, Tensor, Draws], Tensor]] = {
    **{each.__name__: each for each in (t.random_resized_crop, t.pad_crop, t.random_affine, t.gaussian_blur)},
    **{
        each.__name__: each for each in (t.horizontal_flip, t.cutout, t.color_jitter, t.grayscale, t.solarize)
    },
    **dict.fromkeys(("auto_augment", "rand_augment"), auto_augment.auto_augment),
}
