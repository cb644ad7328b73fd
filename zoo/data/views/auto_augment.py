"""AutoAugment (1805.09501) and RandAugment (1909.13719) for a batch, bit for bit equal to Pillow.

A draw has finitely many outcomes: an operation, its strength, its sign. So their parameters are computed
once, with Pillow itself, as rows of a table on the device, and a draw is a row number. Images are rounded to
8 bits: `[B, 3, H, W]`, uint8. Sources: Pillow's `Geometry.c`, `Blend.c`, `Convert.c`, `ImageOps.py`.
"""

from collections.abc import Sequence
from functools import cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor
from torchvision.transforms import AutoAugment, AutoAugmentPolicy
from torchvision.transforms.v2.functional import equalize

from zoo.data import ops
from zoo.data.views.transforms import Draws, apply_where, to_device

# maximal strength of the operations whose sign is drawn; the minimum is 0
SIGNED = {
    **dict.fromkeys(("ShearX", "ShearY"), 0.3),  # pixels per pixel
    **dict.fromkeys(("TranslateX", "TranslateY"), 150 / 331),  # share of width and height
    "Rotate": 30.0,  # degrees
    **dict.fromkeys(("Brightness", "Color", "Contrast", "Sharpness"), 0.9),  # the factor is 1 + strength
}
RAND_AUGMENT = ("Identity", *SIGNED, "Posterize", "Solarize", "AutoContrast", "Equalize")

MOVED, SHEARED, UNCHANGED, TABLE, AUTO_CONTRAST, EQUALIZE, COLOR, CONTRAST, SHARPNESS = range(9)
_KINDS = {
    **dict.fromkeys(("Brightness", "Posterize", "Solarize", "Invert"), TABLE),
    **{"Identity": UNCHANGED, "AutoContrast": AUTO_CONTRAST, "Equalize": EQUALIZE},
    **{"Color": COLOR, "Contrast": CONTRAST, "Sharpness": SHARPNESS},
}  # all others are MOVED, or SHEARED

Rows = tuple[Tensor, ...]  # columns of the table of possible draws, see `rows_of`


def auto_augment(op: ops.AutoAugment | ops.RandAugment, images: Tensor, draws: Draws) -> Tensor:
    """Apply the policy, or `num_ops` operations, drawn for each image `[B, 3, H, W]`, with values in 0..1."""
    rows, p = space(op, *images.shape[-2:], images.device)
    drawn = torch.cat([draw(p, draws) for _ in range(getattr(op, "num_ops", 1))], 1)
    pixels = (images * 255).round_().to(torch.uint8)
    for row in drawn.unbind(1):
        pixels = apply(pixels, rows, row, fill=128 if getattr(op, "variant", None) == "paco" else 0)
    return pixels * (1 / 255)


def draw(p: Tensor, draws: Draws) -> Tensor:
    """Draw table rows `[B, S]`: for each image one of N sequences, with step probabilities `p` `[N, S]`.

    Row 2 (i S + s) is step s of sequence i, the next row has the opposite sign; row 2 N S does nothing.
    """
    count, steps = p.shape
    sequence = draws.randint(float(count)).long()
    happens, sign = draws.rand(2, None, steps)
    row = (sequence[:, None] * steps + torch.arange(steps)) * 2 + (sign < 0.5)
    return torch.where(happens < p[sequence], row, 2 * count * steps)


@cache  # copy the table to the device only once: such a large copy would stall it
def space(
    op: ops.AutoAugment | ops.RandAugment, height: int, width: int, device: torch.device
) -> tuple[Rows, Tensor]:
    """Return the table of possible draws for one image size, and the probabilities `p` `[N, S]`."""
    if isinstance(op, ops.AutoAugment):
        sequences, bins, paco = AutoAugment(AutoAugmentPolicy.CIFAR10).policies, 10, op.variant == "paco"
    else:
        sequences, bins, paco = [((n, 1.0, op.magnitude),) for n in RAND_AUGMENT], 31, False
    outcomes = []
    for name, _, index in (step for sequence in sequences for step in sequence):
        amount = strength(name, bins, index, height, width, paco=paco)
        one_sign = name not in SIGNED or (paco and name == "Rotate")
        outcomes += [(name, amount), (name, amount if one_sign else -amount)]
    p = torch.tensor([[p for _, p, _ in sequence] for sequence in sequences])
    return rows_of([*outcomes, ("Identity", 0.0)], height, width, device, paco=paco), p


