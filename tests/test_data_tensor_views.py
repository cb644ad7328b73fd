"""Batched views against Pillow and torchvision: pixels for given parameters, distributions of draws."""

import math
from typing import get_args

import numpy as np
import pytest
import torch
from PIL import ImageOps
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as tv

from tests.data_fixtures import MEAN, STD, photo
from zoo.data import ops, tensor_views
from zoo.data.pil_views import PILViews
from zoo.data.tensor_views import TensorViews, color, draws, geometry
from zoo.data.tensor_views.draws import Draws, only
from zoo.errors import DataError

INTERPOLATION = {"bilinear": InterpolationMode.BILINEAR, "bicubic": InterpolationMode.BICUBIC}


def batch(images):
    return torch.stack([tv.pil_to_tensor(image) for image in images]).float() / 255


def error(ours, images):
    """Largest difference to the PIL images, in steps of 1/255."""
    return float((ours - batch(images)).abs().max() * 255)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def augment(images, view, generator):
    return tensor_views.augment(images, view, Draws(generator, len(images)))


@pytest.fixture(scope="module")
def photos():
    return [photo(40, 32, seed) for seed in range(6)]


# --- geometry ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [12, 32, 50])
def test_crop_and_resize_are_within_one_step_of_pillow(photos, size, interpolation):
    boxes = [(0, 0, 32, 40), (3, 5, 20, 9), (10, 0, 7, 40), (31, 39, 1, 1), (8, 8, 16, 16), (0, 13, 32, 5)]
    top, left, height, width = (torch.tensor(v, dtype=torch.float32) for v in zip(*boxes, strict=True))
    rows = geometry.resample_matrix(top, height, size, 32, interpolation)
    cols = geometry.resample_matrix(left, width, size, 40, interpolation)
    ours = geometry.apply_separable(batch(photos), rows, cols, clip=interpolation == "bicubic")
    theirs = [
        tv.resized_crop(image, *box, [size, size], interpolation=INTERPOLATION[interpolation])
        for image, box in zip(photos, boxes, strict=True)
    ]
    assert error(ours, theirs) < 1.2


def test_pad_crop_gives_windows_of_the_zero_padded_image(photos):
    image = batch(photos[:1]).expand(300, -1, -1, -1)
    ours = augment(image, [ops.PadCrop(size=32, padding=4)], generator())
    padded = np.asarray(ImageOps.expand(photos[0], 4, 0)).transpose(2, 0, 1) / np.float32(255)
    windows = {padded[:, t : t + 32, k : k + 32].tobytes(): (t, k) for t in range(9) for k in range(17)}
    places = [windows[np.ascontiguousarray(view).tobytes()] for view in ours.numpy()]
    assert {t for t, _ in places} == set(range(9))
    assert {left for _, left in places} == set(range(17))


@pytest.mark.parametrize("kernel_size", [3, 9, 23])
def test_blur_is_torchvisions_per_image(photos, kernel_size):
    sigmas = [0.1, 0.3, 0.7, 1.1, 1.6, 2.0]
    sigma = torch.tensor(sigmas)
    rows = geometry.blur_matrix(sigma, kernel_size, 32)
    ours = geometry.apply_separable(
        batch(photos), rows, geometry.blur_matrix(sigma, kernel_size, 40), clip=False
    )
    theirs = [tv.gaussian_blur(i, [kernel_size] * 2, [s, s]) for i, s in zip(photos, sigmas, strict=True)]
    assert error(ours, theirs) < 1.01


def test_affine_is_pillows_for_each_image(photos):
    degrees, scales = [0.0, 30.0, -12.5, 90.0, 171.0, -45.0], [1.0, 1.0, 1.3, 0.7, 1.1, 0.5]
    shifts = [(0, 0), (3, -2), (-5, 4), (0, 6), (7, 7), (-1, -9)]
    ours = geometry.affine(
        batch(photos),
        torch.tensor(degrees),
        torch.tensor([float(x) for x, _ in shifts]),
        torch.tensor([float(y) for _, y in shifts]),
        torch.tensor(scales),
    )
    theirs = batch(
        [
            tv.affine(i, d, list(t), s, [0.0, 0.0], interpolation=InterpolationMode.BILINEAR)
            for i, d, t, s in zip(photos, degrees, shifts, scales, strict=True)
        ]
    )
    difference = ((ours - theirs).abs() * 255).amax(1)
    # a source that falls exactly on the image's edge is inside for one and outside for the other by rounding
    assert float((difference > 1.5).float().mean()) < 0.005
    assert torch.allclose(ours[0], batch(photos)[0], atol=1e-5)


