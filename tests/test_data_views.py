"""Batched views against Pillow and torchvision: pixels for given draws, distributions of draws."""

import math
from itertools import permutations
from typing import get_args

import numpy as np
import pytest
import torch
from PIL import ImageOps
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as tv

from tests.data_fixtures import MEAN, STD, photo
from zoo.data import TensorViews, batches, ops
from zoo.data.views import transforms
from zoo.data.views.transforms import Draws

COUNT = 6
PHOTOS = [photo(40, 32, seed) for seed in range(COUNT)]


class Given(Draws):
    """Hands out given numbers in place of random ones, one `[B]` or `[B, columns]` after another."""

    def __init__(self, *numbers):
        self._numbers = [torch.tensor(each, dtype=torch.float32) for each in numbers]

    def rand(self, *shape):
        number = self._numbers.pop(0)
        return number if number.dim() == len(shape) else number[:, None].expand(-1, *shape[1:])


def batch(images):
    return torch.stack([tv.pil_to_tensor(image) for image in images]).float() / 255


def error(ours, images):
    """Largest difference to the PIL images, in steps of 1/255."""
    return float((ours - batch(images)).abs().max() * 255)


def generator():
    return torch.Generator().manual_seed(0)


def augment(images, op, draws=None):
    return batches.augment(images.clone(), [op], draws or Draws(generator(), len(images)))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [12, 50])
@pytest.mark.parametrize("large", [False, True])
def test_crop_and_resize_are_within_one_step_of_pillow(large, size, interpolation, monkeypatch):
    monkeypatch.setattr(transforms, "LARGE", 0 if large else transforms.LARGE)
    boxes = [(0, 0, 32, 40), (3, 5, 20, 9), (10, 0, 7, 40), (31, 39, 1, 1), (8, 8, 16, 16), (0, 13, 32, 5)]
    columns = [torch.tensor(values, dtype=torch.float32) for values in zip(*boxes, strict=True)]
    monkeypatch.setattr(transforms, "crop_boxes", lambda *_: columns)
    ours = augment(batch(PHOTOS), ops.RandomResizedCrop(size=size, interpolation=interpolation))
    mode = InterpolationMode(interpolation)
    theirs = [tv.resized_crop(i, *box, [size] * 2, mode) for i, box in zip(PHOTOS, boxes, strict=True)]
    assert error(ours, theirs) < 1.2


def test_pad_crop_gives_windows_of_the_zero_padded_image():
    ours = augment(batch(PHOTOS[:1]).expand(300, -1, -1, -1), ops.PadCrop(size=32, padding=4))
    padded = np.asarray(ImageOps.expand(PHOTOS[0], 4, 0)).transpose(2, 0, 1) / np.float32(255)
    windows = {padded[:, t : t + 32, k : k + 32].tobytes(): (t, k) for t in range(9) for k in range(17)}
    places = [windows[np.ascontiguousarray(view).tobytes()] for view in ours.numpy()]
    assert [{*each} for each in zip(*places, strict=True)] == [{*range(9)}, {*range(17)}]


@pytest.mark.parametrize("kernel_size", [3, 23])
def test_blur_is_torchvisions_per_image(kernel_size):
    shares = [0.0, 0.2, 0.4, 0.6, 0.8, 0.99]
    op = ops.GaussianBlur(p=0.5, sigma=[0.1, 2.0], kernel_size=kernel_size)
    ours = augment(batch(PHOTOS), op, Given(shares, [0.0] * COUNT))
    sigmas = [0.1 + 1.9 * share for share in shares]
    theirs = [tv.gaussian_blur(i, [kernel_size] * 2, [s, s]) for i, s in zip(PHOTOS, sigmas, strict=True)]
    assert error(ours, theirs) < 1.01


def test_affine_is_pillows_for_each_image():
    angle, x, y, zoom = np.random.default_rng(0).random((4, COUNT))
    op = ops.RandomAffine(degrees=180, translate=[0.25, 0.25], scale=[0.5, 1.5])
    ours = augment(batch(PHOTOS), op, Given(angle, x, y, zoom))
    shifts = [[round(20 * u - 10), round(16 * v - 8)] for u, v in zip(x, y, strict=True)]
    theirs = [
        tv.affine(i, 360 * u - 180, shift, 0.5 + z, [0.0, 0.0], interpolation=InterpolationMode.BILINEAR)
        for i, u, shift, z in zip(PHOTOS, angle, shifts, zoom, strict=True)
    ]
    difference = ((ours - batch(theirs)).abs() * 255).amax(1)
    # a source that falls exactly on the image's edge is inside for one and outside for the other by rounding
    assert float((difference > 1.5).float().mean()) < 0.005


def test_cutout_blackens_exactly_the_square():
    images = batch(PHOTOS) + 0.1
    y, x = [0.0, 0.5, 0.1, 0.5, 0.5, 0.5], [0.5, 39.5 / 40, 0.1, 0.5, 0.5, 0.5]
    ours = augment(images, ops.Cutout(p=0.5, size=6), Given(y, x, [0, 0, 0.9, 0.9, 0.9, 0.9]))
    images[0, :, 0:3, 17:23] = 0
    images[1, :, 13:19, 36:40] = 0
    assert torch.equal(ours, images)


