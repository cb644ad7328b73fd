"""AutoAugment (1805.09501) and RandAugment (1909.13719) for a batch: equal to Pillow to the bit.

What can be drawn is finite: an operation, its strength, its sign. So all parameters are computed once, on
the host, with Pillow's own arithmetic, as the rows of a table on the device; a draw is the number of a row.
Where a new value depends on the old one alone (brightness, posterize, solarize, invert), a row has all 256.
Unlike the other operations these round to 8 bits, because they are defined on them: images here are
`[B, 3, H, W]`, uint8. Sources: Pillow's `Geometry.c`, `Blend.c`, `Convert.c`, `ImageOps.py`.
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
from zoo.data.views.draws import Draws, only

Step = tuple[str, float, int | None]
"""Name, probability, and which of the strengths; None: the operation has none."""

POLICIES: dict[str, Sequence[tuple[Step, ...]]] = {
    each.value: AutoAugment(each).policies for each in AutoAugmentPolicy
}
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
RAND_AUGMENT = ("Identity", *SIGNED, "Posterize", "Solarize", "AutoContrast", "Equalize")
BINS, RAND_AUGMENT_BINS = 10, 31  # strengths to choose from
FILL: dict[ops.AutoAugmentVariant, int] = {"torchvision": 0, "paco": 128}
"""Grey level of what is moved in from outside."""
FIXED_POINT = 16  # bits behind the point of Pillow's affine maps
LEVELS = 256

UNCHANGED, MOVED, SHEARED, TABLE, AUTO_CONTRAST, EQUALIZE, COLOR, CONTRAST, SHARPNESS = range(9)
_KINDS = {
    "Identity": UNCHANGED,
    "AutoContrast": AUTO_CONTRAST,
    "Equalize": EQUALIZE,
    "Color": COLOR,
    "Contrast": CONTRAST,
    "Sharpness": SHARPNESS,
    **dict.fromkeys(("Brightness", "Posterize", "Solarize", "Invert"), TABLE),
}  # of all others: MOVED or SHEARED


class Rows(NamedTuple):
    """What can be drawn, one row each; or, after a draw, one row for each image.

    Attributes:
        kind: which of the constants above `[R]`.
        matrix: of an affine map a0..a5 `[R, 6]`, float64: column x and row y come from column
            a0 x + a1 y + a2 and row a3 x + a4 y + a5. For MOVED whole numbers, in units of 2^-16 pixels.
        table: the new value of each of the 256 `[R, 256]`, uint8.
        factor: of a blend `[R]`.
    """

    kind: Tensor
    matrix: Tensor
    table: Tensor
    factor: Tensor


def auto_augment(op: ops.AutoAugment | ops.RandAugment, images: Tensor, draws: Draws) -> Tensor:
    """Apply a policy, or `num_ops` operations, drawn for each of `images` `[B, 3, H, W]`, float32 in 0..1."""
    rows, p = space(op, *images.shape[-2:], images.device)
    times = op.num_ops if isinstance(op, ops.RandAugment) else 1
    drawn = torch.cat([draw(p, draws) for _ in range(times)], 1)
    pixels = (images * 255).round_().to(torch.uint8)
    for row in drawn.unbind(1):
        pixels = apply(pixels, Rows(*(column.index_select(0, row) for column in rows)), _variant(op))
    return pixels * (1 / 255)


def draw(p: Tensor, draws: Draws) -> Tensor:
    """Draw one of N sequences for each image, whose S steps happen with the probabilities `p` `[N, S]`.

    Returns:
        Rows `[B, S]`: (i S + s) 2 is step s of sequence i, the next one the same with the other sign, and
        2 N S nothing.
    """
    count, steps = p.shape
    sequence = draws.randint(float(count)).long()
    happens, sign = draws.rand(2, None, steps)
    row = (sequence[:, None] * steps + torch.arange(steps, device=sequence.device)) * 2 + (sign < 0.5)
    return torch.where(happens < p[sequence], row, 2 * count * steps)


@cache  # as `constant`
def space(
    op: ops.AutoAugment | ops.RandAugment, height: int, width: int, device: torch.device
) -> tuple[Rows, Tensor]:
    """Return the rows that `draw` draws from, for images of one size, and the probabilities `p`."""
    variant, bins = _variant(op), BINS if isinstance(op, ops.AutoAugment) else RAND_AUGMENT_BINS
    sequences: Sequence[tuple[Step, ...]] = (
        POLICIES[op.policy]
        if isinstance(op, ops.AutoAugment)
        else [((name, 1.0, op.magnitude),) for name in RAND_AUGMENT]
    )
    outcomes = [
        (name, sign * strength(name, bins, index, height, width, variant))
        for sequence in sequences
        for name, _, index in sequence
        for sign in signs(name, variant)
    ]
    p = torch.tensor([[p for _, p, _ in sequence] for sequence in sequences], device=device)
    return rows_of([*outcomes, ("Identity", 0.0)], height, width, device, variant), p


def _variant(op: ops.AutoAugment | ops.RandAugment) -> ops.AutoAugmentVariant:
    return op.variant if isinstance(op, ops.AutoAugment) else "torchvision"


def signs(name: str, variant: ops.AutoAugmentVariant) -> tuple[int, int]:
    """Return the two equally likely signs of an operation's strength."""
    return (1, -1) if name in SIGNED and (variant, name) != ("paco", "Rotate") else (1, 1)


