"""AutoAugment and RandAugment on a batch: every operation against Pillow, every draw against torchvision."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from scipy.stats import chi2
from torchvision.transforms import AutoAugmentPolicy, InterpolationMode, v2
from torchvision.transforms.v2 import functional as tv

from tests.data_fixtures import photo
from zoo.data import ops, pil_views, tensor_views
from zoo.data.pil_views import PILViews
from zoo.data.tensor_views import auto_augment
from zoo.data.tensor_views.draws import Draws

AUTO = {policy.value: v2.AutoAugment(policy) for policy in AutoAugmentPolicy}
RAND = v2.RandAugment()
SPACE = v2.AutoAugment._AUGMENTATION_SPACE
NAMES = ["Identity", *SPACE]
SIZES = [(32, 32), (33, 20), (64, 47), (224, 150), (5, 1), (2, 2)]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def augment(images, view, generator):
    return tensor_views.augment(images, view, Draws(generator, len(images)))


def batch(images):
    return torch.stack([tv.pil_to_tensor(image) for image in images])


def strengths(name, bins, height, width):
    """torchvision's strengths of an operation, with their signs, by number."""
    make, signed = SPACE.get(name, (lambda *_: None, False))
    values = make(bins, height, width)
    numbers = [(None, 0.0)] if values is None else [(i, float(v)) for i, v in enumerate(values)]
    return [(i, sign * value, sign) for i, value in numbers for sign in ((1, -1) if signed else (1,))]


def pillow(image, name, strength):
    return RAND._apply_image_or_video_transform(image, name, strength, InterpolationMode.NEAREST, RAND._fill)


# --- operations -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES, ids=lambda size: "{}x{}".format(*size))
@pytest.mark.parametrize("name", NAMES)
def test_every_strength_of_every_operation_is_pillows_to_the_bit(name, size):
    width, height = size
    images = [photo(width, height, seed) for seed in range(2)]
    pixels = batch(images)
    for bins in (auto_augment.BINS, auto_augment.RAND_AUGMENT_BINS):
        for index, strength, sign in strengths(name, bins, height, width):
            ours = sign * auto_augment.strength(name, bins, index, height, width)
            assert ours == strength
            row = auto_augment.choice(name, ours, height, width)
            choices = auto_augment.Choices(*(column.expand(2, *column.shape) for column in row))
            theirs = batch([pillow(image, name, strength) for image in images])
            assert torch.equal(auto_augment.apply(pixels, choices), theirs), (bins, strength)


@pytest.mark.parametrize("name", ["AutoContrast", "Equalize", "Contrast", "Sharpness", "Color"])
@pytest.mark.parametrize("fill", [0, 7, 255, "two values", "bright"])
def test_images_of_few_values_are_pillows_to_the_bit(name, fill):
    values = np.full((32, 32, 3), fill if isinstance(fill, int) else 0, dtype=np.uint8)
    if fill == "two values":
        values[3:5, 7] = 200
    elif fill == "bright":
        values = np.random.default_rng(0).integers(250, 256, values.shape).astype(np.uint8)
    image = tv.to_pil_image(values)
    row = auto_augment.choice(name, 0.6, 32, 32)
    choices = auto_augment.Choices(*(column[None] for column in row))
    assert torch.equal(auto_augment.apply(batch([image]), choices), batch([pillow(image, name, 0.6)]))


# PaCo's own operations, PaCo/LT/autoaug.py of its repository (commit ce14b9a), written down a second time.
PACO_STRENGTHS = {
    "ShearX": 0.3,
    "ShearY": 0.3,
    "TranslateX": 150 / 331,
    "TranslateY": 150 / 331,
    "Rotate": 30,
    **dict.fromkeys(("Brightness", "Color", "Contrast", "Sharpness"), 0.9),
}


