"""Random draws for a batch, and the operations that use them, with different parameters for every image.

A resized crop is linear and separable, out = R X C^T for a channel X: two small batched matrix products with
R `[B, h, H]` and C `[B, w, W]`. Source of the filters: Pillow's `Resample.c`.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from zoo.data import ops
from zoo.errors import DataError

LUMINANCE = (0.299, 0.587, 0.114)  # ITU-R 601, as Pillow's mode "L"
CONTRAST, SATURATION, SLOTS = 1, 2, 3  # brightness is operation 0; an order has three slots
BLOCK = 16  # output pixels that a blur computes in one product
LARGE = 64 * 64  # a CPU resizes images with more pixels one by one
DARKEST = (3 / 6, 5 / 6, 1 / 6)  # the hues at which red, green and blue are smallest


class Draws:
    """Draws random numbers on the host for all `total` images of a batch; returns rows `start` to `stop`."""

    def __init__(self, generator: Generator, total: int, start: int = 0, stop: int | None = None) -> None:
        self._generator, self._total, self._start = generator, total, start
        self._count = (total if stop is None else stop) - start

    def rand(self, *shape: int | None) -> Tensor:
        """Return numbers from U[0, 1); `shape` has None for the dimension of the images."""
        sizes = [self._total if size is None else size for size in shape]
        drawn = torch.rand(sizes, generator=self._generator)
        return drawn.narrow(shape.index(None), self._start, self._count)

    def uniform(self, low: float, high: float, *columns: int) -> Tensor:
        """Return numbers from U[low, high) `[B, *columns]`."""
        return self.rand(None, *columns) * (high - low) + low

    def randint(self, high: Tensor | float) -> Tensor:
        """Return an integer from 0 to `high` - 1 for each image `[B]`, float; `high`: `[B]` or a number."""
        return (self.rand(None) * high).floor_().clamp_(max=high - 1)  # rounding may reach `high` itself

    def chosen(self, p: float) -> Tensor:
        """Return a mask `[B]`, bool, that is True with probability `p`."""
        return self.rand(None) < p


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on `device`, copied without blocking the host (to a GPU from pinned memory)."""
    pins = device.type == "cuda" and tensor.device.type == "cpu"
    return (tensor.pin_memory() if pins else tensor).to(device, non_blocking=True)


def apply_where(chosen: Tensor, change: Callable[..., Tensor], images: Tensor, *parameters: Tensor) -> Tensor:
    """Apply `change` in place to the `images` `[B, ...]` where `chosen` `[B]` is True, and return all images.

    The mask is on the host, so that a GPU computes only the chosen images, without synchronisation.
    """
    index = chosen.nonzero()[:, 0]
    if len(index) == 0:
        return images
    there = to_device(index, images.device)
    own = (each.index_select(0, index if each.device == index.device else there) for each in parameters)
    return images.index_copy_(0, there, change(images.index_select(0, there), *own))


def random_resized_crop(op: ops.RandomResizedCrop, images: Tensor, draws: Draws) -> Tensor:
    """Crop and resize each image `[B, 3, H, W]` to `size` x `size` pixels."""
    height, width = images.shape[-2:]
    boxes = torch.stack(crop_boxes(op, height, width, draws))
    if images.device.type == "cpu" and height * width > LARGE and op.interpolation == "bilinear":
        made = images.new_empty(*images.shape[:2], op.size, op.size)
        for row, (y, x, h, w) in enumerate(boxes.int().mT.tolist()):  # 5 times as fast as the products below
            part = images[row : row + 1, :, y : y + h, x : x + w]
            made[row] = F.interpolate(part, made.shape[2:], mode="bilinear", antialias=True)[0]
        return made
    top, left, h, w = to_device(boxes, images.device)
    # rows and columns in one call: pixels beyond the shorter side have no weight
    start, length = torch.cat([top, left]), torch.cat([h, w])
    matrices = resample_matrix(start, length, op.size, max(height, width), op.interpolation)
    rows, cols = torch.tensor_split(matrices, 2)
    wide = torch.bmm(images.flatten(1, 2), cols[..., :width].mT).view(*images.shape[:3], op.size)
    leaves = op.interpolation == "bicubic"  # may leave 0..1; Pillow clips after each pass
    out = rows[:, None, :, :height] @ (wide.clamp_(0, 1) if leaves else wide)
    return out.clamp_(0, 1) if leaves else out