def test_cutout_blackens_exactly_the_square(photos):
    images = batch(photos[:3]) + 0.1
    y, x, size = (torch.tensor(v, dtype=torch.float32) for v in ([0, 16, 31], [20, 39, 5], [8, 6, 0]))
    ours = geometry.cutout(images, y, x, size)
    expected = images.clone()
    expected[0, :, 0:4, 16:24] = 0
    expected[1, :, 13:19, 36:40] = 0
    assert torch.equal(ours, expected)


# --- colour -----------------------------------------------------------------------------------------------

ADJUST = (tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation, tv.adjust_hue)


def jitter_one_by_one(images, orders, factors):
    results = []
    for image, order, values in zip(images, orders, factors, strict=True):
        current = image
        for kind in order:
            current = ADJUST[kind](current, values[kind])
        results.append(current)
    return torch.stack(results)


def jitter(images, orders, factors):
    without_hue = [[kind for kind in order if kind != 3] for order in orders]
    slots = [list(order).index(3) for order in orders]
    values = torch.tensor(factors)
    everyone = torch.ones(len(images), dtype=torch.bool)
    return color.color_jitter(
        images, torch.tensor(without_hue), torch.tensor(slots), values[:, :3], values[:, 3], everyone
    )


def test_jitter_is_torchvisions_for_every_order_of_the_four(photos):
    from itertools import permutations

    orders = list(permutations(range(4)))
    random = np.random.default_rng(0)
    factors = [[*random.uniform(0.2, 1.9, 3).tolist(), float(random.uniform(-0.5, 0.5))] for _ in orders]
    images = batch([photos[i % 6] for i in range(len(orders))])
    ours, theirs = jitter(images, orders, factors), jitter_one_by_one(images, orders, factors)
    assert float((ours - theirs).abs().max()) < 2 / 255  # luminance 0.2989 there, 0.299 here and in Pillow


def test_grey_and_solarize_are_within_one_step_of_pillow_and_only_for_the_chosen(photos):
    images, chosen = batch(photos), torch.tensor([True, False] * 3)
    grey = [tv.to_grayscale(im, 3) if c else im for im, c in zip(photos, chosen, strict=True)]
    assert error(only(chosen, color.grayscale, images), grey) < 1
    inverted = [ImageOps.solarize(im, 100) if c else im for im, c in zip(photos, chosen, strict=True)]
    assert error(only(chosen, lambda x: color.solarize(x, 100), images), inverted) < 1e-3


def test_jitter_leaves_the_images_that_are_not_chosen_as_they_are(photos):
    images, chosen = batch(photos), torch.tensor([True, False] * 3)
    order = torch.arange(3).expand(6, -1)
    changed = color.color_jitter(
        images, order, torch.arange(6) % 4, torch.full((6, 3), 0.7), torch.full((6,), 0.2), chosen
    )
    differs = (changed - images).abs().amax((1, 2, 3)) > 0.01
    assert torch.equal(differs, chosen)
    assert torch.equal(changed[1::2], images[1::2])


# --- what is drawn ----------------------------------------------------------------------------------------


def ks(left, right):
    """Two-sample Kolmogorov-Smirnov distance; for 4,000 each, chance exceeds 0.044 once in 1,000."""
    left, right = np.sort(left), np.sort(right)
    points = np.concatenate([left, right])
    return float(
        np.abs(
            np.searchsorted(left, points, "right") / len(left)
            - np.searchsorted(right, points, "right") / len(right)
        ).max()
    )


