"""The policies of AutoAugment (1805.09501), which are torchvision's, and the strengths of its operations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torchvision.transforms import AutoAugment, AutoAugmentPolicy

from zoo.data.ops import AutoAugmentVariant

Step = tuple[str, float, int | None]
"""Name, probability, and which of the strengths; None: the operation has none."""

POLICIES: dict[str, Sequence[tuple[Step, ...]]] = {
    each.value: AutoAugment(each).policies for each in AutoAugmentPolicy
}

RAND_AUGMENT = (
    "Identity",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Rotate",
    "Brightness",
    "Color",
    "Contrast",
    "Sharpness",
    "Posterize",
    "Solarize",
    "AutoContrast",
    "Equalize",
)
BINS = 10  # strengths that AutoAugment chooses from
RAND_AUGMENT_BINS = 31

SIGNED = {
    "ShearX": 0.3,  # pixels per pixel
    "ShearY": 0.3,
    "TranslateX": 150 / 331,  # of the width
    "TranslateY": 150 / 331,  # of the height
    "Rotate": 30.0,  # degrees
    "Brightness": 0.9,  # the factor is 1 + strength
    "Color": 0.9,
    "Contrast": 0.9,
    "Sharpness": 0.9,
}
"""The largest strength of the operations whose sign is drawn; the smallest is 0."""

FILL: dict[AutoAugmentVariant, int] = {"torchvision": 0, "paco": 128}
"""Grey level of what is moved in from outside."""


def signs(name: str, variant: AutoAugmentVariant = "torchvision") -> tuple[int, int]:
    """Return the two equally likely signs of an operation's strength."""
    return (1, -1) if name in SIGNED and (variant, name) != ("paco", "Rotate") else (1, 1)


def strength(
    name: str,
    bins: int,
    index: int | None,
    height: int,
    width: int,
    variant: AutoAugmentVariant = "torchvision",
) -> float:
    """Return the strength number `index` of `bins`, before its sign, for images of `height` x `width` pixels.

    In the units of `SIGNED`, but translations in pixels; bits for Posterize, the share of 255 where inversion
    begins for Solarize, 0 for what has no strength. Rounded where torchvision rounds; PaCo's stay in float64.
    """
    length = {"TranslateX": width, "TranslateY": height}.get(name, 1)
    if variant == "paco" and index is not None and (name in SIGNED or name == "Solarize"):
        first, last = (0.0, SIGNED[name]) if name in SIGNED else (256 / 255, 0.0)
        return float(np.linspace(first, last, bins)[index]) * length
    if name in SIGNED:
        strengths = torch.linspace(0.0, SIGNED[name] * length, bins)
    elif name == "Posterize":
        strengths = (8 - torch.arange(bins) / ((bins - 1) / 4)).round()
    elif name == "Solarize":
        strengths = torch.linspace(1.0, 0.0, bins)
    else:
        return 0.0
    return float(strengths[index if index is not None else 0])
