"""The operations that make up a view, as a recipe states them.

Names and meaning of the parameters are torchvision's. Defaults are the literature's.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from zoo.config import Config, named_by

Interpolation = Literal["bilinear", "bicubic"]
Probability = Annotated[float, Field(ge=0, le=1)]
PositiveInt = Annotated[int, Field(gt=0)]
Strength = Annotated[float, Field(ge=0)]


def _ordered(bounds: list[float]) -> list[float]:
    if bounds[0] > bounds[1]:
        raise ValueError(f"found {bounds}, expected [low, high]")
    return bounds


def _odd(size: int) -> int:
    if size % 2 == 0:
        raise ValueError(f"found {size}, expected an odd number")
    return size


_Two = Field(min_length=2, max_length=2)
PositiveRange = Annotated[list[Annotated[float, Field(gt=0)]], _Two, AfterValidator(_ordered)]
Share = Annotated[float, Field(gt=0, le=1)]


class RandomResizedCrop(Config):
    """A crop of random area (`scale`, a share of the image) and aspect `ratio`, resized with antialiasing."""

    op: Literal["random_resized_crop"] = "random_resized_crop"
    size: PositiveInt
    """Pixels of a side of the result."""
    scale: Annotated[list[Share], _Two, AfterValidator(_ordered)] = [0.2, 1.0]  # MoCo's; supervised: 0.08
    """Range of the crop's area, as a share of the image's."""
    ratio: PositiveRange = [3 / 4, 4 / 3]
    """Range of width over height."""
    interpolation: Interpolation = "bilinear"
    """Of the resizing."""


class PadCrop(Config):
    """Zero padding of `padding` pixels on each side, then a crop at a random place (CIFAR's 4 and 32)."""

    op: Literal["pad_crop"] = "pad_crop"
    size: PositiveInt
    """Pixels of a side of the crop."""
    padding: Annotated[int, Field(ge=0)] = 4
    """Pixels added on each side."""


class HorizontalFlip(Config):
    """Mirrored left to right with probability `p`."""

    op: Literal["horizontal_flip"] = "horizontal_flip"
    p: Probability = 0.5
    """Probability of the flip."""


class ColorJitter(Config):
    """Brightness, contrast, saturation and hue changed in random order (torchvision's ColorJitter)."""

    op: Literal["color_jitter"] = "color_jitter"
    p: Probability = 0.8
    """Probability that anything is changed."""
    brightness: Strength = 0.4
    """Factor from 1 - this (at least 0) to 1 + this."""
    contrast: Strength = 0.4
    """Likewise."""
    saturation: Strength = 0.4
    """Likewise."""
    hue: Annotated[float, Field(ge=0, le=0.5)] = 0.1
    """Shift from -this to this, in turns of the colour circle."""


class Grayscale(Config):
    """All three channels become the luminance, with probability `p`."""

    op: Literal["grayscale"] = "grayscale"
    p: Probability = 0.2
    """Probability of it."""


class GaussianBlur(Config):
    """Blur with a standard deviation drawn from `sigma` (pixels); `kernel_size` taps, edges reflected."""

    op: Literal["gaussian_blur"] = "gaussian_blur"
    p: Probability = 0.5
    """Probability of the blur."""
    sigma: PositiveRange = [0.1, 2.0]
    """Range of the standard deviation, in pixels."""
    kernel_size: Annotated[PositiveInt, AfterValidator(_odd)] = 23
    """Pixels of a side of the kernel, odd."""


class Solarize(Config):
    """Values of at least `threshold` (of 255) are inverted, with probability `p`."""

    op: Literal["solarize"] = "solarize"
    p: Probability = 0.2
    """Probability of it."""
    threshold: Annotated[int, Field(ge=0, le=256)] = 128
    """Of the 8-bit value, from which on it is inverted."""


class RandomAffine(Config):
    """Rotation, shift and zoom about the centre, bilinear, zeros outside."""

    op: Literal["random_affine"] = "random_affine"
    degrees: Annotated[float, Field(ge=0, le=180)]
    """Rotation in [-degrees, degrees]."""
    translate: Annotated[list[Probability], _Two] = [0.0, 0.0]
    """Largest shift as a share of [width, height], rounded to whole pixels."""
    scale: PositiveRange = [1.0, 1.0]
    """Range of the zoom factor."""


class Cutout(Config):
    """A square of `size` pixels at a random centre becomes black, with probability `p` (1708.04552)."""

    op: Literal["cutout"] = "cutout"
    p: Probability = 1.0
    """Probability of it."""
    size: PositiveInt = 16
    """Pixels of a side of the square."""


class AutoAugment(Config):
    """AutoAugment's policy for CIFAR-10 (1805.09501): 25 pairs of operations, the same in every `variant`."""

    op: Literal["auto_augment"] = "auto_augment"
    policy: Literal["cifar10"]
    """Of which data set."""
    variant: Literal["torchvision", "paco"] = "torchvision"
    """Whose operations. `torchvision`: black moves in, shears take the nearest pixel, rotations go both ways,
    translations by whole pixels. `paco`: grey (128) moves in, shears are bicubic, rotations go anticlockwise
    alone, translations are not truncated, and what Solarize begins with is a share of 256, not of 255. These
    are of PaCo/LT/autoaug.py in github.com/dvlab-research/Parametric-Contrastive-Learning, commit ce14b9a."""


class RandAugment(Config):
    """RandAugment (1909.13719), as torchvision has it: `magnitude` of 31 bins."""

    op: Literal["rand_augment"] = "rand_augment"
    num_ops: PositiveInt = 2
    """Operations drawn for each image, applied one after another."""
    magnitude: Annotated[int, Field(ge=0, le=30)] = 9
    """Strength of the operations, 0 to 30."""


_Geometry = RandomResizedCrop | PadCrop | HorizontalFlip | RandomAffine | GaussianBlur | Cutout
_Color = ColorJitter | Grayscale | Solarize | AutoAugment | RandAugment
Op = Annotated[_Geometry | _Color, Field(discriminator="op"), named_by("op")]
