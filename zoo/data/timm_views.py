"""timm's own augmentations of one image: its policies by their strings, and random erasing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from timm.data.auto_augment import (
    AutoAugment,
    augment_and_mix_transform,
    auto_augment_transform,
    posterize,
    rand_augment_transform,
)
from timm.data.random_erasing import RandomErasing
from torch import Tensor

from zoo.errors import did_you_mean, first_line
from zoo.seeding import seeded_globals

if TYPE_CHECKING:
    from zoo.data import ops

_POLICIES = ("original", "originalr", "v0", "v0r", "3a")
_OPERATIONS = ("tweights", "t3a", "t3aw")
_TRANSLATE = 0.45  # of the shorter side: timm's largest translation that is given in pixels

Policy = Callable[[Image.Image], Image.Image]


def check_config(config: str) -> None:
    """Make sure that timm understands a policy's string, and leaves no section of it out.

    Raises:
        ValueError: naming what it does not know.
    """
    kind, *sections = config.split("-")
    kinds = ("rand", "augmix", *_POLICIES)
    if kind not in kinds:
        raise ValueError(
            f'found "{config}", expected it to begin with one of {", ".join(kinds)}.'
            + did_you_mean(kind, kinds)
        )
    for section in sections:
        operations = kind == "rand" and section.startswith("t")
        if section not in _OPERATIONS if operations else not re.fullmatch(r"[a-z]+\d\S*", section):
            raise ValueError(
                f'found "{section}" in "{config}", which timm would silently ignore; expected a key and a '
                "number, e.g. m9 or mstd0.5, or, for rand, one of " + ", ".join(_OPERATIONS)
            )
    try:
        with seeded_globals(0):
            _policy(config, shift=1, fill=(0, 0, 0))(Image.new("RGB", (8, 8)))
    except (AssertionError, ValueError, KeyError, TypeError, ArithmeticError) as error:
        raise ValueError(f'timm refuses "{config}": {first_line(error)}') from None


class TimmAugment:
    """A policy as timm's training applies it: the mean colour fills, resampling is bilinear or bicubic.

    timm draws from the global generators of Python and NumPy. They are seeded by a number from torch's, and
    put back; so what an image gets follows from torch's seed.
    """

    def __init__(self, config: str, mean: Sequence[float]) -> None:
        self._config = config
        self._fill = tuple(min(255, round(255 * value)) for value in mean)
        self._policies: dict[int, Policy] = {}

    def __call__(self, image: Image.Image) -> Image.Image:
        shift = int(min(image.size) * _TRANSLATE)
        if shift not in self._policies:
            self._policies[shift] = _policy(self._config, shift, self._fill)
        with seeded_globals(int(torch.randint(2**32, (), dtype=torch.int64))):
            return self._policies[shift](image)


def _policy(config: str, shift: int, fill: tuple[int, ...]) -> Policy:
    """Build timm's transform; `shift` is its largest translation in pixels, `fill` a colour."""
    settings: dict[str, Any] = {"translate_const": shift, "img_mean": fill}
    build: Any = {"rand": rand_augment_transform, "augmix": augment_and_mix_transform}.get(
        config.split("-", maxsplit=1)[0], auto_augment_transform
    )
    policy = build(config, settings)
    operations = chain.from_iterable(policy.policy) if isinstance(policy, AutoAugment) else policy.ops
    for operation in operations:
        if operation.aug_fn is posterize:
            operation.aug_fn = _posterize
    return policy  # type: ignore[no-any-return]  # timm has no types


def _posterize(image: Image.Image, bits_to_keep: int, **_: Any) -> Image.Image:
    """Keep so many bits of each channel: timm asks for 0 at full magnitude, which Pillow 12 refuses."""
    if bits_to_keep < 1:
        return Image.new(image.mode, image.size)
    return posterize(image, bits_to_keep)  # type: ignore[no-any-return]


class TimmErasing:
    """Random erasing of one normalised image `[3, h, w]`, seeded as `TimmAugment` is."""

    def __init__(self, op: ops.RandomErasing) -> None:
        self._erase = RandomErasing(
            op.p,
            min_area=op.scale[0],
            max_area=op.scale[1],
            min_aspect=op.ratio[0],
            max_aspect=op.ratio[1],
            mode=op.mode,
            min_count=op.count[0],
            max_count=op.count[1],
            device="cpu",
        )

    def __call__(self, image: Tensor) -> Tensor:
        with seeded_globals(int(torch.randint(2**32, (), dtype=torch.int64))):
            erased: Tensor = self._erase(image)
        return erased
