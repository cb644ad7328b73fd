"""AutoAugment (1805.09501) and RandAugment (1909.13719) for a batch: equal to Pillow to the bit.

What can be drawn is finite: an operation, its strength, its sign. So all parameters are computed once, on
the host, with Pillow's own arithmetic, as the rows of a table on the device; a draw is the number of a row.
Where a new value depends on the old one alone (brightness, posterize, solarize, invert), a row has all 256.
Unlike the other operations these round to 8 bits, because they are defined on them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import AutoAugment, AutoAugmentPolicy

from zoo.data import ops
from zoo.data.ops import AutoAugmentVariant
from zoo.data.tensor_views import eight_bit
from zoo.data.tensor_views.draws import Draws, only

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

UNCHANGED, MOVED, SHEARED, TABLE, AUTO_CONTRAST, EQUALIZE, COLOR, CONTRAST, SHARPNESS = range(9)
_KINDS = {
    "AutoContrast": AUTO_CONTRAST,
    "Equalize": EQUALIZE,
    "Color": COLOR,
    "Contrast": CONTRAST,
    "Sharpness": SHARPNESS,
}


class Choices(NamedTuple):
    """What can be drawn, one row each; or, after a draw, one row per image.

    Attributes:
        kind: which of the constants above `[R]`.
        matrix: of `eight_bit.transform` `[R, 6]`, int32.
        slope: of `eight_bit.shear` `[R, 2]`.
        table: of `eight_bit.look_up`, for all channels `[R, 256]`, uint8.
        factor: of `eight_bit.blend` `[R]`.
    """

    kind: Tensor
    matrix: Tensor
    slope: Tensor
    table: Tensor
    factor: Tensor


class Space(NamedTuple):
    """The sequences of `S` steps that are drawn from.

    Attributes:
        choices: row (i S + s) 2 is step s of sequence i, the next row the same with the other sign; the last
            row changes nothing.
        p: probability of each step of each sequence `[N, S]`.
        variant: of the operations.
    """

    choices: Choices
    p: Tensor
    variant: AutoAugmentVariant


def auto_augment(op: ops.AutoAugment, images: Tensor, draws: Draws) -> Tensor:
    """Apply a policy, drawn for each image, to `images` `[B, 3, H, W]`, float32 in 0..1."""
    space = _space(op.policy, None, *images.shape[-2:], images.device, op.variant)
    return _augment(images, space, draw(space, draws))


def rand_augment(op: ops.RandAugment, images: Tensor, draws: Draws) -> Tensor:
    """Apply `op.num_ops` operations, drawn for each image, to `images` `[B, 3, H, W]`, float32 in 0..1."""
    space = _space(None, op.magnitude, *images.shape[-2:], images.device)
    drawn = [draw(space, draws) for _ in range(op.num_ops)]
    return _augment(images, space, torch.cat(drawn, 1))


def draw(space: Space, draws: Draws) -> Tensor:
    """Draw a sequence for each image: the rows of `space.choices` to apply in turn `[B, S]`."""
    count, steps = space.p.shape
    sequence = draws.randint(float(count)).long()
    happens, sign = draws.rand(2, None, steps)
    row = (sequence[:, None] * steps + torch.arange(steps, device=sequence.device)) * 2 + (sign < 0.5)
    return torch.where(happens < space.p[sequence], row, len(space.choices.kind) - 1)


def apply(images: Tensor, choices: Choices, variant: AutoAugmentVariant = "torchvision") -> Tensor:
    """Change each image of `images` `[B, 3, H, W]`, uint8, as its row of `choices` says."""
    kind = choices.kind
    fill = FILL[variant]
    images = only(kind == MOVED, partial(eight_bit.transform, fill=fill), images, choices.matrix)
    if variant == "paco":  # on a GPU it is computed for all images
        images = only(kind == SHEARED, partial(eight_bit.shear, fill=fill), images, choices.slope)
    by_table = (kind == TABLE) | (kind == AUTO_CONTRAST) | (kind == EQUALIZE)
    images = only(by_table, _look_up, images, kind, choices.table)
    return only(kind >= COLOR, _blend, images, kind, choices.factor)


def _augment(images: Tensor, space: Space, rows: Tensor) -> Tensor:
    pixels = (images * 255).round_().to(torch.uint8)
    for row in rows.unbind(1):
        choices = Choices(*(column.index_select(0, row) for column in space.choices))
        pixels = apply(pixels, choices, space.variant)
    return pixels * (1 / 255)


def _look_up(images: Tensor, kind: Tensor, table: Tensor) -> Tensor:
    tables = table[:, None].expand(-1, images.shape[1], -1)
    tables = only(kind == AUTO_CONTRAST, lambda _, x: eight_bit.auto_contrast_tables(x), tables, images)
    tables = only(kind == EQUALIZE, lambda _, x: eight_bit.equalize_tables(x), tables, images)
    return eight_bit.look_up(images, tables)


def _blend(images: Tensor, kind: Tensor, factor: Tensor) -> Tensor:
    grey = eight_bit.luminance(images)
    grey = torch.where((kind == CONTRAST)[:, None, None, None], eight_bit.rounded_mean(grey), grey)
    base = only(kind == SHARPNESS, lambda _, x: eight_bit.smooth(x), grey.expand_as(images), images)
    return eight_bit.blend(base, images, factor)


@cache  # as `constant`
def _space(
    policy: str | None,
    magnitude: int | None,
    height: int,
    width: int,
    device: torch.device,
    variant: AutoAugmentVariant = "torchvision",
) -> Space:
    """Return what AutoAugment's `policy`, or RandAugment at `magnitude`, draws from."""
    bins = BINS if policy is not None else RAND_AUGMENT_BINS
    sequences: Sequence[tuple[Step, ...]] = (
        POLICIES[policy] if policy is not None else [((name, 1.0, magnitude),) for name in RAND_AUGMENT]
    )
    rows = [
        choice(name, sign * strength(name, bins, index, height, width, variant), height, width, variant)
        for sequence in sequences
        for name, _, index in sequence
        for sign in signs(name, variant)
    ]
    rows.append(choice("Identity", 0.0, height, width, variant))
    columns = zip(*rows, strict=True)
    return Space(
        Choices(*(torch.stack(column).to(device) for column in columns)),
        torch.tensor([[p for _, p, _ in sequence] for sequence in sequences], device=device),
        variant,
    )


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


