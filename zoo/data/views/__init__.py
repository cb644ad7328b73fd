"""Augmented views: of a whole batch at once on any device, or by torchvision of one PIL image at a time."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from PIL import Image
from torch import Generator, Tensor
from torchvision.transforms import AutoAugmentPolicy, v2
from torchvision.transforms import InterpolationMode as _Mode
from torchvision.transforms.v2 import functional as tv

from zoo.data import ops
from zoo.data.views import auto_augment, color, geometry
from zoo.data.views.draws import Draws, constant

# At 32 pixels, 128 images and what is computed from them stay in a core's cache of 2 MiB.
CPU_PART = 128


class TensorViews:
    """Augment batches of uint8 images; the parameters of every image are drawn from one generator.

    The operations and the distributions of their parameters are torchvision's. Values are not rounded to 8
    bits between operations, except in AutoAugment and RandAugment. `mean` and `std` are for values in 0..1.
    """

    def __init__(
        self, views: Sequence[Sequence[ops.Op]], mean: Sequence[float], std: Sequence[float]
    ) -> None:
        self._views, self._mean, self._std = views, tuple(mean), tuple(std)

    def __call__(
        self, images: Tensor, generator: Generator, *, start: int = 0, total: int | None = None
    ) -> tuple[Tensor, ...]:
        """Return one batch `[B, 3, h, w]`, float32 and normalised, a view.

        `images` `[B, 3, H, W]`, uint8, are the rows from `start` of a batch of `total` images, for all of
        which numbers are drawn of `generator`; by default they are all.

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
    """Apply the operations of one view in turn to `images` `[B, 3, H, W]`, float32 in 0..1."""
    for op in view:
        images = _BATCHED[op.op](op, images, draws)
    return images


class PILViews:
    """Augment one image; random numbers come from torch's global generator, so seed it with `seeded`."""

    def __init__(self, views: Sequence[Sequence[ops.Op]]) -> None:
        self._views = [v2.Compose([*(_PIL[op.op](op) for op in view), v2.PILToTensor()]) for view in views]

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


def _cutout(image: Image.Image, size: int) -> Image.Image:
    """Blacken a square of fixed size: torchvision's RandomErasing draws area and aspect ratio."""
    top = int(torch.randint(image.height, ()).item()) - size // 2
    left = int(torch.randint(image.width, ()).item()) - size // 2
    image = image.copy()
    image.paste((0, 0, 0), (left, top, left + size, top + size))
    return image


def _paco(image: Image.Image, op: ops.AutoAugment) -> Image.Image:
    """Apply PaCo's variant by its batched form: torchvision's class resamples all operations alike."""
    pixels = tv.pil_to_tensor(image)[None] / 255
    changed = auto_augment.auto_augment(op, pixels, Draws(torch.default_generator, 1))
    return tv.to_pil_image((changed[0] * 255).round_().to(torch.uint8))  # type: ignore[no-any-return]


def _sometimes(op: Any, transform: Any) -> Any:
    return v2.RandomApply([transform], p=op.p)


# of each operation, what it does to a batch, and the transform of torchvision that does the same
_BATCHED: dict[str, Callable[[Any, Tensor, Draws], Tensor]] = {
    **{each.__name__: each for each in (color.color_jitter, color.grayscale, color.solarize)},
    **{each.__name__: each for each in (geometry.random_resized_crop, geometry.pad_crop, geometry.cutout)},
    **{each.__name__: each for each in (geometry.gaussian_blur, geometry.random_affine)},
    "horizontal_flip": geometry.horizontal_flip,
    **dict.fromkeys(("auto_augment", "rand_augment"), auto_augment.auto_augment),
}
_PIL: dict[str, Callable[[Any], Any]] = {
    "random_resized_crop": lambda op: v2.RandomResizedCrop(
        op.size, op.scale, op.ratio, _Mode(op.interpolation)
    ),
    "pad_crop": lambda op: v2.RandomCrop(op.size, padding=op.padding or None),
    "horizontal_flip": lambda op: v2.RandomHorizontalFlip(op.p),
    "random_affine": lambda op: v2.RandomAffine(op.degrees, op.translate, op.scale, None, _Mode.BILINEAR),
    "gaussian_blur": lambda op: _sometimes(op, v2.GaussianBlur(op.kernel_size, op.sigma)),
    "cutout": lambda op: _sometimes(op, partial(_cutout, size=op.size)),
    "color_jitter": lambda op: _sometimes(
        op, v2.ColorJitter(op.brightness, op.contrast, op.saturation, op.hue)
    ),
    "grayscale": lambda op: v2.RandomGrayscale(op.p),
    "solarize": lambda op: v2.RandomSolarize(op.threshold, op.p),
    "auto_augment": lambda op: (
        partial(_paco, op=op) if op.variant == "paco" else v2.AutoAugment(AutoAugmentPolicy(op.policy))
    ),
    "rand_augment": lambda op: v2.RandAugment(op.num_ops, op.magnitude),
}