def strength(name: str, bins: int, index: int | None, height: int, width: int, *, paco: bool) -> float:
    """Return strength number `index` of `bins`, without its sign, in the units of `SIGNED`.

    Exceptions: translations are in pixels, Posterize in bits, Solarize's threshold is a share of 255, and
    operations without a strength have 0. Rounded as in torchvision; for PaCo, in float64.
    """
    if index is None:
        return 0.0
    if name == "Posterize":
        return float((8 - torch.arange(bins) / ((bins - 1) / 4)).round()[index])
    length = {"TranslateX": width, "TranslateY": height}.get(name, 1)
    solarize = (256 / 255 if paco else 1.0, 0.0)
    first, last = solarize if name == "Solarize" else (0.0, SIGNED.get(name, 0.0) * length)
    return float((np.linspace if paco else torch.linspace)(first, last, bins)[index])


def rows_of(
    outcomes: Sequence[tuple[str, float]], height: int, width: int, device: torch.device, *, paco: bool
) -> Rows:
    """Return the table rows of operations, given by name and signed strength, for one image size.

    The columns: the kind, a constant above (MOVED, ...) `[R]`, on the host; the source index of each pixel
    `[R, H W]`, int32, -1 outside the image; for SHEARED, the shift in pixels per column `[R]`, float64; a
    lookup table of the 256 values `[R, 256]`, uint8; the factor of a blend `[R]`.
    """
    kinds, sources, tables = list[int](), list[NDArray[np.int32]](), list[NDArray[np.uint8]]()
    for name, amount in outcomes:
        places = Image.fromarray(np.arange(height * width, dtype=np.int32).reshape(height, width) + 1)
        values = Image.fromarray(np.arange(256, dtype=np.uint8)[None])
        if name == "Rotate":
            places = places.rotate(amount)
        elif name in ("ShearX", "ShearY", "TranslateX", "TranslateY"):
            x, y = amount * name.endswith("X"), amount * name.endswith("Y")
            affine: tuple[float, ...] = (1, x, 0, y, 1, 0)
            if name.startswith("Translate"):
                affine = (1, 0, x, 0, 1, y) if paco else (1, 0, -int(x), 0, 1, -int(y))
            places = places.transform(places.size, Image.Transform.AFFINE, affine)
        elif name == "Brightness":
            values = ImageEnhance.Brightness(values).enhance(1 + amount)
        elif name == "Posterize":
            values = ImageOps.posterize(values, int(amount))
        elif name in ("Solarize", "Invert"):
            values = ImageOps.solarize(values, 255 * amount)  # type: ignore[arg-type]  # Invert: all values
        # CIFAR-10's policy has no ShearX
        kinds.append(SHEARED if paco and name == "ShearY" else _KINDS.get(name, MOVED))
        sources.append(np.array(places).flatten() - 1)
        tables.append(np.array(values)[0])
    amounts = torch.tensor([amount for _, amount in outcomes], dtype=torch.float64, device=device)
    moved, changed = (torch.from_numpy(np.stack(each)).to(device) for each in (sources, tables))
    return torch.tensor(kinds), moved, amounts, changed, (1 + amounts).float()


def apply(images: Tensor, rows: Rows, row: Tensor, *, fill: int) -> Tensor:
    """Apply to each image its `row` `[B]` of the table; `fill` is the grey level outside the image."""
    kind, there = rows[0][row], to_device(row, images.device)
    source, down, table, factor = (column.index_select(0, there) for column in rows[1:])
    images = apply_where(kind == MOVED, partial(move, fill=fill), images, source)
    images = apply_where(kind == SHEARED, partial(shear, fill=fill), images, down)
    images = apply_where(kind == TABLE, look_up, images, table)
    images = apply_where(kind == AUTO_CONTRAST, auto_contrast, images)
    images = apply_where(kind == EQUALIZE, equalize, images)
    return apply_where(kind >= COLOR, blend, images, kind, factor)


