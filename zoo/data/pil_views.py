"""Augmented views of one PIL image at a time, by torchvision's own transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import AutoAugmentPolicy, InterpolationMode, v2
from torchvision.transforms.v2 import functional as tv

from zoo.data import ops
from zoo.data.tensor_views.auto_augment import auto_augment
from zoo.data.tensor_views.draws import Draws


class PILViews:
    """Augment one image; random numbers come from torch's global generator, so seed it with `seeded`."""

    def __init__(self, views: Sequence[Sequence[ops.Op]]) -> None:
        """Take the operations of each view."""
        self._views = [v2.Compose([*map(_transform, view), v2.PILToTensor()]) for view in views]

    def __call__(self, image: Image.Image) -> list[Tensor]:
        """Return one tensor `[3, h, w]`, uint8, per view."""
        return [view(image) for view in self._views]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global CPU generator for a while, and put its state back."""
    state = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would also reseed the GPUs
    try:
        yield
    finally:
        torch.set_rng_state(state)


class _Cutout:
    """torchvision has no square of fixed size: its RandomErasing draws area and aspect ratio."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __call__(self, image: Image.Image) -> Image.Image:
        top = int(torch.randint(image.height, ()).item()) - self._size // 2
        left = int(torch.randint(image.width, ()).item()) - self._size // 2
        image = image.copy()
        image.paste((0, 0, 0), (left, top, left + self._size, top + self._size))
        return image


class _PacoAutoAugment:
    """PaCo's variant: torchvision's class cannot say how each operation resamples, that of batches can."""

    def __init__(self, op: ops.AutoAugment) -> None:
        self._op = op

    def __call__(self, image: Image.Image) -> Image.Image:
        pixels = tv.pil_to_tensor(image)[None] / 255
        changed = auto_augment(self._op, pixels, Draws(torch.default_generator, 1))
        return tv.to_pil_image((changed[0] * 255).round_().to(torch.uint8))  # type: ignore[no-any-return]


def _auto_augment(op: ops.AutoAugment) -> Any:
    paco = op.variant == "paco"
    return _PacoAutoAugment(op) if paco else v2.AutoAugment(AutoAugmentPolicy(op.policy))


def _sometimes(p: float, transform: Any) -> Any:
    return v2.RandomApply([transform], p=p)


def _transform(op: ops.Op) -> Any:
    return _TRANSFORMS[type(op)](op)


_TRANSFORMS: dict[type, Callable[[Any], Any]] = {
    ops.RandomResizedCrop: lambda op: v2.RandomResizedCrop(
        op.size, scale=op.scale, ratio=op.ratio, interpolation=InterpolationMode(op.interpolation)
    ),
    ops.PadCrop: lambda op: v2.RandomCrop(op.size, padding=op.padding or None),
    ops.HorizontalFlip: lambda op: v2.RandomHorizontalFlip(op.p),
    ops.ColorJitter: lambda op: _sometimes(
        op.p, v2.ColorJitter(op.brightness, op.contrast, op.saturation, op.hue)
    ),
    ops.Grayscale: lambda op: v2.RandomGrayscale(op.p),
    ops.GaussianBlur: lambda op: _sometimes(op.p, v2.GaussianBlur(op.kernel_size, op.sigma)),
    ops.Solarize: lambda op: v2.RandomSolarize(op.threshold, op.p),
    ops.RandomAffine: lambda op: v2.RandomAffine(
        op.degrees, translate=op.translate, scale=op.scale, interpolation=InterpolationMode.BILINEAR
    ),
    ops.Cutout: lambda op: _sometimes(op.p, _Cutout(op.size)),
    ops.AutoAugment: _auto_augment,
    ops.RandAugment: lambda op: v2.RandAugment(op.num_ops, op.magnitude),
}