def paco(image, name, index, sign=1):
    """What the authors' code makes of an image; `sign` is what it draws, where it does."""
    width, height = image.size
    m = sign * np.linspace(0, PACO_STRENGTHS.get(name, 0), 10)[index or 0]
    grey = (128, 128, 128)
    if name == "ShearX":
        return image.transform(image.size, Image.AFFINE, (1, m, 0, 0, 1, 0), Image.BICUBIC, fillcolor=grey)
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
    if name == "Identity":
        return image
    return getattr(ImageOps, name.lower())(image)


def paco_sign(name):
    return (1, -1) if name in PACO_STRENGTHS and name != "Rotate" else (1,)


def noise(width, height, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: "{}x{}".format(*size))
@pytest.mark.parametrize("name", NAMES)
def test_every_strength_and_sign_of_pacos_operations_is_pillows_to_the_bit(name, size):
    width, height = size
    images = [photo(width, height, 0), *(noise(width, height, seed) for seed in range(3))]
    for index, sign in product(range(10), paco_sign(name)):
        theirs = batch([paco(image, name, index, sign) for image in images])
        strength = sign * auto_augment.strength(name, auto_augment.BINS, index, height, width, "paco")
        row = auto_augment.choice(name, strength, height, width, "paco")
        choices = auto_augment.Choices(*(column.expand(4, *column.shape) for column in row))
        assert torch.equal(auto_augment.apply(batch(images), choices, "paco"), theirs), (index, sign)


# --- what is drawn ----------------------------------------------------------------------------------------


def test_names_and_signs_are_torchvisions():
    assert tuple(RAND._AUGMENTATION_SPACE) == auto_augment.RAND_AUGMENT
    assert set(auto_augment.SIGNED) == {name for name, (_, signed) in SPACE.items() if signed}
    assert RAND.num_magnitude_bins == auto_augment.RAND_AUGMENT_BINS


def sequences(op):
    """torchvision's sequences: name, probability and number of the strength of every step."""
    if isinstance(op, ops.AutoAugment):
        return AUTO[op.policy]._policies, auto_augment.BINS
    return [((name, 1.0, op.magnitude),) for name in RAND._AUGMENTATION_SPACE], auto_augment.RAND_AUGMENT_BINS


def named(op, rows, size=32):
    """What a row of `Space.choices` must be by torchvision's tables: (name, strength), None for nothing."""
    listed, bins = sequences(op)
    outcomes = [
        (name, strength)
        for sequence in listed
        for name, _, index in sequence
        for strength in signed(name, bins, index, size)
    ]
    return [None if row == len(outcomes) else outcomes[row] for row in rows]


def signed(name, bins, index, size):
    both = [value for i, value, _ in strengths(name, bins, size, size) if i in (index, None)]
    return both if len(both) == 2 else both * 2


def chi_square(counts, expected):
    """The probability of counts at least as far from what is expected; few are pooled."""
    few = [key for key in expected if expected[key] < 5]
    pooled = {key: value for key, value in expected.items() if key not in few}
    found = {key: counts.get(key, 0) for key in pooled}
    if few:
        pooled["few"] = sum(expected[key] for key in few)
        found["few"] = sum(counts.get(key, 0) for key in few)
    statistic = sum((found[key] - pooled[key]) ** 2 / pooled[key] for key in pooled if pooled[key] > 0)
    return float(chi2.sf(statistic, len(pooled) - 1))


@pytest.mark.parametrize("policy", AUTO)
def test_auto_augment_draws_policies_strengths_and_signs_as_the_tables_say(policy):
    op = ops.AutoAugment(policy=policy)
    count = 40_000
    space = auto_augment._space(policy, None, 32, 32, torch.device("cpu"))
    rows = auto_augment.draw(space, Draws(generator(), count))
    counts = Counter(zip(*(named(op, column.tolist()) for column in rows.unbind(1)), strict=True))
    expected = Counter()
    listed, bins = sequences(op)
    for sequence in listed:
        steps = [
            [(None, 1 - p), *(((name, s), p / 2) for s in signed(name, bins, index, 32))]
            for name, p, index in sequence
        ]
        for (first, p1), (second, p2) in product(*steps):
            expected[first, second] += count * p1 * p2 / 25
    assert set(counts) <= {key for key, value in expected.items() if value > 0}
    assert chi_square(counts, expected) > 1e-3


