"""AutoAugment and RandAugment on a batch: every operation against Pillow, every draw against torchvision."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from scipy.stats import chisquare
from torchvision.transforms import AutoAugmentPolicy, InterpolationMode, v2
from torchvision.transforms.v2 import functional as tv

from tests.data_fixtures import photo
from zoo.data import batches, ops
from zoo.data.views import auto_augment
from zoo.data.views.transforms import Draws

CPU = torch.device("cpu")
AUTO = v2.AutoAugment(AutoAugmentPolicy.CIFAR10)
RAND = v2.RandAugment()
SPACE = v2.AutoAugment._AUGMENTATION_SPACE
NAMES = ["Identity", *SPACE]
PACO_NAMES = sorted({name for steps in AUTO._policies for name, _, _ in steps})
SIZES = [(33, 20), (5, 1), (2, 2)]


def draws(count):
    return Draws(torch.Generator().manual_seed(0), count)


def batch(images):
    return torch.stack([tv.pil_to_tensor(image) for image in images])


def images_of(width, height):
    """Of one size: like a photograph, of noise, of few values, of one."""
    values = [np.random.default_rng(0).integers(low, 256, (height, width, 3)) for low in (0, 250, 255)]
    return [photo(width, height, 0), *(Image.fromarray(each.astype(np.uint8)) for each in values)]


def ours(images, name, strength, paco=False):
    """What one operation makes of images of one size."""
    width, height = images[0].size
    rows = auto_augment.rows_of([(name, strength)] * len(images), height, width, CPU, paco=paco)
    each = torch.arange(len(images))
    return auto_augment.apply(batch(images), rows, each, fill=128 if paco else 0)


def pillow(image, name, strength):
    return RAND._apply_image_or_video_transform(image, name, strength, InterpolationMode.NEAREST, RAND._fill)


def strengths(name, bins, height, width):
    """torchvision's strengths of an operation, with their signs, by number."""
    make, signed = SPACE.get(name, (lambda *_: None, False))
    values = make(bins, height, width)
    numbers = [(None, 0.0)] if values is None else [(i, float(v)) for i, v in enumerate(values)]
    return [(i, sign * value, sign) for i, value in numbers for sign in ((1, -1) if signed else (1,))]


@pytest.mark.parametrize("name", NAMES)
def test_every_strength_of_every_operation_is_pillows_to_the_bit(name):
    for (width, height), bins in product(SIZES, (10, 31)):
        images = images_of(width, height)
        for index, strength, sign in strengths(name, bins, height, width):
            assert sign * auto_augment.strength(name, bins, index, height, width, paco=False) == strength
            theirs = batch([pillow(image, name, strength) for image in images])
            assert torch.equal(ours(images, name, strength), theirs), (bins, strength)


# PaCo's own operations, PaCo/LT/autoaug.py of its repository (commit ce14b9a), written down a second time.
PACO_STRENGTHS = {
    **dict.fromkeys(("ShearX", "ShearY"), 0.3),
    **dict.fromkeys(("TranslateX", "TranslateY"), 150 / 331),
    "Rotate": 30,
    **dict.fromkeys(("Brightness", "Color", "Contrast", "Sharpness"), 0.9),
}


def paco(image, name, index, sign=1):
    """What the authors' code makes of an image; `sign` is what it draws, where it does."""
    width, height = image.size
    m = sign * np.linspace(0, PACO_STRENGTHS.get(name, 0), 10)[index or 0]
    grey = (128, 128, 128)
    if name == "ShearY":
        return image.transform(image.size, Image.AFFINE, (1, 0, 0, m, 1, 0), Image.BICUBIC, fillcolor=grey)
    if name == "TranslateX":
        return image.transform(image.size, Image.AFFINE, (1, 0, m * width, 0, 1, 0), fillcolor=grey)
    if name == "TranslateY":
        return image.transform(image.size, Image.AFFINE, (1, 0, 0, 0, 1, m * height), fillcolor=grey)
    if name == "Rotate":
        turned = image.convert("RGBA").rotate(m)
        return Image.composite(turned, Image.new("RGBA", image.size, (128,) * 4), turned).convert("RGB")
    if name in ("Brightness", "Color", "Contrast", "Sharpness"):
        return getattr(ImageEnhance, name)(image).enhance(1 + m)
    if name == "Posterize":
        return ImageOps.posterize(image, int(np.round(np.linspace(8, 4, 10))[index]))
    if name == "Solarize":
        return ImageOps.solarize(image, np.linspace(256, 0, 10)[index])
    return getattr(ImageOps, name.lower())(image)


def paco_sign(name):
    return (1, -1) if name in PACO_STRENGTHS and name != "Rotate" else (1,)


@pytest.mark.parametrize("name", PACO_NAMES)
def test_every_strength_and_sign_of_pacos_operations_is_pillows_to_the_bit(name):
    for (width, height), index, sign in product(SIZES, range(10), paco_sign(name)):
        images = images_of(width, height)
        theirs = batch([paco(image, name, index, sign) for image in images])
        number = None if name in ("AutoContrast", "Equalize", "Invert") else index
        strength = sign * auto_augment.strength(name, 10, number, height, width, paco=True)
        assert torch.equal(ours(images, name, strength, paco=True), theirs), (index, sign)


def chi_square(counts, expected):
    """The probability of counts at least as far from what is expected; few are pooled."""
    often = [key for key, count in expected.items() if count >= 5]
    found, wanted = ([each.get(key, 0) for key in often] for each in (counts, expected))
    if few := sum(count for count in expected.values() if count < 5):
        found.append(sum(counts.values()) - sum(found))
        wanted.append(few)
    return float(chisquare(found, wanted).pvalue)


def test_rand_augment_draws_every_operation_and_sign_alike():
    _, p = auto_augment.space(ops.RandAugment(), 32, 32, CPU)
    rows = auto_augment.draw(p, draws(40_000))
    assert (len(p), set(p.flatten().tolist())) == (14, {1.0})
    assert chi_square(Counter(rows.flatten().tolist()), dict.fromkeys(range(28), 40_000 / 28)) > 1e-3


def test_pacos_variant_makes_what_its_code_may_make_as_often():
    """Also: both signs alike where the code draws one, and no rotation clockwise."""
    image, count, expected = photo(9, 8, 0), 20_000, Counter()
    for sequence in AUTO._policies:
        made = [(image, count / 25)]
        for name, p, index in sequence:
            signs = paco_sign(name)
            left = [(each, share * (1 - p)) for each, share in made]
            pairs = product(made, signs)
            made = left + [(paco(x, name, index, sign), y * p / len(signs)) for (x, y), sign in pairs]
        for each, share in made:
            expected[each.tobytes()] += share
    pixels = batch([image]).expand(count, -1, -1, -1) / 255
    found = batches.augment(pixels, [ops.AutoAugment(policy="cifar10", variant="paco")], draws(count))
    found = (found * 255).round().to(torch.uint8)
    found = Counter(each.numpy().tobytes() for each in found.movedim(1, -1).contiguous())
    assert set(found) <= {key for key, share in expected.items() if share > 0}
    assert chi_square(found, expected) > 1e-3