def test_jitter_is_torchvisions_for_every_order_of_the_four():
    orders = list(permutations(range(4)))
    random = np.random.default_rng(0).random((4, 24))
    images = [photo(20, 16, seed % COUNT) for seed in range(24)]
    # numbers whose order is that of the three, the place of hue among them, none left out, and the factors
    three = [[kind for kind in order if kind != 3] for order in orders]
    ranks = [[each.index(kind) / 3 for kind in range(3)] for each in three]
    slots = [order.index(3) / 4 for order in orders]
    op = ops.ColorJitter(p=0.5, brightness=0.8, contrast=0.7, saturation=0.9, hue=0.5)
    ours = augment(batch(images), op, Given(ranks, slots, [0.0] * 24, *random))
    adjust = (tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation, tv.adjust_hue)
    for number, order in enumerate(orders):
        theirs = batch(images[number : number + 1])[0]
        for kind in order:
            width, middle = ((0.8, 1), (0.7, 1), (0.9, 1), (0.5, 0))[kind]
            theirs = adjust[kind](theirs, middle - width + 2 * width * float(random[kind, number]))
        # luminance is 0.2989 there, 0.299 here and in Pillow
        assert float((ours[number] - theirs).abs().max()) < 2 / 255, order


def test_grey_and_solarize_are_within_one_step_of_pillow_and_flips_are_exact():
    images = batch(PHOTOS)
    assert error(augment(images, ops.Grayscale(p=1.0)), [tv.to_grayscale(i, 3) for i in PHOTOS]) < 1
    assert error(augment(images, ops.Solarize(p=1.0)), [ImageOps.solarize(i, 128) for i in PHOTOS]) < 1e-3
    assert torch.equal(augment(images, ops.HorizontalFlip(p=1.0)), images.flip(-1))


def ks(left, right):
    """Two-sample Kolmogorov-Smirnov distance; for 2,000 each, chance exceeds 0.062 once in 1,000."""
    left, right = np.sort(left), np.sort(right)
    points = np.concatenate([left, right])
    shares = [np.searchsorted(each, points, "right") / len(each) for each in (left, right)]
    return float(np.abs(shares[0] - shares[1]).max())


@pytest.mark.parametrize(("height", "width", "scale"), [(32, 48, (0.08, 1.0)), (64, 16, (0.5, 1.0))])
def test_crop_boxes_are_distributed_as_torchvisions(height, width, scale):
    """The second one: mostly the central crop."""
    op = ops.RandomResizedCrop(size=8, scale=list(scale))
    ours = transforms.crop_boxes(op, height, width, Draws(generator(), 2000))
    torch.manual_seed(0)
    image, transform = torch.zeros(3, height, width), v2.RandomResizedCrop(8, scale=scale)
    theirs = [transform.make_params([image]) for _ in range(2000)]
    for name, found in zip(("top", "left", "height", "width"), ours, strict=True):
        assert ks(found.numpy(), np.array([params[name] for params in theirs])) < 0.062, name


MOCO = [
    ops.RandomResizedCrop(size=16),
    ops.ColorJitter(),
    ops.Grayscale(),
    ops.GaussianBlur(kernel_size=5),
    ops.Solarize(p=0.1),
    ops.HorizontalFlip(),
]
THEIR_MOCO = [
    v2.RandomResizedCrop(16, (0.2, 1.0)),
    v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
    v2.RandomGrayscale(0.2),
    v2.RandomApply([v2.GaussianBlur(5, (0.1, 2.0))], p=0.5),
    v2.RandomSolarize(128, 0.1),
    v2.RandomHorizontalFlip(),
]


def test_views_have_the_distribution_of_torchvisions():
    image, count = photo(32, 32, 4), 800
    uint8 = tv.pil_to_tensor(image)[None].expand(count, -1, -1, -1)
    ours = TensorViews([MOCO], [0.0] * 3, [1.0] * 3)(uint8, generator())[0]
    torch.manual_seed(0)
    pil = v2.Compose([*THEIR_MOCO, v2.PILToTensor()])
    theirs = torch.stack([pil(image) for _ in range(count)]).float() / 255
    assert ours.shape == theirs.shape
    z = (ours.mean(0) - theirs.mean(0)).abs() / (theirs.std(0) * math.sqrt(2 / count) + 1e-3)
    assert float(z.max()) < 5
    for statistic in (lambda v: v.mean((1, 2, 3)), lambda v: v.std((1, 2, 3)), lambda v: v[:, 0, 5, 5]):
        # 8-bit rounding and the ends of the range make ties: a little above the bound for 800 each
        assert ks(statistic(ours).numpy(), statistic(theirs).numpy()) < 0.11


EVERY_OP = [
    ops.RandomResizedCrop(size=32, interpolation="bicubic"),
    ops.AutoAugment(policy="cifar10"),
    ops.AutoAugment(policy="cifar10", variant="paco"),
    ops.RandAugment(),
    ops.ColorJitter(hue=0.0),
    ops.Cutout(),
    *MOCO[1:],
    ops.PadCrop(size=32),
    ops.RandomAffine(degrees=20, translate=[0.1, 0.2], scale=[0.8, 1.2]),
]


def test_on_a_device_nothing_waits_for_its_values():
    """Tensors on "meta" have none: to read one, or to compute with them and the host's, is an error."""
    images = torch.stack([tv.pil_to_tensor(photo(36, 32, seed)) for seed in range(24)])
    assert {type(op) for op in EVERY_OP} == set(get_args(get_args(ops.Op)[0]))
    augmented = TensorViews([[op] for op in EVERY_OP] + [MOCO], MEAN, STD)
    elsewhere = augmented(images.to("meta"), generator())
    assert {view.device.type for view in elsewhere} == {"meta"}
    assert [view.shape for view in elsewhere] == [view.shape for view in augmented(images, generator())]