def test_rand_augment_draws_each_pair_of_signed_operations_equally_often():
    op = ops.RandAugment(magnitude=9)
    space = auto_augment._space(None, 9, 32, 32, torch.device("cpu"))
    count = 40_000
    random = generator()
    first, second = (
        named(op, auto_augment.draw(space, Draws(random, count))[:, 0].tolist()) for _ in range(2)
    )
    expected = Counter()
    listed, bins = sequences(op)
    outcomes = [(name, s) for ((name, _, index),) in listed for s in signed(name, bins, index, 32)]
    for pair in product(outcomes, outcomes):
        expected[pair] += count / len(outcomes) ** 2
    assert chi_square(Counter(zip(first, second, strict=True)), expected) > 1e-3


def batched(op, image, count):
    made = augment(batch([image]).expand(count, -1, -1, -1) / 255, [op], generator())
    return (made * 255).round().to(torch.uint8)


def one_by_one(op, image, count):
    backend = PILViews([[op]])
    with pil_views.seeded(0):
        return torch.stack([backend(image)[0] for _ in range(count)])


@pytest.mark.parametrize(("make", "count"), [(batched, 20_000), (one_by_one, 2_000)])
@pytest.mark.parametrize("policy", AUTO)
def test_pacos_variant_makes_what_its_code_may_make_as_often(policy, make, count):
    """Also: both signs alike where the code draws one, and no rotation clockwise."""
    image, expected = photo(16, 12, 0), Counter()
    for sequence in AUTO[policy]._policies:
        made = [(image, count / 25)]
        for name, p, index in sequence:
            signs = paco_sign(name)
            made += [  # first those of before, which this step leaves as they are
                (paco(each, name, index, sign), share * p / len(signs))
                for each, share in made
                for sign in signs
            ]
            kept = len(made) // (1 + len(signs))
            made[:kept] = [(each, share * (1 - p)) for each, share in made[:kept]]
        for each, share in made:
            expected[each.tobytes()] += share
    found = Counter(
        each.numpy().tobytes()
        for each in make(ops.AutoAugment(policy=policy, variant="paco"), image, count)
        .movedim(1, -1)
        .contiguous()
    )
    assert set(found) <= {key for key, share in expected.items() if share > 0}
    assert chi_square(found, expected) > 1e-3


# --- whole operations -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "op",
    [*(ops.AutoAugment(policy=policy) for policy in AUTO), ops.RandAugment(num_ops=3, magnitude=30)],
    ids=lambda op: getattr(op, "policy", op.op),
)
def test_each_image_is_what_pillow_makes_of_it_with_what_was_drawn_for_it(op):
    images = [photo(32, 32, seed) for seed in range(200)]
    policy, magnitude = getattr(op, "policy", None), getattr(op, "magnitude", None)
    space = auto_augment._space(policy, magnitude, 32, 32, torch.device("cpu"))
    random = generator(3)
    drawn = [auto_augment.draw(space, Draws(random, len(images))) for _ in range(getattr(op, "num_ops", 1))]
    ours = augment(batch(images) / 255, [op], generator(3))
    for column in torch.cat(drawn, 1).unbind(1):
        images = [
            image if step is None else pillow(image, *step)
            for image, step in zip(images, named(op, column.tolist()), strict=True)
        ]
    assert torch.equal((ours * 255).round().to(torch.uint8), batch(images))
    assert torch.allclose(ours, batch(images) / 255, atol=1e-7)
    assert torch.equal(ours, augment(batch([photo(32, 32, s) for s in range(200)]) / 255, [op], generator(3)))


def test_values_between_two_steps_of_8_bits_are_rounded_first():
    images = batch([photo(32, 32, seed) for seed in range(50)]) / 255
    op = ops.AutoAugment(policy="imagenet")
    moved = (images + torch.rand(images.shape, generator=generator()).sub_(0.5) * (0.9 / 255)).clamp_(0, 1)
    assert torch.equal(augment(images, [op], generator(1)), augment(moved, [op], generator(1)))
