"""Colour augmentation of a batch in 0..1, with other parameters for every image."""

import torch
from torch import Tensor

from zoo.data import ops
from zoo.data.views.draws import Draws, constant, only

LUMINANCE = (0.299, 0.587, 0.114)  # ITU-R 601, as Pillow's mode "L"
CONTRAST, SATURATION, SLOTS = 1, 2, 3  # brightness, contrast, saturation take the three slots of an order
DARKEST = (3 / 6, 5 / 6, 1 / 6)  # the hues where red, green, blue are smallest


def color_jitter(op: ops.ColorJitter, images: Tensor, draws: Draws) -> Tensor:
    """Change brightness, contrast, saturation and hue of each image `[B, 3, H, W]` in its own order.

    The order of the first three and the place of hue among them, each uniform, make the uniform order of
    four; hue, which costs most, is so computed once. The others are affine maps of an image's colours,
    x -> f x + (1 - f) base: a 3 x 3 product a slot.
    """
    order = draws.rand(None, 3).argsort(1)
    hue_slot = draws.randint(4.0) if op.hue > 0 else draws.randint(4.0) * 0  # how many come before hue
    chosen = draws.chosen(op.p)
    limits = ((max(0.0, 1 - s), 1 + s) for s in (op.brightness, op.contrast, op.saturation))
    factors = torch.stack([draws.uniform(low, high) for low, high in limits], 1)
    hue = draws.uniform(-op.hue, op.hue)

    def jitter(images: Tensor, order: Tensor, hue_slot: Tensor, factors: Tensor, hue: Tensor) -> Tensor:
        luminance = constant(LUMINANCE, images.device)
        factor = factors.gather(1, order)[..., None]  # [B, slot, 1]
        matrix = factor[..., None] * torch.eye(3, device=images.device)  # [B, slot, 3, 3]
        # to every row the grey value, or [B, slot, 3] of the channels' means
        matrix += ((1 - factor) * (order == SATURATION)[..., None] * luminance)[:, :, None]
        of_mean = (1 - factor) * (order == CONTRAST)[..., None] * luminance
        after = hue_slot[:, None] <= torch.arange(SLOTS, device=images.device)  # [B, slot]
        pixels = images.flatten(2)
        if op.hue > 0:
            for slot in range(SLOTS):
                pixels = only(~after[:, slot], _map_colors, pixels, matrix[:, slot], of_mean[:, slot])
            pixels = shift_hue(pixels.view_as(images), hue).flatten(2)
        for slot in range(SLOTS):
            pixels = only(after[:, slot], _map_colors, pixels, matrix[:, slot], of_mean[:, slot])
        return pixels.view_as(images)

    return only(chosen, jitter, images, order, hue_slot, factors, hue)


def _map_colors(pixels: Tensor, matrix: Tensor, of_mean: Tensor) -> Tensor:
    offset = (pixels.mean(2) * of_mean).sum(1)
    return torch.baddbmm(offset[:, None, None], matrix, pixels).clamp_(0, 1)


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


def grayscale(op: ops.Grayscale, images: Tensor, draws: Draws) -> Tensor:
    """Replace all three channels by the luminance."""

    def grey(images: Tensor) -> Tensor:
        red, green, blue = torch.split(images, 1, 1)
        luminance = (LUMINANCE[0] * red).add_(green, alpha=LUMINANCE[1]).add_(blue, alpha=LUMINANCE[2])
        return luminance.expand_as(images)

    return only(draws.chosen(op.p), grey, images)


def solarize(op: ops.Solarize, images: Tensor, draws: Draws) -> Tensor:
    """Invert values of at least `threshold` / 255, after rounding to 8 bits as Pillow has them."""

    def inverted(images: Tensor) -> Tensor:
        return torch.where((images * 255).round() >= op.threshold, 1 - images, images)

    return only(draws.chosen(op.p), inverted, images)
