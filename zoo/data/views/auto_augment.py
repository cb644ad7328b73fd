"""AutoAugment (1805.09501) and RandAugment (1909.13719) for a batch: equal to Pillow to the bit.

What can be drawn is finite: an operation, its strength, its sign. So all parameters are computed once, with
Pillow itself, as rows of a table on the device; a draw is the number of a row. Images are rounded to 8 bits:
`[B, 3, H, W]`, uint8. Sources: Pillow's `Geometry.c`, `Blend.c`, `Convert.c`, `ImageOps.py`.
"""

from collections.abc import Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor
from torchvision.transforms import AutoAugment, AutoAugmentPolicy

from zoo.data import ops
from zoo.data.views.draws import Draws, only

# the largest strength of the operations whose sign is drawn; the smallest is 0
SIGNED = {
    **dict.fromkeys(("ShearX", "ShearY"), 0.3),  # pixels per pixel
    **dict.fromkeys(("TranslateX", "TranslateY"), 150 / 331),  # of the width, of the height
    "Rotate": 30.0,  # degrees
    **dict.fromkeys(("Brightness", "Color", "Contrast", "Sharpness"), 0.9),  # the factor is 1 + strength
}
RAND_AUGMENT = ("Identity", *SIGNED, "Posterize", "Solarize", "AutoContrast", "Equalize")
BINS, RAND_AUGMENT_BINS = 10, 31  # strengths to choose from
LEVELS = 256

MOVED, SHEARED, UNCHANGED, TABLE, AUTO_CONTRAST, EQUALIZE, COLOR, CONTRAST, SHARPNESS = range(9)
_KINDS = {
    **dict.fromkeys(("Brightness", "Posterize", "Solarize", "Invert"), TABLE),
    **{"Identity": UNCHANGED, "AutoContrast": AUTO_CONTRAST, "Equalize": EQUALIZE},
    **{"Color": COLOR, "Contrast": CONTRAST, "Sharpness": SHARPNESS},
}  # of all others: MOVED or SHEARED


class Rows(NamedTuple):
    """What can be drawn, one row each; or, after a draw, one row for each image.

    Attributes:
        kind: which of the constants above `[R]`.
        source: the place that each pixel is taken from `[R, H W]`, int32; -1 where that is outside.
        shear: pixels along x a row, and along y a column `[R, 2]`, float64, for SHEARED.
        table: the new value of each of the 256 `[R, 256]`, uint8.
        factor: of a blend `[R]`.
    """

    kind: Tensor
    source: Tensor
    shear: Tensor
    table: Tensor
    factor: Tensor


def auto_augment(op: ops.AutoAugment | ops.RandAugment, images: Tensor, draws: Draws) -> Tensor:
    """Apply a policy, or `num_ops` operations, drawn for each of `images` `[B, 3, H, W]`, float32 in 0..1."""
    rows, p = space(op, *images.shape[-2:], images.device)
    drawn = torch.cat([draw(p, draws) for _ in range(getattr(op, "num_ops", 1))], 1)
    pixels = (images * 255).round_().to(torch.uint8)
    for row in drawn.unbind(1):
        chosen = Rows(*(column.index_select(0, row) for column in rows))
        pixels = apply(pixels, chosen, getattr(op, "variant", "torchvision"))
    return pixels * (1 / 255)