def strength(
    name: str, bins: int, index: int | None, height: int, width: int, variant: ops.AutoAugmentVariant
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


def rows_of(
    outcomes: Sequence[tuple[str, float]],
    height: int,
    width: int,
    device: torch.device,
    variant: ops.AutoAugmentVariant,
) -> Rows:
    """Return the rows of operations, by name and signed strength, for images of `height` x `width` pixels."""
    kinds, matrices = list[int](), list[tuple[float, ...]]()
    for name, amount in outcomes:
        matrix = _matrix(name, amount, height, width, variant)
        sheared = variant == "paco" and name in ("ShearX", "ShearY")
        kinds.append(_KINDS.get(name, SHEARED if sheared else MOVED))
        matrices.append(matrix if sheared else _fixed_point(matrix))
    return Rows(
        torch.tensor(kinds, device=device),
        torch.tensor(matrices, dtype=torch.float64, device=device),
        torch.tensor([_table(*outcome) for outcome in outcomes], dtype=torch.uint8, device=device),
        torch.tensor([1 + amount for _, amount in outcomes], device=device),
    )


def _matrix(
    name: str, strength: float, height: int, width: int, variant: ops.AutoAugmentVariant
) -> tuple[float, ...]:
    """Return the affine map of an operation, from pixel centre to pixel centre."""
    shift = strength if variant == "paco" else -float(int(strength))
    if name == "Rotate":
        angle = -math.radians(strength % 360.0)
        cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)
        x, y = width / 2, height / 2
        return cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y
    return {
        "ShearX": (1.0, strength, 0.0, 0.0, 1.0, 0.0),
        "ShearY": (1.0, 0.0, 0.0, strength, 1.0, 0.0),
        "TranslateX": (1.0, 0.0, shift, 0.0, 1.0, 0.0),
        "TranslateY": (1.0, 0.0, 0.0, 0.0, 1.0, shift),
    }.get(name, (1.0, 0.0, 0.0, 0.0, 1.0, 0.0))


def _fixed_point(matrix: tuple[float, ...]) -> tuple[float, ...]:
    a0, a1, a2, a3, a4, a5 = matrix
    whole = a0, a1, a2 + a0 * 0.5 + a1 * 0.5, a3, a4, a5 + a3 * 0.5 + a4 * 0.5
    return tuple(float(math.floor(a * 2**FIXED_POINT + 0.5)) for a in whole)


