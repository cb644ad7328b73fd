"""The ranks' rows of a batch, epochs drawn with replacement, and the crops that workers make."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from tests.data_fixtures import MEAN, STD, list_dataset, photo
from tests.test_data_loader import CROP, EVERY_BACKEND, MOCO, digits, make, same
from zoo.data import Batch
from zoo.data.batches import CPU_PART, derive_seed, epoch_order
from zoo.data.views import transforms
from zoo.errors import DataError, RecipeError
from zoo.recipe import Recipe

EVERY = [  # every operation
    [*MOCO, {"op": "gaussian_blur", "kernel_size": 3}, {"op": "solarize"}],
    [CROP, {"op": "pad_crop", "size": 8}, {"op": "rand_augment"}, {"op": "cutout", "size": 3}],
    [
        {"op": "random_resized_crop", "size": 10, "interpolation": "bicubic"},
        {"op": "random_affine", "degrees": 20.0, "translate": [0.2, 0.1], "scale": [0.8, 1.2]},
        {"op": "auto_augment", "policy": "cifar10", "variant": "paco"},
    ],
]

# --- ranks ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many():
    """340 images with candidates."""
    dataset = digits(500).subset(range(340))
    candidates = np.random.default_rng(0).random((340, 10)) < 0.3
    candidates[np.arange(340), dataset.labels] = True
    return dataset.with_candidates(candidates)


def ranks(count, data, backend, start, stop, **keys):
    """The batches of each step, those of all ranks put together."""
    feeds = [make(data, backend, views=EVERY, rank=r, world_size=count, **keys) for r in range(count)]
    for batches in zip(*(feed.stream(start, stop) for feed in feeds), strict=True):
        yield Batch(
            tuple(map(torch.cat, zip(*(batch.views for batch in batches), strict=True))),
            *(torch.cat([getattr(b, key) for b in batches]) for key in ("labels", "index", "candidates")),
        )


@pytest.mark.parametrize("world_size", [2, 5])
@EVERY_BACKEND
@pytest.mark.parametrize("batch_size", [CPU_PART + 12, 320])
def test_the_ranks_rows_are_the_batch_of_one_rank(many, backend, batch_size, world_size):
    last = -(-340 // batch_size) - 1  # the end of an epoch, whose batch is smaller, and the next one's begin
    keys = {"batch_size": batch_size, "drop_last": False}
    one = list(make(many, backend, views=EVERY, **keys).stream(last, last + 2))
    assert [len(batch.index) for batch in one] == [340 % batch_size, batch_size]
    whole = list(ranks(world_size, many, backend, last, last + 2, **keys))
    for expected, found in zip(one, whole, strict=True):
        assert same(expected, found)
        assert torch.equal(expected.candidates, found.candidates)
        assert torch.equal(found.candidates, torch.from_numpy(many.candidates[found.index.numpy()]))


def test_what_a_gpu_does_without_looking_at_values_is_the_same_for_a_ranks_rows(many, monkeypatch):
    monkeypatch.setattr(transforms, "LOOKED_AT", ())
    (one,) = make(many, views=EVERY, batch_size=100).stream(0, 1)
    (two,) = ranks(2, many, "tensor", 0, 1, batch_size=100)
    assert same(one, two)


# --- sampling ---------------------------------------------------------------------------------------------

COUNTS = [900, 90, 0, 9, 1]  # a class without images, and one with a single one
LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(5), COUNTS))


def test_classes_come_alike_and_their_images_too() -> None:
    """Within 4.5 standard deviations of a binomial count each, with 60,000 draws."""
    epochs = torch.stack([epoch_order(LABELS, "class_balanced", 3, epoch) for epoch in range(60)])
    assert not torch.equal(epochs[0], epochs[1])
    index = epochs.flatten().numpy()
    shares = np.array([0.25, 0.25, 0.0, 0.25, 0.25])
    found = np.bincount(LABELS[index], minlength=5)
    assert (abs(found - 60_000 * shares) <= 4.5 * np.sqrt(60_000 * shares * (1 - shares))).all()
    for c in (0, 1, 3, 4):
        of_class = np.bincount(index, minlength=1000)[c == LABELS]
        expected = found[c] / COUNTS[c]
        assert (abs(of_class - expected) <= 4.5 * np.sqrt(expected) + 1e-9).all(), c


@EVERY_BACKEND
def test_a_drawn_stream_begins_at_any_step_is_cut_into_ranks_and_augments_a_repeated_image_anew(backend):
    full = digits(500)  # 30 images of one digit and 1 of another; of eight there is none
    zeros, one = np.flatnonzero(full.labels == 0)[:30], np.flatnonzero(full.labels == 1)[:1]
    data = full.subset(np.concatenate([zeros, one]))
    keys = {"sampling": "class_balanced", "views": [MOCO], "drop_last": True, "batch_size": 6}
    whole = list(make(data, backend, **keys).stream(0, 12))
    tail = list(make(data, backend, **keys).stream(5, 12))
    assert all(same(a, b) for a, b in zip(whole[5:], tail, strict=True))
    cut = [list(make(data, backend, rank=r, world_size=2, **keys).stream(0, 12)) for r in range(2)]
    for batch, first, second in zip(whole, *cut, strict=True):
        assert torch.equal(batch.index, torch.cat([first.index, second.index]))
        assert torch.equal(batch.views[0], torch.cat([first.views[0], second.views[0]]))
    single = torch.cat([batch.views[0][batch.labels == 1] for batch in whole[:5]])  # the first epoch
    assert len(single) > 5
    assert len({view.numpy().tobytes() for view in single}) == len(single)


def test_sampling_by_class_needs_every_label() -> None:
    sampling = "class_balanced"
    with pytest.raises(RecipeError, match=r'training.sampling: found "class_balanced", expected "instance"'):
        Recipe.load("cifar_resnet20.pico_digits_q05", [f"training.sampling={sampling}"])
    data = digits()
    one_unknown = replace(data, labels=np.where(np.arange(len(data)) == 7, -1, data.labels))
    for unlabelled in (data.without_labels(), one_unknown):
        with pytest.raises(DataError, match=f'sampling: found "{sampling}"'):
            make(unlabelled, sampling=sampling)


@pytest.mark.parametrize(
    "rest",
    [
        [{"op": "horizontal_flip", "p": 1.0}],
        [{"op": "gaussian_blur", "p": 1.0, "sigma": [1.0, 1.0], "kernel_size": 5}],
    ],
)
def test_the_crops_of_workers_are_torchvisions(tmp_path, rest):
    """With a seed of epoch and image, so where nothing else is drawn all of a view is torchvision's."""
    data = list_dataset(tmp_path, [photo(40 + seed, 30, seed) for seed in range(8)])
    views = [[{"op": "random_resized_crop", "size": 16}, *rest]]
    batch = next(make(data, "stream", views=views).stream(0, 1))
    then = v2.GaussianBlur(5, (1.0, 1.0)) if "sigma" in rest[0] else v2.RandomHorizontalFlip(1.0)
    view = v2.Compose([v2.RandomResizedCrop(16, (0.2, 1.0)), then, v2.PILToTensor()])
    for index, found in zip(batch.index.tolist(), batch.views[0], strict=True):
        torch.manual_seed(derive_seed("views", 1, 0, index))
        expected = view(data.image(index)) / 255 - torch.tensor(MEAN).view(3, 1, 1)
        assert (found * torch.tensor(STD).view(3, 1, 1) - expected).abs().max() <= 2 / 255
