"""The augmentations of a view as sections of a recipe; names and defaults are torchvision's."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from zoo.config import Config, named_by

Interpolation = Literal["bilinear", "bicubic"]
Probability = Annotated[float, Field(ge=0, le=1)]
PositiveInt = Annotated[int, Field(gt=0, le=1 << 12)]
Strength = Annotated[float, Field(ge=0)]


def _ordered(bounds: list[float]) -> list[float]:
    if bounds[0] > bounds[1]:
        raise ValueError(f"found {bounds}, expected [low, high]")
    return bounds


def _odd(found: int) -> int:
    if found % 2 == 0:
        raise ValueError(f"found {found}, expected an odd number")
    return found


_Two = Field(min_length=2, max_length=2)
PositiveRange = Annotated[list[Annotated[float, Field(gt=0)]], _Two, AfterValidator(_ordered)]
Share = Annotated[float, Field(gt=0, le=1)]
ShareRange = Annotated[list[Share], _Two, AfterValidator(_ordered)]


class RandomResizedCrop(Config):
    """Crop a random area (`scale`) with a random aspect `ratio`, and resize it with antialiasing."""

    op: Literal["random_resized_crop"] = "random_resized_crop"
    size: PositiveInt = Field(description="Side of the result in pixels.")
    scale: ShareRange = [0.2, 1.0]
    """Range of the crop's area, as a share of the image's. Supervised training often starts at 0.08."""
    ratio: PositiveRange = Field([3 / 4, 4 / 3], description="Range of the aspect ratio, width / height.")
    interpolation: Interpolation = "bilinear"


class PadCrop(Config):
    """Pad with `padding` zero pixels on each side, then crop at a random position (CIFAR: 4 and 32)."""

    op: Literal["pad_crop"] = "pad_crop"
    size: PositiveInt = Field(description="Side of the crop in pixels.")
    padding: Annotated[int, Field(ge=0)] = 4


class HorizontalFlip(Config):
    """Flip left to right with probability `p`."""

    op: Literal["horizontal_flip"] = "horizontal_flip"
    p: Probability = 0.5


class ColorJitter(Config):
    """Change brightness, contrast, saturation and hue in random order, with probability `p`."""

    op: Literal["color_jitter"] = "color_jitter"
    p: Probability = 0.8
    brightness: Strength = Field(0.4, description="The factor is from 1 - this (at least 0) to 1 + this.")
    contrast: Strength = Field(0.4, description="Likewise.")
    saturation: Strength = Field(0.4, description="Likewise.")
    hue: Annotated[float, Field(ge=0, le=0.5)] = Field(0.1, description="Maximal shift of the hue, in turns.")


class Grayscale(Config):
    """Replace all three channels by the luminance, with probability `p`."""

    op: Literal["grayscale"] = "grayscale"
    p: Probability = 0.2


class GaussianBlur(Config):
    """Blur with probability `p`, an odd kernel size and a standard deviation in `sigma`; reflects edges."""

    op: Literal["gaussian_blur"] = "gaussian_blur"
    p: Probability = 0.5
    sigma: PositiveRange = Field([0.1, 2.0], description="Range of the standard deviation, in pixels.")
    kernel_size: Annotated[PositiveInt, AfterValidator(_odd)] = 23


class Solarize(Config):
    """Invert 8-bit values of at least `threshold`, with probability `p`."""

    op: Literal["solarize"] = "solarize"
    p: Probability = 0.2
    threshold: Literal[128] = 128


class RandomAffine(Config):
    """Rotate, shift and zoom about the centre, with bilinear interpolation and zeros outside."""

    op: Literal["random_affine"] = "random_affine"
    degrees: Annotated[float, Field(ge=0, le=180)] = Field(description="Rotation in [-degrees, degrees].")
    translate: Annotated[list[Probability], _Two] = [0.0, 0.0]
    """Largest shift as a share of [width, height], rounded to whole pixels."""
    scale: PositiveRange = Field([1.0, 1.0], description="Range of the zoom factor.")


class Cutout(Config):
    """Blacken a square of `size` pixels at a random centre, with probability `p` (1708.04552)."""

    op: Literal["cutout"] = "cutout"
    p: Probability = 1.0
    size: PositiveInt = 16


class AutoAugment(Config):
    """AutoAugment's policy for CIFAR-10 (1805.09501): 25 pairs of operations, the same for each `variant`."""

    op: Literal["auto_augment"] = "auto_augment"
    policy: Literal["cifar10"]
    variant: Literal["torchvision", "paco"] = "torchvision"
    """Implementation. `torchvision`: fill is black, shears use the nearest pixel, rotations go both ways, and
    translations are whole pixels. `paco` (PaCo/LT/autoaug.py of its repository, commit ce14b9a): fill is grey
    (128), shears are bicubic, rotations go anticlockwise, and Solarize's threshold is a share of 256."""


class RandAugment(Config):
    """RandAugment (1909.13719) as in torchvision: `num_ops` random operations of one `magnitude`, 0 to 30."""

    op: Literal["rand_augment"] = "rand_augment"
    num_ops: PositiveInt = 2
    magnitude: Annotated[int, Field(ge=0, le=30)] = 9


_Geometry = RandomResizedCrop | PadCrop | HorizontalFlip | RandomAffine | GaussianBlur | Cutout
_Color = ColorJitter | Grayscale | Solarize | AutoAugment | RandAugment
Op = Annotated[_Geometry | _Color, Field(discriminator="op"), named_by("op")]