def draw(p: Tensor, draws: Draws) -> Tensor:
    """Draw rows `[B, S]`: one of N sequences for each image, whose steps have the probabilities `p` `[N, S]`.

    Row (i S + s) 2 is step s of sequence i, the next one the same with the other sign, and 2 N S nothing.
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
    if isinstance(op, ops.AutoAugment):
        sequences, bins, variant = AutoAugment(AutoAugmentPolicy(op.policy)).policies, BINS, op.variant
    else:
        sequences, bins = [((name, 1.0, op.magnitude),) for name in RAND_AUGMENT], RAND_AUGMENT_BINS
        variant = "torchvision"
    outcomes = []
    for name, _, index in (step for sequence in sequences for step in sequence):
        amount = strength(name, bins, index, height, width, variant)
        one_sign = name not in SIGNED or (variant, name) == ("paco", "Rotate")
        outcomes += [(name, amount), (name, amount if one_sign else -amount)]
    p = torch.tensor([[p for _, p, _ in sequence] for sequence in sequences], device=device)
    return rows_of([*outcomes, ("Identity", 0.0)], height, width, device, variant), p


def strength(name: str, bins: int, index: int | None, height: int, width: int, variant: str) -> float:
    """Return the strength number `index` of `bins`, before its sign, in the units of `SIGNED`.

    But translations are in pixels, Posterize in bits, and Solarize in shares of 255, from which on values are
    inverted. 0 for what has no strength. Rounded where torchvision rounds; PaCo's stay in float64.
    """
    if index is None or name == "Identity":
        return 0.0
    length = {"TranslateX": width, "TranslateY": height}.get(name, 1)
    if name == "Posterize":
        return float((8 - torch.arange(bins) / ((bins - 1) / 4)).round()[index])
    if variant == "paco" and (name in SIGNED or name == "Solarize"):
        first, last = (0.0, SIGNED[name]) if name in SIGNED else (256 / 255, 0.0)
        return float(np.linspace(first, last, bins)[index]) * length
    first, last = (1.0, 0.0) if name == "Solarize" else (0.0, SIGNED.get(name, 0.0) * length)
    return float(torch.linspace(first, last, bins)[index])


def rows_of(
    outcomes: Sequence[tuple[str, float]], height: int, width: int, device: torch.device, variant: str
) -> Rows:
    """Return the rows of operations, by name and signed strength, for images of `height` x `width` pixels."""
    paco, kinds, sources, shears = variant == "paco", list[int](), list[Tensor](), list[list[float]]()
    for name, amount in outcomes:
        sheared = paco and name in ("ShearX", "ShearY")
        kinds.append(_KINDS.get(name, SHEARED if sheared else MOVED))
        sources.append(_source(name, amount, height, width, truncate=not paco))
        shears.append([amount * (name == "ShearX"), amount * (name == "ShearY")])
    return Rows(
        torch.tensor(kinds, device=device),
        torch.stack(sources).to(device),
        torch.tensor(shears, dtype=torch.float64, device=device),
        torch.stack([_table(*outcome) for outcome in outcomes]).to(device),
        torch.tensor([1 + amount for _, amount in outcomes], device=device),
    )


def _source(name: str, strength: float, height: int, width: int, *, truncate: bool) -> Tensor:
    """Return where an operation takes each pixel from: what Pillow makes of an image of places."""
    places = Image.fromarray(np.arange(1, height * width + 1, dtype=np.int32).reshape(height, width))
    shift = -float(int(strength)) if truncate else strength
    x, y = shift * (name == "TranslateX"), shift * (name == "TranslateY")
    along_x, along_y = strength * (name == "ShearX"), strength * (name == "ShearY")
    if name == "Rotate":
        places = places.rotate(strength)
    else:
        places = places.transform(places.size, Image.Transform.AFFINE, (1, along_x, x, along_y, 1, y))
    return torch.from_numpy(np.array(places)).flatten() - 1


def _table(name: str, strength: float) -> Tensor:
    """Return what Pillow makes of each of the 256 values."""
    values = Image.fromarray(np.arange(LEVELS, dtype=np.uint8)[None])
    if name == "Brightness":
        values = ImageEnhance.Brightness(values).enhance(1 + strength)
    elif name == "Posterize":
        values = ImageOps.posterize(values, int(strength))
    elif name in ("Solarize", "Invert"):
        values = ImageOps.solarize(values, 255 * strength)  # type: ignore[arg-type]  # from 0 on: all
    return torch.from_numpy(np.array(values)).flatten()


def apply(images: Tensor, rows: Rows, variant: str) -> Tensor:
    """Change each image as its row says; `variant` as `ops.AutoAugment` has it."""
    kind, fill = rows.kind, 128 if variant == "paco" else 0  # the grey level of what moves in
    images = only(kind == MOVED, partial(transform, fill=fill), images, rows.source)
    if variant == "paco":  # on a GPU it is computed for all images
        images = only(kind == SHEARED, partial(shear, fill=fill), images, rows.shear)
    images = only((kind >= TABLE) & (kind <= EQUALIZE), look_up, images, kind, rows.table)
    return only(kind >= COLOR, blend, images, kind, rows.factor)


def transform(images: Tensor, source: Tensor, fill: int) -> Tensor:
    """Take every pixel from where `source` of `Rows` says; `fill` outside."""
    places = source.long()[:, None].expand(-1, images.shape[1], -1)
    moved = images.flatten(2).gather(2, places.clamp(min=0))
    return moved.masked_fill_(places < 0, fill).view_as(images)


def shear(images: Tensor, along: Tensor, fill: int) -> Tensor:
    """Shear along x or y, as `shear` of `Rows` says, with Pillow's bicubic filter; `fill` outside."""
    batch, channels, height, width = images.shape
    x = torch.arange(width, device=images.device, dtype=torch.float64).add_(0.5)
    y = torch.arange(height, device=images.device, dtype=torch.float64).add_(0.5)[:, None]
    along_x, along_y = along[..., None, None].unbind(1)  # one of them is 0
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
    low, high = (limit.double()[..., None] for limit in images.flatten(2).aminmax(dim=2))
    scale = torch.full_like(low, 255).div_((high - low).clamp(min=1))  # 255 / x would be 255 * (1 / x)
    values = torch.arange(LEVELS, device=images.device, dtype=torch.float64)
    tables = (values * scale + -low * scale).clamp_(0, 255).to(torch.uint8)
    return torch.where(high > low, tables, unchanged)


def equalize_tables(unchanged: Tensor, images: Tensor) -> Tensor:
    """Return the tables `[B, 3, 256]` that make the values of each channel of each image equally frequent."""
    flat = images.flatten(2).long()
    counts = flat.new_zeros((*flat.shape[:2], LEVELS))
    counts.scatter_add_(2, flat, flat.new_ones(()).expand_as(flat))
    step = (flat.shape[2] - counts.gather(2, flat.amax(2, keepdim=True))) // 255
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
    blurred = images.float()
    columns = blurred[..., :-2] + blurred[..., 1:-1] + blurred[..., 2:]
    total = columns[..., :-2, :] + columns[..., 1:-1, :] + columns[..., 2:, :]
    blurred[..., 1:-1, 1:-1].mul_(4).add_(total).div_(13).round_()
    return blurred