def _table(name: str, strength: float) -> list[int]:
    if name == "Brightness":
        values = torch.arange(LEVELS, dtype=torch.float32) * torch.tensor(1 + strength)
        return [int(value) for value in values.clamp(max=255)]
    if name == "Posterize":
        step = 2 ** (8 - int(strength))
        return [value // step * step for value in range(LEVELS)]
    begin = {"Solarize": 255 * strength, "Invert": 0.0}.get(name, float(LEVELS))
    return [value if value < begin else 255 - value for value in range(LEVELS)]


def apply(images: Tensor, rows: Rows, variant: ops.AutoAugmentVariant) -> Tensor:
    """Change each image as its row says."""
    kind, fill = rows.kind, FILL[variant]
    images = only(kind == MOVED, partial(transform, fill=fill), images, rows.matrix)
    if variant == "paco":  # on a GPU it is computed for all images
        images = only(kind == SHEARED, partial(shear, fill=fill), images, rows.matrix)
    by_table = (kind == TABLE) | (kind == AUTO_CONTRAST) | (kind == EQUALIZE)
    images = only(by_table, look_up, images, kind, rows.table)
    return only(kind >= COLOR, blend, images, kind, rows.factor)


def transform(images: Tensor, matrix: Tensor, fill: int) -> Tensor:
    """Take every pixel from where `matrix` of `Rows` says, rounded down; `fill` outside."""
    batch, channels, height, width = images.shape
    x = torch.arange(width, device=images.device, dtype=torch.int32)
    y = torch.arange(height, device=images.device, dtype=torch.int32)[:, None]
    a = matrix.to(torch.int32).view(batch, 6, 1, 1).unbind(1)
    column = (a[0] * x + a[1] * y + a[2]) >> FIXED_POINT
    row = (a[3] * x + a[4] * y + a[5]) >> FIXED_POINT
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    source = (row * width + column) * inside
    source = source.long().view(batch, 1, -1).expand(-1, channels, -1)
    return images.flatten(2).gather(2, source).view_as(images).masked_fill_(~inside[:, None], fill)


def shear(images: Tensor, matrix: Tensor, fill: int) -> Tensor:
    """Shear along x or y, as `matrix` of `Rows` says, with Pillow's bicubic filter; `fill` outside."""
    batch, channels, height, width = images.shape
    x = torch.arange(width, device=images.device, dtype=torch.float64).add_(0.5)
    y = torch.arange(height, device=images.device, dtype=torch.float64).add_(0.5)[:, None]
    along_x, along_y = (matrix[:, place].view(batch, 1, 1) for place in (1, 3))  # one of them is 0
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


def look_up(images: Tensor, kind: Tensor, table: Tensor) -> Tensor:
    """Replace each value by that of a table: the row's own, or one made of the image."""
    tables = table[:, None].expand(-1, images.shape[1], -1)
    tables = only(kind == AUTO_CONTRAST, auto_contrast_tables, tables, images)
    tables = only(kind == EQUALIZE, equalize_tables, tables, images)
    return tables.gather(2, images.flatten(2).long()).view_as(images)


def auto_contrast_tables(unchanged: Tensor, images: Tensor) -> Tensor:
    """Return the tables `[B, 3, 256]` that stretch each channel of each image to 0..255."""
    flat = images.flatten(2)
    low, high = (limit.double()[..., None] for limit in (flat.amin(2), flat.amax(2)))
    scale = torch.full_like(low, 255).div_((high - low).clamp(min=1))  # 255 / x would be 255 * (1 / x)
    values = torch.arange(LEVELS, device=images.device, dtype=torch.float64)
    tables = (values * scale + -low * scale).clamp_(0, 255).to(torch.uint8)
    return torch.where(high > low, tables, unchanged)


def equalize_tables(unchanged: Tensor, images: Tensor) -> Tensor:
    """Return the tables `[B, 3, 256]` that make the values of each channel of each image equally frequent."""
    flat = images.flatten(2).long()
    counts = flat.new_zeros((*flat.shape[:2], LEVELS))
    counts.scatter_add_(2, flat, flat.new_ones(()).expand_as(flat))
    of_largest = counts.gather(2, flat.amax(2, keepdim=True))
    step = (flat.shape[2] - of_largest) // 255
    below = counts.cumsum(2) - counts
    tables = ((step // 2 + below) // step.clamp(min=1)).clamp_(max=255).to(torch.uint8)
    return torch.where(step > 0, tables, unchanged)


def blend(images: Tensor, kind: Tensor, factor: Tensor) -> Tensor:
    """Return base + factor (image - base), rounded down: the base is grey, its mean, or a blurred image."""
    red, green, blue = torch.split(images.float(), 1, 1)
    # Pillow's mode "L", whole numbers as float32: all sums stay below 2^24
    grey = (red * 19595 + green * 38470 + blue * 7471 + 32768).div_(65536).floor_()
    mean = grey.mean((1, 2, 3), keepdim=True, dtype=torch.float64)  # float32 is exact up to 256x256 pixels
    mean = (mean + 0.5).floor_().to(grey.dtype)
    grey = torch.where((kind == CONTRAST)[:, None, None, None], mean, grey)
    base = only(kind == SHARPNESS, lambda _, images: smooth(images), grey.expand_as(images), images)
    changed = (images.float() - base).mul_(factor[:, None, None, None]).add_(base)
    return changed.clamp_(0, 255).to(torch.uint8)


def smooth(images: Tensor) -> Tensor:
    """Return a 3x3 blur, the centre five times as heavy as each neighbour; edges stay. float32."""
    values = images.float()
    columns = values[..., :-2] + values[..., 1:-1] + values[..., 2:]
    total = columns[..., :-2, :] + columns[..., 1:-1, :] + columns[..., 2:, :]
    blurred = values.clone()
    inner = blurred[..., 1:-1, 1:-1]
    inner.mul_(4).add_(total).div_(13).round_()
    return blurred