@pytest.mark.parametrize(
    ("height", "width", "scale", "ratio"),
    [
        (32, 32, (0.2, 1.0), (3 / 4, 4 / 3)),
        (32, 48, (0.08, 1.0), (3 / 4, 4 / 3)),
        (64, 16, (0.5, 1.0), (0.75, 1.3)),
    ],
    ids=["square", "wide", "tall: mostly the central crop"],
)
def test_crop_boxes_are_distributed_as_torchvisions(height, width, scale, ratio):
    op = ops.RandomResizedCrop(size=8, scale=list(scale), ratio=list(ratio))
    top, left, h, w = (v.numpy() for v in geometry.crop_boxes(op, height, width, Draws(generator(), 4000)))
    torch.manual_seed(0)
    transform = v2.RandomResizedCrop(8, scale=scale, ratio=ratio)
    image = [torch.zeros(3, height, width)]
    theirs = [transform.make_params(image) for _ in range(4000)]
    for ours, name in ((top, "top"), (left, "left"), (h, "height"), (w, "width")):
        assert ks(ours, np.array([params[name] for params in theirs])) < 0.044, name
    area = np.array([params["height"] * params["width"] for params in theirs])
    assert ks(h * w, area) < 0.044
    assert (top >= 0).all()
    assert (top + h <= height).all()
    assert (left >= 0).all()
    assert (left + w <= width).all()


def drawn_jitter(monkeypatch, op, count):
    seen = {}

    def keep(images, order, hue_slot, factors, hue, chosen):
        seen.update(order=order, hue_slot=hue_slot, factors=factors, hue=hue, chosen=chosen)
        return images

    monkeypatch.setattr(color, "color_jitter", keep)
    augment(torch.zeros(count, 3, 1, 1), [op], generator())
    return seen


def test_jitter_draws_uniform_factors_and_a_uniform_order(monkeypatch):
    op = ops.ColorJitter(p=1.0, brightness=0.4, contrast=1.5, saturation=0.2, hue=0.1)
    seen = drawn_jitter(monkeypatch, op, 24_000)
    torch.manual_seed(0)
    transform = v2.ColorJitter(0.4, 1.5, 0.2, 0.1)
    theirs = [transform.make_params([]) for _ in range(4000)]
    names = ("brightness_factor", "contrast_factor", "saturation_factor")
    for column, name in enumerate(names):
        assert ks(seen["factors"][:4000, column].numpy(), np.array([p[name] for p in theirs])) < 0.044
    assert ks(seen["hue"][:4000].numpy(), np.array([p["hue_factor"] for p in theirs])) < 0.044
    orders = seen["order"] @ torch.tensor([9, 3, 1]) * 4 + seen["hue_slot"].long()
    counts = torch.unique(orders, return_counts=True)[1]
    assert len(counts) == 24
    assert int((counts - 1000).abs().max()) < 4.5 * math.sqrt(1000)


def test_blur_draws_a_uniform_sigma(monkeypatch):
    seen = []

    def keep(images, sigma, kernel_size):
        seen.append(sigma)
        return images

    monkeypatch.setattr(geometry, "blur", keep)
    augment(
        torch.zeros(4000, 3, 8, 8), [ops.GaussianBlur(p=1.0, sigma=[0.1, 2.0], kernel_size=3)], generator()
    )
    torch.manual_seed(0)
    transform = v2.GaussianBlur(3, (0.1, 2.0))
    theirs = np.array([transform.make_params([])["sigma"][0] for _ in range(4000)])
    assert ks(seen[0].numpy(), theirs) < 0.044


def positions(hits, bins):
    """Chi-square of how often each of `bins` places was hit, over its degrees of freedom."""
    counts = np.bincount(hits, minlength=bins)
    expected = len(hits) / bins
    return float(((counts - expected) ** 2 / expected).sum() / (bins - 1))


def test_pad_crop_takes_every_window_equally_often():
    row, column = torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij")
    image = torch.stack([row + 1, column + 1, row]).float()
    view = augment(image.expand(16_200, -1, -1, -1), [ops.PadCrop(size=8, padding=4)], generator())
    inside = view[:, 0] > 0
    top = torch.where(inside, view[:, 0] - torch.arange(8.0)[:, None], -9).amax((1, 2)) + 3
    left = torch.where(inside, view[:, 1] - torch.arange(8.0), -9).amax((1, 2)) + 3
    place = (top * 9 + left).long().numpy()
    assert positions(place, 81) < 1.55  # 80 degrees of freedom: chance exceeds it once in 1,000