def choice(
    name: str,
    strength: float,
    height: int,
    width: int,
    variant: AutoAugmentVariant = "torchvision",
) -> Choices:
    """Return the parameters of one operation, named as in `policies`, for images of `height` x `width`.

    Returns:
        Tensors on the CPU, of the shapes of `Choices` without R.
    """
    matrix = _matrix(name, strength, height, width, variant)
    table = _table(name, strength)
    kind = _KINDS.get(name, UNCHANGED)
    if matrix is not None:
        kind = SHEARED if variant == "paco" and name in ("ShearX", "ShearY") else MOVED
    if table is not None:
        kind = TABLE
    return Choices(
        torch.tensor(kind),
        torch.tensor(_fixed_point(matrix or _IDENTITY), dtype=torch.int32),
        torch.tensor([(matrix or _IDENTITY)[1], (matrix or _IDENTITY)[3]], dtype=torch.float64),
        torch.tensor(table or list(range(256)), dtype=torch.uint8),
        torch.tensor(1 + strength),
    )


_IDENTITY = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)


def _matrix(
    name: str, strength: float, height: int, width: int, variant: AutoAugmentVariant
) -> tuple[float, ...] | None:
    """Return where a pixel comes from: column a0 x + a1 y + a2, row a3 x + a4 y + a5, at its centre."""
    if name == "ShearX":
        return 1.0, strength, 0.0, 0.0, 1.0, 0.0
    if name == "ShearY":
        return 1.0, 0.0, 0.0, strength, 1.0, 0.0
    shift = strength if variant == "paco" else -float(int(strength))
    if name == "TranslateX":
        return 1.0, 0.0, shift, 0.0, 1.0, 0.0
    if name == "TranslateY":
        return 1.0, 0.0, 0.0, 0.0, 1.0, shift
    if name == "Rotate":
        angle = -math.radians(strength % 360.0)
        cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)
        x, y = width / 2, height / 2
        return cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y
    return None


def _fixed_point(matrix: tuple[float, ...]) -> list[int]:
    a0, a1, a2, a3, a4, a5 = matrix
    whole = a0, a1, a2 + a0 * 0.5 + a1 * 0.5, a3, a4, a5 + a3 * 0.5 + a4 * 0.5
    return [math.floor(a * 2**eight_bit.FIXED_POINT + 0.5) for a in whole]


def _table(name: str, strength: float) -> list[int] | None:
    if name == "Brightness":
        values = torch.arange(256, dtype=torch.float32) * torch.tensor(1 + strength)
        return [int(value) for value in values.clamp(max=255)]
    if name == "Posterize":
        step = 2 ** (8 - int(strength))
        return [value // step * step for value in range(256)]
    if name == "Solarize":
        return [value if value < 255 * strength else 255 - value for value in range(256)]
    if name == "Invert":
        return [255 - value for value in range(256)]
    return None
