"""Colour augmentation of a batch in 0..1, with other parameters for every image."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.data.tensor_views.draws import can_look, constant

LUMINANCE = (0.299, 0.587, 0.114)  # ITU-R 601, as Pillow's mode "L"
BRIGHTNESS, CONTRAST, SATURATION = 0, 1, 2
SLOTS = 3
DARKEST = (3 / 6, 5 / 6, 1 / 6)  # the hues where red, green, blue are smallest


def color_jitter(
    images: Tensor, order: Tensor, hue_slot: Tensor, factors: Tensor, hue: Tensor | None, chosen: Tensor
) -> Tensor:
    """Change brightness, contrast, saturation and hue of each image in its own order.

    The first three are affine maps of an image's colours, x -> f x + (1 - f) base: one batched 3 x 3 product
    for every slot of the order. The order of the three and the place of hue among them, each uniform, make
    the uniform order of four; hue is so computed once, with the affine maps before and after.

    Args:
        images: `[B, 3, H, W]` in 0..1.
        order: which of BRIGHTNESS, CONTRAST, SATURATION comes first, second, third `[B, 3]`.
        hue_slot: how many of them come before hue `[B]`, 0 to 3.
        factors: of brightness, contrast and saturation `[B, 3]`; 1 changes nothing.
        hue: shift in turns of the colour wheel `[B]`; None: no image's hue changes.
        chosen: the images that change `[B]`, bool.
    """
    if hue is None:
        hue_slot = torch.zeros_like(hue_slot)  # all maps come after it
    if not can_look(images.device):
        factors = torch.where(chosen[:, None], factors, 1.0)
        hue = None if hue is None else torch.where(chosen, hue, 0.0)
        return _jitter(images, order, hue_slot, factors, hue)
    index = chosen.nonzero()[:, 0]
    index = index[hue_slot[index].argsort()]
    every = (images, order, hue_slot, factors) if hue is None else (images, order, hue_slot, factors, hue)
    return images.index_copy(0, index, _jitter(*(each.index_select(0, index) for each in every)))


def _jitter(
    images: Tensor, order: Tensor, hue_slot: Tensor, factors: Tensor, hue: Tensor | None = None
) -> Tensor:
    """Change all images.

    Where values may be looked at, images come in the order of `hue_slot` and are overwritten.
    """
    luminance = constant(LUMINANCE, images.device)
    factor = factors.gather(1, order)[..., None]  # [B, slot, 1]
    rest = 1 - factor
    identity = torch.eye(3, device=images.device)
    matrix = factor[..., None] * identity  # [B, slot, 3, 3]
    matrix += (rest * (order == SATURATION)[..., None] * luminance)[:, :, None]  # every row: the grey value
    of_mean = rest * (order == CONTRAST)[..., None] * luminance  # [B, slot, 3]: of the channels' means
    after = hue_slot[:, None] <= torch.arange(SLOTS, device=images.device)  # [B, slot]
    counts = after.sum(0).tolist() if can_look(images.device) else None

    def map_colors(pixels: Tensor, slot: int, is_after: bool) -> Tensor:
        """Do one slot, in place where the images that it changes are the first or the last ones."""
        if counts is None:
            active = after[:, slot] if is_after else ~after[:, slot]
            some = torch.where(active[:, None, None], matrix[:, slot], identity)
            return _product(pixels, some, of_mean[:, slot] * active[:, None]).clamp_(0, 1)
        span = slice(counts[slot]) if is_after else slice(counts[slot], None)
        if len(pixels[span]):
            changed = _product(pixels[span], matrix[span, slot], of_mean[span, slot])
            torch.clamp(changed, 0, 1, out=pixels[span])
        return pixels

    pixels = images.flatten(2)
    if hue is not None:
        for slot in range(SLOTS):
            pixels = map_colors(pixels, slot, is_after=False)
        pixels = shift_hue(pixels.view_as(images), hue).flatten(2)
    for slot in range(SLOTS):
        pixels = map_colors(pixels, slot, is_after=True)
    return pixels.view_as(images)


def _product(pixels: Tensor, matrix: Tensor, of_mean: Tensor) -> Tensor:
    offset = (pixels.mean(2) * of_mean).sum(1)
    return torch.baddbmm(offset[:, None, None], matrix, pixels)


def shift_hue(images: Tensor, hue: Tensor) -> Tensor:
    """Turn the hue of each image by `hue` `[B]` turns, at the same HSV value and chroma.

    With V the largest of a pixel's channels, C = V - the smallest, and h its hue in turns, a channel is
    V - C clamp(2 - 6 d, 0, 1) = V - 2 C + 6 C clamp(d, 1/6, 2/6), d the distance on the colour wheel from
    h to the hue where the channel is darkest: half a turn, 5/6 and 1/6 of one. Saturation is never formed.
    """
    red, green, blue = images.unbind(1)
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    not_red, not_green = (value - red).sign_(), (value - green).sign_()  # 0 or 1; faster than a condition
    if_green = torch.add(blue - red, chroma, alpha=2)
    if_blue = torch.add(red - green, chroma, alpha=4)
    sixths = torch.lerp(green - blue, torch.lerp(if_green, if_blue, not_green), not_red)
    sixths /= chroma.clamp(min=1e-8)  # grey pixels: any hue gives the same pixel, as chroma is 0
    shifted = hue[:, None] - constant(DARKEST, images.device)  # [B, 3]
    distance = torch.add(shifted[..., None, None], sixths[:, None], alpha=1 / 6)
    distance = distance.sub_(distance.round()).abs_().clamp_(1 / 6, 2 / 6)
    darker = torch.sub(value, chroma, alpha=2)
    return torch.addcmul(darker[:, None], chroma[:, None], distance, value=6)


def grayscale(images: Tensor) -> Tensor:
    """Replace all three channels by the luminance."""
    red, green, blue = torch.split(images, 1, 1)
    grey = (LUMINANCE[0] * red).add_(green, alpha=LUMINANCE[1]).add_(blue, alpha=LUMINANCE[2])
    return grey.expand_as(images)


def solarize(images: Tensor, threshold: int) -> Tensor:
    """Invert values of at least `threshold` / 255, after rounding to 8 bits as Pillow has them."""
    return torch.where((images * 255).round() >= threshold, 1 - images, images)