def test_cutout_is_centred_on_every_pixel_equally_often():
    view = augment(torch.ones(16_000, 3, 8, 10), [ops.Cutout(size=1)], generator())
    assert positions((view[:, 0] == 0).flatten(1).int().argmax(1).numpy(), 80) < 1.55
    assert bool(((view == 0).sum((1, 2, 3)) == 3).all())


def test_affine_draws_what_torchvision_draws(monkeypatch):
    seen = {}

    def keep(images, degrees, shift_x, shift_y, scale):
        seen.update(angle=degrees, x=shift_x, y=shift_y, scale=scale)
        return images

    monkeypatch.setattr(geometry, "affine", keep)
    op = ops.RandomAffine(degrees=20, translate=[0.5, 0.2], scale=[0.8, 1.2])
    augment(torch.zeros(4000, 3, 40, 60), [op], generator())
    torch.manual_seed(0)
    transform = v2.RandomAffine(20, translate=(0.5, 0.2), scale=(0.8, 1.2))
    theirs = [transform.make_params([torch.zeros(3, 40, 60)]) for _ in range(4000)]
    columns = {
        "angle": [p["angle"] for p in theirs],
        "x": [p["translate"][0] for p in theirs],
        "y": [p["translate"][1] for p in theirs],
        "scale": [p["scale"] for p in theirs],
    }
    for name, values in columns.items():
        assert ks(seen[name].numpy(), np.array(values)) < 0.044, name


@pytest.mark.parametrize(
    "op",
    [
        ops.HorizontalFlip(p=0.3),
        ops.ColorJitter(p=0.3),
        ops.Grayscale(p=0.3),
        ops.GaussianBlur(p=0.3, sigma=[1.0, 2.0], kernel_size=5),
        ops.Solarize(p=0.3, threshold=100),
        ops.Cutout(p=0.3, size=8),
    ],
    ids=lambda op: op.op,
)
def test_ops_change_the_share_p_of_the_images(op):
    images = batch([photo(8, 8, 0)]).expand(2000, -1, -1, -1)
    changed = ((augment(images, [op], generator()) - images).abs().amax((1, 2, 3)) > 1e-4).float().mean()
    assert abs(float(changed) - 0.3) < 0.04


@pytest.mark.parametrize(
    "before", [[], [ops.RandomResizedCrop(size=16)], [ops.GaussianBlur(p=1.0, kernel_size=5)]]
)
def test_a_flip_folded_into_matrices_is_the_flip_of_what_comes_before(photos, before):
    images = batch(photos)
    plain = augment(images, before, generator())
    assert torch.equal(augment(images, [*before, ops.HorizontalFlip(p=0.0)], generator()), plain)
    flipped = augment(images, [*before, ops.HorizontalFlip(p=1.0)], generator())
    assert torch.allclose(flipped, plain.flip(-1), atol=1e-6)


# --- whole views ------------------------------------------------------------------------------------------

MOCO = [
    ops.RandomResizedCrop(size=16),
    ops.ColorJitter(),
    ops.Grayscale(),
    ops.GaussianBlur(kernel_size=5),
    ops.Solarize(p=0.1),
    ops.HorizontalFlip(),
]
SHIFTED = [
    ops.PadCrop(size=32),
    ops.RandomAffine(degrees=20, translate=[0.1, 0.2], scale=[0.8, 1.2]),
    ops.Cutout(),
]


