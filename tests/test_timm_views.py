"""timm's augmentation policies and random erasing, as views of every backend that has them."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data.auto_augment import augment_and_mix_transform, auto_augment_transform, rand_augment_transform
from timm.data.random_erasing import RandomErasing

from tests.data_fixtures import MEAN, STD, list_dataset, photo
from zoo.data import TensorViews, TrainLoader, ViewsConfig, ops
from zoo.data.tensor_views.draws import Draws
from zoo.data.tensor_views.erasing import random_erasing
from zoo.data.timm_views import TimmAugment
from zoo.data.torchvision_views import PILViews, seeded
from zoo.errors import RecipeError
from zoo.recipe import Recipe

CE = "cifar_resnet20.ce_digits_lt50"
FILL = tuple(round(255 * value) for value in MEAN)


def theirs(config: str, image: Image.Image, seed: int) -> Image.Image:
    """What timm's training does, seeded as we say."""
    build = {"rand": rand_augment_transform, "augmix": augment_and_mix_transform}
    settings = {"translate_const": int(min(image.size) * 0.45), "img_mean": FILL}
    transform = build.get(config.split("-")[0], auto_augment_transform)(config, settings)
    torch.manual_seed(seed)
    number = int(torch.randint(2**32, (), dtype=torch.int64))
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002
    return transform(image)


@pytest.mark.parametrize(
    "config", ["rand-m7-n3-inc1", "rand-m5-mstd0.5-tweights", "original-mstd0.5", "augmix-m5-w4-d2"]
)
def test_a_policy_is_timms_own_pixel_by_pixel(config: str) -> None:
    image = photo(24, 20, 0)
    ours, changed = TimmAugment(config, MEAN), 0
    for seed in range(8):
        expected = np.asarray(theirs(config, image, seed))
        torch.manual_seed(seed)
        found = np.asarray(ours(image))
        np.testing.assert_array_equal(found, expected)
        changed += not np.array_equal(expected, np.asarray(image))
    assert changed >= 4


def test_global_generators_are_left_as_they_were() -> None:
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    views = PILViews([[ops.TimmAugment(config="rand-m9"), ops.RandomErasing(p=1.0)]], MEAN, STD)
    with seeded(3):
        first = views(photo(16, 16, 0))[0]
    assert before == (random.getstate(), np.random.get_state()[1].tolist())  # noqa: NPY002
    random.seed(2)
    with seeded(3):
        assert torch.equal(views(photo(16, 16, 0))[0], first)
    with seeded(4):
        assert not torch.equal(views(photo(16, 16, 0))[0], first)


def test_full_magnitude_leaves_no_bit_where_pillow_refuses_to() -> None:
    """timm's PosterizeIncreasing at 10 keeps 0 bits: a black image, and an error of Pillow 12 and later."""
    policy = TimmAugment("rand-m10-n15-p1-inc1", MEAN)
    for seed in range(20):
        torch.manual_seed(seed)
        assert policy(photo(8, 8, 0)).size == (8, 8)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("rnd-m9", r'"rnd-m9", expected it to begin with one of rand, augmix.*Did you mean "rand"'),
        ("rand-m9-x4", 'timm refuses "rand-m9-x4": Unknown RandAugment config section'),
        ("rand-m9.5", "timm refuses"),
        ("rand-m9-inc", '"inc" in "rand-m9-inc", which timm would silently ignore'),
        ("rand-m9-tfoo", '"tfoo" in "rand-m9-tfoo", which timm would silently ignore.*t3aw'),
        ("rand-n30-tweights", "timm refuses"),
        ("original-m9", "timm refuses"),
    ],
)
def test_a_policy_that_timm_does_not_understand_is_refused_in_one_line(config: str, message: str) -> None:
    views = f"views.train=[[{{op: timm_augment, config: {config}}}]]"
    with pytest.raises(RecipeError, match=message):
        Recipe.load(CE, [views, "views.backend=torchvision"])


@pytest.mark.parametrize("backend", ["tensor", "stream"])
def test_backends_without_pil_images_refuse_timms_policies(backend: str) -> None:
    with pytest.raises(
        RecipeError, match=f'train.0.0: found "timm_augment" with backend "{backend}".*torchvision'
    ):
        Recipe.load(CE, ["views.train=[[{op: timm_augment, config: rand-m9}]]", f"views.backend={backend}"])


def test_erasing_anywhere_but_at_the_end_is_refused() -> None:
    with pytest.raises(
        RecipeError, match='"random_erasing" before "horizontal_flip", expected it at the end'
    ):
        Recipe.load(CE, ["views.train=[[{op: random_erasing}, {op: horizontal_flip, p: 0.5}]]"])


@pytest.mark.parametrize("mode", ["const", "rand", "pixel"])
def test_the_torchvision_backend_erases_by_timms_code_after_normalising(mode: str) -> None:
    image = photo(20, 20, 1)
    op = ops.RandomErasing(p=0.8, mode=mode, count=[1, 3])  # type: ignore[arg-type]
    plain = PILViews([[]])(image)[0].float()
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    erase = RandomErasing(0.8, max_area=1 / 3, max_aspect=1 / 0.3, mode=mode, max_count=3, device="cpu")
    for seed in range(10):
        with seeded(seed):
            random.seed(int(torch.randint(2**32, (), dtype=torch.int64)))
            expected = erase((plain / 255 - mean) / std)
        with seeded(seed):
            found = PILViews([[op]], MEAN, STD)(image)[0]
        torch.testing.assert_close(found, expected)