def move(images: Tensor, source: Tensor, fill: int) -> Tensor:
    """Copy each pixel from its index in `source` `[B, H W]`; `fill` outside the image."""
    places = source.long()[:, None].expand(-1, images.shape[1], -1)
    moved = images.flatten(2).gather(2, places.clamp(min=0))
    return moved.masked_fill_(places < 0, fill).view_as(images)


def shear(images: Tensor, along: Tensor, fill: int) -> Tensor:
    """Shear along y by `along` `[B]` pixels per column, with Pillow's bicubic filter; `fill` outside."""
    height, width = images.shape[-2:]
    x, y = (torch.arange(n, device=images.device, dtype=torch.float64) + 0.5 for n in (width, height))
    row = along[:, None, None] * x + y[:, None]
    inside = (row >= 0) & (row < height)
    row = row - 0.5
    top = row.floor()
    part = (row - top)[:, None]  # fraction below the upper pixel
    taps = [(top + step).clamp_(0, height - 1).long()[:, None] for step in (-1, 0, 1, 2)]
    a, b, c, d = (images.gather(2, tap.expand_as(images)).double() for tap in taps)
    cubic = b + part * ((c - a) + part * ((2 * (a - b) + c - d) + part * (b - a - c + d)))
    return cubic.clamp_(0, 255).to(torch.uint8).masked_fill_(~inside[:, None], fill)


def look_up(images: Tensor, table: Tensor) -> Tensor:
    """Replace each value by its entry in the image's lookup table."""
    tables = table[:, None].expand(-1, images.shape[1], -1)
    return tables.gather(2, images.flatten(2).long()).view_as(images)


def auto_contrast(images: Tensor) -> Tensor:
    """Stretch each channel of each image to 0..255."""
    low, high = (limit.double()[..., None, None] for limit in images.flatten(2).aminmax(dim=2))
    scale = torch.full_like(low, 255).div_((high - low).clamp(min=1))  # `255 / x` would compute 255 * (1 / x)
    stretched = (images * scale).sub_(low * scale).clamp_(0, 255).to(torch.uint8)
    return torch.where(high > low, stretched, images)


def blend(images: Tensor, kind: Tensor, factor: Tensor) -> Tensor:
    """Return base + factor (image - base), rounded down; the base is grey, mean grey or a blurred image."""
    red, green, blue = torch.split(images.float(), 1, 1)
    # Pillow's mode "L"; exact in float32, since all sums are whole numbers below 2^24
    grey = (red * 19595 + green * 38470 + blue * 7471 + 32768).div_(65536).floor_()
    mean = grey.mean((1, 2, 3), keepdim=True, dtype=torch.float64)  # float32 is exact up to 256x256 pixels
    mean = (mean + 0.5).floor_().to(grey.dtype)
    grey = torch.where(to_device(kind == CONTRAST, images.device)[:, None, None, None], mean, grey)
    base = grey.expand_as(images).contiguous()
    base = apply_where(kind == SHARPNESS, lambda _, images: smooth(images), base, images)
    changed = (images.float() - base).mul_(factor[:, None, None, None]).add_(base)
    return changed.clamp_(0, 255).to(torch.uint8)


def smooth(images: Tensor) -> Tensor:
    """Return a 3x3 blur, float32, with weight 5 at the centre and 1 around it; edge pixels are kept."""
    blurred = images.float()
    columns = blurred[..., :-2] + blurred[..., 1:-1] + blurred[..., 2:]
    total = columns[..., :-2, :] + columns[..., 1:-1, :] + columns[..., 2:, :]
    blurred[..., 1:-1, 1:-1].mul_(4).add_(total).div_(13).round_()
    return blurred
