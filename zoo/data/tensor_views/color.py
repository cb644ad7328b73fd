"""Colour augmentation of a batch in 0..1, with other parameters for every image and no branch on them."""

from __future__ import annotations

import torch
from torch import Tensor

LUMINANCE = (0.299, 0.587, 0.114)  # ITU-R 601, as Pillow's mode "L"
BRIGHTNESS, CONTRAST, SATURATION = 0, 1, 2


def _luminance(images: Tensor) -> Tensor:
    return images.new_tensor(LUMINANCE)


def color_jitter(
    images: Tensor, order: Tensor, hue_slot: Tensor, factors: Tensor, hue: Tensor | None
) -> Tensor:
    """Change brightness, contrast, saturation and hue of each image in its own order.

    The first three are affine maps of an image's colours, x -> f x + (1 - f) base, so all of them, for all
    images, are one batched 3 x 3 product. The order of the three and the place of hue among them, each
    uniform, make the uniform order of four; hue is so computed once, with the affine maps before and after.

    Args:
        images: `[B, 3, H, W]` in 0..1.
        order: which of BRIGHTNESS, CONTRAST, SATURATION comes first, second, third `[B, 3]`.
        hue_slot: how many of them come before hue `[B]`, 0 to 3.
        factors: of brightness, contrast and saturation `[B, 3]`; 1 changes nothing.
        hue: shift in turns of the colour wheel `[B]`; None: no image's hue changes.
    """
    if hue is None:
        return _affine_maps(images, order, factors, torch.ones_like(order, dtype=torch.bool))
    before = torch.arange(3, device=order.device) < hue_slot[:, None]
    images = _affine_maps(images, order, factors, before)
    return _affine_maps(shift_hue(images, hue), order, factors, ~before)


def _affine_maps(images: Tensor, order: Tensor, factors: Tensor, active: Tensor) -> Tensor:
    """Apply the maps of the slots that are `active` `[B, 3]`, one slot after another, values kept in 0..1."""
    batch, channels, height, width = images.shape
    pixels = images.reshape(batch, channels, height * width)
    luminance = _luminance(images)
    identity = torch.eye(3, device=images.device)
    for slot in range(3):
        kind = order[:, slot]
        factor = torch.where(active[:, slot], factors.gather(1, kind[:, None])[:, 0], 1.0)
        rest = 1 - factor
        matrix = factor[:, None, None] * identity
        matrix = (
            matrix + (rest * (kind == SATURATION))[:, None, None] * luminance
        )  # every row: the grey value
        grey = pixels.mean(2) @ luminance
        offset = (rest * (kind == CONTRAST) * grey)[:, None, None]
        pixels = torch.baddbmm(offset, matrix, pixels).clamp_(0, 1)
    return pixels.view(batch, channels, height, width)


def shift_hue(images: Tensor, hue: Tensor) -> Tensor:
    """Turn the hue of each image by `hue` `[B]` turns, at the same HSV value and chroma.

    With V the largest of a pixel's channels, C = V - the smallest, and h its hue in turns, a channel is
    V - C clamp(2 - 6 d, 0, 1) = V - 2 C + 6 C clamp(d, 1/6, 2/6), d the distance on the colour wheel from
    h to the hue where the channel is darkest: half a turn, 5/6 and 1/6 of one. Saturation is never formed.
    """
    red, green, blue = images.unbind(1)
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    inverse = (1 / 6) / chroma.clamp(min=1e-8)  # grey pixels: any hue gives the same pixel, as chroma is 0
    turns = torch.where(
        value == red,
        (green - blue) * inverse,
        torch.where(value == green, 2 / 6 + (blue - red) * inverse, 4 / 6 + (red - green) * inverse),
    )
    turns += hue[:, None, None]
    distance = turns[:, None] - turns.new_tensor([3 / 6, 5 / 6, 1 / 6])[:, None, None]
    distance = distance.sub_(distance.round()).abs_().clamp_(1 / 6, 2 / 6)
    return torch.addcmul((value - 2 * chroma)[:, None], (6 * chroma)[:, None], distance)


def grayscale(images: Tensor, chosen: Tensor) -> Tensor:
    """Replace the images `chosen` `[B]`, bool, by their luminance in all three channels."""
    red, green, blue = torch.split(images, 1, 1)
    grey = (LUMINANCE[0] * red).add_(green, alpha=LUMINANCE[1]).add_(blue, alpha=LUMINANCE[2])
    return torch.where(chosen[:, None, None, None], grey, images)


def solarize(images: Tensor, threshold: int, chosen: Tensor) -> Tensor:
    """Invert values of at least `threshold` / 255, after rounding to 8 bits as Pillow has them."""
    inverted = torch.where((images * 255).round() >= threshold, 1 - images, images)
    return torch.where(chosen[:, None, None, None], inverted, images)