def rectangles(found: torch.Tensor) -> torch.Tensor:
    """Height and width of what is zero in each image of ones `[B, 1 or 3, H, W]`."""
    hole = (found == 0).all(dim=1)
    return torch.stack([hole.any(dim=2).sum(dim=1), hole.any(dim=1).sum(dim=1)], dim=1)


def test_rectangles_of_a_batch_are_distributed_as_timms() -> None:
    count, height, width = 4000, 20, 30
    op = ops.RandomErasing(p=0.7, mode="const")
    ones = torch.ones(count, 3, height, width)
    ours = rectangles(random_erasing(op, ones, Draws(torch.Generator().manual_seed(0), count))).float()
    random.seed(0)
    timms = rectangles(RandomErasing(0.7, max_aspect=1 / 0.3, device="cpu")(ones.clone())).float()
    for column in (0, 1):
        a, b = ours[:, column], timms[:, column]
        assert float((a > 0).float().mean()) == pytest.approx(float((b > 0).float().mean()), abs=0.03)
        a, b = a[a > 0], b[b > 0]
        assert float(a.mean()) == pytest.approx(float(b.mean()), rel=0.04)
        assert float(a.std()) == pytest.approx(float(b.std()), rel=0.06)
    area_a, area_b = (each.prod(dim=1) for each in (ours, timms))
    assert area_a.max() <= 1.08 * height * width / 3
    mean_a, mean_b = (float(each[each > 0].mean()) for each in (area_a, area_b))
    assert mean_a == pytest.approx(mean_b, rel=0.04)


def test_rectangles_lie_anywhere_in_the_image_and_are_filled_by_mode() -> None:
    ones = torch.ones(3000, 3, 12, 12)
    found = random_erasing(
        ops.RandomErasing(p=1.0, mode="const", scale=[0.1, 0.1], ratio=[1.0, 1.0]),
        ones,
        Draws(torch.Generator().manual_seed(0), 3000),
    )
    covered = (found == 0).all(dim=1).float().mean(dim=0)
    corner, centre = covered[[0, 0, -1, -1], [0, -1, 0, -1]], covered[5:7, 5:7]
    assert corner.mean() == pytest.approx(1 / 81, abs=0.006), "one of the 9 x 9 places of a 4 x 4 square"
    assert centre.mean() == pytest.approx(16 / 81, abs=0.03)
    for mode, values in (("rand", 1), ("pixel", 16)):
        op = ops.RandomErasing(p=1.0, mode=mode, scale=[0.1, 0.1], ratio=[1.0, 1.0])  # type: ignore[arg-type]
        noise = random_erasing(op, ones, Draws(torch.Generator().manual_seed(0), 3000))
        filled = noise[0, 0][noise[0, 0] != 1]
        assert len(filled) == 16
        assert len(filled.unique()) == values
        everything = noise[noise != 1]
        assert everything.mean() == pytest.approx(0, abs=0.05)
        assert everything.std() == pytest.approx(1, abs=0.05)


def test_no_image_is_erased_with_p_0_and_several_rectangles_share_the_area() -> None:
    ones = torch.ones(500, 3, 16, 16)
    none = random_erasing(ops.RandomErasing(p=0.0), ones, Draws(torch.Generator(), 500))
    assert torch.equal(none, ones)
    op = ops.RandomErasing(p=1.0, mode="const", scale=[0.3, 0.3], count=[3, 3])
    many = random_erasing(op, ones, Draws(torch.Generator().manual_seed(0), 500))
    share = (many == 0).all(dim=1).float().mean(dim=(1, 2))
    assert 0.2 < share.mean() < 0.3, "three of 10 % each, some of which overlap"


def test_a_ranks_rows_are_erased_as_those_of_the_whole_batch() -> None:
    images = torch.randint(0, 256, (9, 3, 8, 8), dtype=torch.uint8)
    views = TensorViews([[ops.HorizontalFlip(), ops.RandomErasing(p=0.9)]], MEAN, STD)
    whole = views(images, torch.Generator().manual_seed(1))[0]
    part = views(images[4:7], torch.Generator().manual_seed(1), start=4, total=9)[0]
    assert torch.equal(part, whole[4:7])


@pytest.mark.parametrize("backend", ["tensor", "stream", "torchvision"])
def test_every_backend_erases_and_repeats_a_batch_by_its_step(backend: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    dataset = list_dataset(tmp_path, [photo(12, 12, i) for i in range(6)])
    first: list[ops.Op] = [ops.TimmAugment(config="rand-m9-mstd0.5-inc1")] if backend == "torchvision" else []
    view = [*first, ops.CenterCrop(size=12), ops.RandomErasing(p=1.0, mode="const")]
    config = ViewsConfig.model_validate(
        {"backend": backend, "train": [[op.model_dump() for op in view]], "eval": {"size": 12}}
    )

    def batches(start: int) -> list[torch.Tensor]:
        loader = TrainLoader(
            dataset, config, mean=MEAN, std=STD, batch_size=3, drop_last=False, seed=0, device="cpu"
        )
        return [batch.views[0] for batch in loader.stream(start, 4)]

    all_of_them, tail = batches(0), batches(2)
    assert all(torch.equal(a, b) for a, b in zip(all_of_them[2:], tail, strict=True))
    holes = [(image == 0).all(dim=0).float().mean() for batch in all_of_them for image in batch]
    assert all(0.01 < hole < 0.4 for hole in holes)