@pytest.mark.parametrize("view", [MOCO, SHIFTED], ids=["moco", "shifted"])
def test_both_backends_give_views_of_the_same_distribution(view):
    image = photo(32, 32, 4)
    count = 1500
    uint8 = tv.pil_to_tensor(image)[None].expand(count, -1, -1, -1)
    ours = TensorViews([view], [0.0] * 3, [1.0] * 3)(uint8, generator())[0]
    torch.manual_seed(0)
    pil = PILViews([view])
    theirs = torch.stack([pil(image)[0] for _ in range(count)]).float() / 255
    assert ours.shape == theirs.shape
    spread = theirs.std(0)
    z = (ours.mean(0) - theirs.mean(0)).abs() / (spread * math.sqrt(2 / count) + 1e-3)
    assert float(z.max()) < 5
    for statistic in (lambda v: v.mean((1, 2, 3)), lambda v: v.std((1, 2, 3)), lambda v: v[:, 0, 5, 5]):
        # 8-bit rounding and the ends of the range make ties: a little above the bound for 1,500 each
        assert ks(statistic(ours).numpy(), statistic(theirs).numpy()) < 0.08


class _NoWaits(TorchDispatchMode):
    """Refuses what makes a GPU's host wait for a value, and copies that a CUDA graph cannot hold."""

    REFUSED = (
        "_local_scalar_dense",
        "nonzero",
        "masked_select",
        "is_nonzero",
        "equal",
        "unique",
        "lift_fresh",
    )

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert not any(name.startswith(refused) for refused in self.REFUSED), f"{name} waits for the device"
        if name.startswith("index"):
            indices = [i for a in args[1:] if isinstance(a, list | tuple) for i in a if i is not None]
            assert all(i.dtype != torch.bool for i in indices), "indexing by bool waits for the device"
        return func(*args, **(kwargs or {}))


EVERY_OP = [
    ops.RandomResizedCrop(size=32, interpolation="bicubic"),
    ops.HorizontalFlip(),
    ops.PadCrop(size=32),
    ops.HorizontalFlip(),
    ops.AutoAugment(policy="cifar10"),
    ops.AutoAugment(policy="svhn", variant="paco"),
    ops.RandAugment(),
    ops.ColorJitter(),
    ops.ColorJitter(hue=0.0),
    ops.Grayscale(),
    ops.GaussianBlur(kernel_size=5),
    ops.Solarize(),
    ops.RandomAffine(degrees=20),
    ops.Cutout(),
]


def test_without_looking_at_values_the_views_are_the_same_and_nothing_waits(monkeypatch):
    images = torch.stack([tv.pil_to_tensor(photo(36, 32, seed)) for seed in range(40)])
    assert {type(op) for op in EVERY_OP} == set(get_args(get_args(ops.Op)[0]))
    views = [[op] for op in EVERY_OP] + [MOCO, SHIFTED, EVERY_OP]
    augmented = TensorViews(views, MEAN, STD)
    looking = augmented(images, generator())
    monkeypatch.setattr(draws, "can_look", lambda device: False)
    monkeypatch.setattr(color, "can_look", lambda device: False)
    with _NoWaits():
        blind = augmented(images, generator())
    for view, first, second in zip(views, looking, blind, strict=True):
        different = (first - second).abs() > 1e-4
        # a rounding before one of the operations on 8 bits may fall to the other side
        assert float(different.float().mean()) < (0.01 if len(view) > 8 else 1e-9), view


def test_views_are_normalised_and_equal_for_equal_seeds():
    images = torch.randint(0, 256, (100, 3, 32, 32), dtype=torch.uint8, generator=generator())
    views = TensorViews([MOCO, SHIFTED], MEAN, STD)
    first, second = views(images, generator(1)), views(images, generator(1))
    assert [v.shape for v in first] == [(100, 3, 16, 16), (100, 3, 32, 32)]
    assert all(torch.equal(a, b) and a.dtype == torch.float32 for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], views(images, generator(2))[0])
    plain = TensorViews([MOCO], [0.0] * 3, [1.0] * 3)(images, generator(1))[0]
    normalised = TensorViews([MOCO], MEAN, STD)(images, generator(1))[0]
    expected = (plain - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    assert torch.allclose(normalised, expected, atol=1e-6)


def test_images_too_small_for_a_blur_are_a_clear_error():
    with pytest.raises(DataError, match="kernel_size 23 is too large for images of 8x8"):
        augment(torch.zeros(1, 3, 8, 8), [ops.GaussianBlur()], generator())
