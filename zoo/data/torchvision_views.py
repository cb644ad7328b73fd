"""Augmented views of one PIL image at a time, by torchvision's own transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from typing import Any

import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor
from torchvision.transforms import AutoAugmentPolicy, InterpolationMode, v2

from zoo.data import ops
from zoo.data.tensor_views import policies
from zoo.data.timm_views import TimmAugment, TimmErasing


class PILViews:
    """Augment one image; random numbers come from torch's global generator, so seed it with `seeded`."""

    def __init__(
        self,
        views: Sequence[Sequence[ops.Op]],
        mean: Sequence[float] = (0.5, 0.5, 0.5),
        std: Sequence[float] = (0.5, 0.5, 0.5),
    ) -> None:
        """Take the operations of each view, and `mean` and `std` of the channels, for values in 0..1."""
        self._views = [v2.Compose(_transforms(view, mean, std)) for view in views]

    def __call__(self, image: Image.Image) -> list[Tensor]:
        """Return one tensor `[3, h, w]` per view: uint8, or float32 and normalised where it is erased."""
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


_GREY = (policies.FILL["paco"],) * 3


def _moved(image: Image.Image, matrix: tuple[float, ...], resample: Image.Resampling) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, resample, fillcolor=_GREY)


_NEAREST, _BICUBIC = Image.Resampling.NEAREST, Image.Resampling.BICUBIC
_PACO: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "ShearX": lambda image, s: _moved(image, (1, s, 0, 0, 1, 0), _BICUBIC),
    "ShearY": lambda image, s: _moved(image, (1, 0, 0, s, 1, 0), _BICUBIC),
    "TranslateX": lambda image, s: _moved(image, (1, 0, s, 0, 1, 0), _NEAREST),
    "TranslateY": lambda image, s: _moved(image, (1, 0, 0, 0, 1, s), _NEAREST),
    "Rotate": lambda image, s: image.rotate(s, fillcolor=_GREY),
    "Brightness": lambda image, s: ImageEnhance.Brightness(image).enhance(1 + s),
    "Color": lambda image, s: ImageEnhance.Color(image).enhance(1 + s),
    "Contrast": lambda image, s: ImageEnhance.Contrast(image).enhance(1 + s),
    "Sharpness": lambda image, s: ImageEnhance.Sharpness(image).enhance(1 + s),
    "Posterize": lambda image, s: ImageOps.posterize(image, int(s)),
    "Solarize": lambda image, s: ImageOps.solarize(image, ceil(255 * s)),
    "AutoContrast": lambda image, _: ImageOps.autocontrast(image),
    "Equalize": lambda image, _: ImageOps.equalize(image),
    "Invert": lambda image, _: ImageOps.invert(image),
}


class _PacoAutoAugment:
    """`ops.AutoAugment` of PaCo's variant: torchvision's class cannot say how each operation resamples."""

    def __init__(self, policy: str) -> None:
        self._policy = policies.POLICIES[policy]

    def __call__(self, image: Image.Image) -> Image.Image:
        for name, p, index in self._policy[int(torch.randint(len(self._policy), ()))]:
            happens, negative = torch.rand(2).tolist()
            if happens < p:
                size = (image.height, image.width)
                strength = policies.strength(name, policies.BINS, index, *size, "paco")
                image = _PACO[name](image, policies.signs(name, "paco")[negative < 0.5] * strength)
        return image


def _auto_augment(op: ops.AutoAugment) -> Any:
    paco = op.variant == "paco"
    return _PacoAutoAugment(op.policy) if paco else v2.AutoAugment(AutoAugmentPolicy(op.policy))


class _Normalize:
    """What `Streamed` does with a batch in 8 bits, for one image."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self._mean, self._std = (torch.tensor(values).view(3, 1, 1) for values in (mean, std))

    def __call__(self, pixels: Tensor) -> Tensor:
        return pixels.float().div_(255).sub_(self._mean).div_(self._std)


def _transforms(view: Sequence[ops.Op], mean: Sequence[float], std: Sequence[float]) -> list[Any]:
    before: list[Any] = []
    after: list[Any] = []
    for op in view:
        if isinstance(op, ops.TimmAugment):
            before.append(TimmAugment(op.config, mean))
        elif isinstance(op, ops.RandomErasing):
            after += [_Normalize(mean, std), TimmErasing(op)]
        else:
            before.append(_TRANSFORMS[type(op)](op))
    return [*before, v2.PILToTensor(), *after]


def _sometimes(p: float, transform: Any) -> Any:
    return v2.RandomApply([transform], p=p)


_BILINEAR = InterpolationMode.BILINEAR
_TRANSFORMS: dict[type, Callable[[Any], Any]] = {
    ops.RandomResizedCrop: lambda op: v2.RandomResizedCrop(
        op.size, scale=op.scale, ratio=op.ratio, interpolation=InterpolationMode(op.interpolation)
    ),
    ops.PadCrop: lambda op: v2.RandomCrop(op.size, padding=op.padding or None),
    ops.Resize: lambda op: v2.Resize(op.size, interpolation=InterpolationMode(op.interpolation)),
    ops.CenterCrop: lambda op: v2.CenterCrop(op.size),
    ops.HorizontalFlip: lambda op: v2.RandomHorizontalFlip(op.p),
    ops.ColorJitter: lambda op: _sometimes(
        op.p, v2.ColorJitter(op.brightness, op.contrast, op.saturation, op.hue)
    ),
    ops.Grayscale: lambda op: v2.RandomGrayscale(op.p),
    ops.GaussianBlur: lambda op: _sometimes(op.p, v2.GaussianBlur(op.kernel_size, op.sigma)),
    ops.Solarize: lambda op: v2.RandomSolarize(op.threshold, op.p),
    ops.RandomAffine: lambda op: v2.RandomAffine(
        op.degrees, translate=op.translate, scale=op.scale, interpolation=_BILINEAR
    ),
    ops.Cutout: lambda op: _sometimes(op.p, _Cutout(op.size)),
    ops.AutoAugment: _auto_augment,
    ops.RandAugment: lambda op: v2.RandAugment(op.num_ops, op.magnitude),
}