def crop_boxes(op: ops.RandomResizedCrop, height: int, width: int, draws: Draws) -> tuple[Tensor, ...]:
    """Draw boxes as torchvision's RandomResizedCrop does: top, left, height, width, each `[B]`, in pixels."""
    area = draws.uniform(op.scale[0], op.scale[1], 10) * (height * width)
    ratio = draws.uniform(math.log(op.ratio[0]), math.log(op.ratio[1]), 10).exp()  # 10 attempts
    w, h = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    first, found = fits.int().argmax(1, keepdim=True), fits.any(1)
    central_h = min(height, round(width / op.ratio[0]))
    central_w = min(width, round(height * op.ratio[1]))
    h = torch.where(found, h.gather(1, first)[:, 0], float(central_h))
    w = torch.where(found, w.gather(1, first)[:, 0], float(central_w))
    top = torch.where(found, draws.randint(height - h + 1), float((height - central_h) // 2))
    left = torch.where(found, draws.randint(width - w + 1), float((width - central_w) // 2))
    return top, left, h, w


def resample_matrix(start: Tensor, length: Tensor, size: int, source: int, interpolation: str) -> Tensor:
    """Return the matrices `[B, size, source]` that resize `length` `[B]` pixels from `start` `[B]` to `size`.

    Pixels outside have no influence. When shrinking, Pillow's filter is widened (antialiasing).
    """
    scale = length / size
    widening = scale.clamp(min=1)
    centers = (torch.arange(size, device=start.device) + 0.5) * scale[:, None] + start[:, None]
    pixels = torch.arange(source, device=start.device) + 0.5
    x = ((pixels - centers[:, :, None]) / widening[:, None, None]).abs_()
    if interpolation == "bilinear":
        weights = (1 - x).clamp_(min=0)
    else:  # Keys' kernel with Pillow's a = -0.5
        near, far = (1.5 * x - 2.5) * x * x + 1, (((x - 5) * x + 8) * x - 4) * -0.5
        weights = torch.where(x < 1, near, torch.where(x < 2, far, 0.0))
    weights *= ((pixels > start[:, None]) & (pixels < (start + length)[:, None]))[:, None, :]
    return weights.div_(weights.sum(2, keepdim=True))


def gaussian_blur(op: ops.GaussianBlur, images: Tensor, draws: Draws) -> Tensor:
    """Blur each image with its own standard deviation; DataError if the kernel is too large."""
    height, width = images.shape[-2:]
    if op.kernel_size // 2 >= min(height, width):
        raise DataError(f"gaussian_blur: kernel_size {op.kernel_size} is too large for {height}x{width}")
    sigma = draws.uniform(op.sigma[0], op.sigma[1])
    return apply_where(draws.chosen(op.p), partial(blur, kernel_size=op.kernel_size), images, sigma)


def blur(images: Tensor, sigma: Tensor, kernel_size: int) -> Tensor:
    """Return torchvision's Gaussian blur of each image with its `sigma` `[B]`; edges are reflected.

    Rows, then columns, are split into blocks of `BLOCK` pixels plus the kernel's reach. One small product per
    block does far less work than a single large one, and is much faster than a convolution.
    """
    height, width = images.shape[-2:]
    taps = torch.arange(kernel_size, device=images.device)
    sigma = to_device(sigma, images.device).clamp(min=1e-6)[:, None]
    kernel = torch.exp(-0.5 * ((taps - kernel_size // 2) / sigma) ** 2)
    reach = BLOCK + kernel_size - 1  # input pixels of a block
    tap = torch.arange(reach, device=images.device)[:, None] - torch.arange(BLOCK, device=images.device)
    kernel = F.pad(kernel / kernel.sum(1, keepdim=True), [0, 1])  # a zero for pixels out of reach
    band = kernel[:, torch.where((tap < 0) | (tap >= kernel_size), kernel_size, tap)]  # [B, reach, BLOCK]
    padded = F.pad(images, [kernel_size // 2] * 4, mode="reflect")
    rows = F.pad(padded, [0, -width % BLOCK, 0, -height % BLOCK]).unfold(3, reach, BLOCK)
    wide = torch.bmm(rows.reshape(len(images), -1, reach), band).view(*rows.shape[:3], -1)[..., :width]
    columns = wide.unfold(2, reach, BLOCK).transpose(3, 4)  # [B, 3, blocks, reach, W]
    return (band.mT[:, None, None] @ columns).flatten(2, 3)[:, :, :height]


def horizontal_flip(op: ops.HorizontalFlip, images: Tensor, draws: Draws) -> Tensor:
    """Mirror images left to right."""
    return apply_where(draws.chosen(op.p), lambda images: images.flip(-1), images)


def pad_crop(op: ops.PadCrop, images: Tensor, draws: Draws) -> Tensor:
    """Pad with zeros and crop `size` x `size` pixels; DataError if images are smaller."""
    height, width = images.shape[-2:]
    room = [length + 2 * op.padding - op.size for length in (height, width)]
    if min(room) < 0:
        raise DataError(f"pad_crop: {height}x{width} pixels padded by {op.padding} are less than {op.size}")
    top, left = (to_device(draws.randint(float(space + 1)).long(), images.device) for space in room)
    windows = F.pad(images, [op.padding] * 4).unfold(2, op.size, 1).unfold(3, op.size, 1)
    return windows[torch.arange(len(images), device=images.device), :, top, left]


def random_affine(op: ops.RandomAffine, images: Tensor, draws: Draws) -> Tensor:
    """Rotate, shift and zoom about the centre as Pillow does, bilinear with zeros outside."""
    height, width = images.shape[-2:]
    angle = torch.deg2rad(draws.uniform(-op.degrees, op.degrees))
    limits = op.translate[0] * width, op.translate[1] * height
    x, y = (draws.uniform(-limit, limit).round() for limit in limits)  # pixels to the right, and down
    scale = draws.uniform(op.scale[0], op.scale[1])
    if len(images) == 0:
        return images  # `affine_grid` rejects empty batches
    cos, sin = angle.cos() / scale, angle.sin() / scale
    theta = [
        torch.stack([cos, sin * (height / width), -(cos * x + sin * y) * (2 / width)], 1),
        torch.stack([-sin * (width / height), cos, (sin * x - cos * y) * (2 / height)], 1),
    ]
    grid = F.affine_grid(to_device(torch.stack(theta, 1), images.device), list(images.shape), False)
    moved = F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
    inside = ((grid >= -1) & (grid < 1)).all(-1)  # Pillow does not blend with the outside
    return moved * inside[:, None]


def cutout(op: ops.Cutout, images: Tensor, draws: Draws) -> Tensor:
    """Blacken a square around a random centre; it may extend beyond the image."""

    def covered(center: Tensor, length: int) -> Tensor:
        start = (center - (size / 2).floor())[:, None]
        position = torch.arange(length, device=images.device)
        return (position >= start) & (position < start + size[:, None])

    height, width = images.shape[-2:]
    y, x = (draws.randint(float(length)) for length in (height, width))
    drawn = torch.stack([y, x, draws.chosen(op.p) * float(op.size)])  # size 0 covers nothing
    y, x, size = to_device(drawn, images.device).unbind()
    hole = covered(y, height)[:, None, :, None] & covered(x, width)[:, None, None, :]
    return images.masked_fill(hole, 0)


def color_jitter(op: ops.ColorJitter, images: Tensor, draws: Draws) -> Tensor:
    """Change brightness, contrast, saturation and hue of each image `[B, 3, H, W]` in its own random order.

    A uniform order of three and a uniform position of hue give a uniform order of four, and hue, the most
    expensive, is computed only once. The others are affine maps of colours, x -> f x + (1 - f) base.
    """
    order = draws.rand(None, 3).argsort(1)
    hue_slot = draws.randint(4.0) if op.hue > 0 else draws.randint(4.0) * 0  # operations before hue
    chosen = draws.chosen(op.p)
    limits = ((max(0.0, 1 - s), 1 + s) for s in (op.brightness, op.contrast, op.saturation))
    factors = torch.stack([draws.uniform(low, high) for low, high in limits], 1)
    hue = draws.uniform(-op.hue, op.hue)

    def jitter(images: Tensor, order: Tensor, hue_slot: Tensor, factors: Tensor, hue: Tensor) -> Tensor:
        luminance = torch.tensor(LUMINANCE)
        factor = factors.gather(1, order)[..., None]  # [B, slot, 1]
        matrix = factor[..., None] * torch.eye(3)  # [B, slot, 3, 3]
        # saturation adds the grey value to each row, contrast its mean: [B, slot, 3] weights of channel means
        matrix += ((1 - factor) * (order == SATURATION)[..., None] * luminance)[:, :, None]
        of_mean = (1 - factor) * (order == CONTRAST)[..., None] * luminance
        after = hue_slot[:, None] <= torch.arange(SLOTS)  # [B, slot]
        pixels = images.flatten(2)
        if op.hue > 0:
            for slot in range(SLOTS):
                pixels = apply_where(~after[:, slot], _map_colors, pixels, matrix[:, slot], of_mean[:, slot])
            pixels = shift_hue(pixels.view_as(images), to_device(hue, images.device)).flatten(2)
        for slot in range(SLOTS):
            pixels = apply_where(after[:, slot], _map_colors, pixels, matrix[:, slot], of_mean[:, slot])
        return pixels.view_as(images)

    return apply_where(chosen, jitter, images, order, hue_slot, factors, hue)


def _map_colors(pixels: Tensor, matrix: Tensor, of_mean: Tensor) -> Tensor:
    matrix, of_mean = (to_device(each, pixels.device) for each in (matrix, of_mean))
    offset = (pixels.mean(2) * of_mean).sum(1)
    return torch.baddbmm(offset[:, None, None], matrix, pixels).clamp_(0, 1)


def shift_hue(images: Tensor, hue: Tensor) -> Tensor:
    """Rotate the hue of each image by `hue` `[B]` turns, keeping HSV value and chroma.

    With V a pixel's largest channel, C = V - its smallest and h its hue in turns, a channel is
    V - C clamp(2 - 6 d, 0, 1) = V - 2 C + 6 C clamp(d, 1/6, 2/6), where d is the distance on the colour wheel
    from h to the hue at which the channel is darkest (`DARKEST`). Saturation is not needed.
    """
    red, green, blue = images.unbind(1)
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    not_red, not_green = (value - red).sign_(), (value - green).sign_()  # 0 or 1; faster than torch.where
    if_green = torch.add(blue - red, chroma, alpha=2)
    if_blue = torch.add(red - green, chroma, alpha=4)
    sixths = torch.lerp(green - blue, torch.lerp(if_green, if_blue, not_green), not_red)
    sixths /= chroma.clamp(min=1e-8)  # for grey pixels the hue does not matter
    shifted = hue[:, None] - to_device(torch.tensor(DARKEST), images.device)  # [B, 3]
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

    return apply_where(draws.chosen(op.p), grey, images)


def solarize(op: ops.Solarize, images: Tensor, draws: Draws) -> Tensor:
    """Invert values of at least 128 / 255, compared after rounding to 8 bits like Pillow."""
    return apply_where(draws.chosen(op.p), lambda x: torch.where((x * 255).round() >= 128, 1 - x, x), images)
