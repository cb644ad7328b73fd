"""The backend whose workers crop and whose device does the rest: which part is whose, and equal results."""

import numpy as np
import pytest
import torch

from tests.data_fixtures import MEAN, STD, list_dataset, photo
from tests.test_data_loader import digits, make
from zoo.catalog import list_recipes
from zoo.data import TensorViews, ops
from zoo.data.streamed import Samples, processes, split_view
from zoo.recipe import Recipe

CROP, PAD = ops.RandomResizedCrop(size=8), ops.PadCrop(size=8)
FLIP, GRAY = ops.HorizontalFlip(), ops.Grayscale()
RAND, CUTOUT = ops.RandAugment(), ops.Cutout(size=2)


@pytest.mark.parametrize(
    ("bound", "cores", "ranks", "started"),
    [
        (16, 16, 1, 12),
        (4, 16, 1, 4),  # bound by the user
        (16, 16, 8, 2),  # eight on the same cores
        (24, 192, 8, 12),  # each has been given its own
        (64, 64, 8, 8),
        (1, 1, 8, 1),
    ],
)
def test_workers_are_this_ranks_share_of_the_cores(monkeypatch, bound, cores, ranks, started):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {*range(bound)}, raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    assert processes(12) == started
    assert processes(0) == 0


@pytest.mark.parametrize(
    ("view", "host"),
    [
        ([CROP, FLIP, GRAY], 1),
        ([PAD, FLIP, CUTOUT], 1),
        ([GRAY, CROP, FLIP], 2),
        ([CROP, FLIP, PAD], 1),  # the second crop has one size to begin with
        ([FLIP, GRAY], 0),
        ([], 0),
        ([CROP, FLIP, RAND, CUTOUT], 1),
        ([RAND], 0),
    ],
)
def test_workers_do_what_gives_one_size(view, host):
    assert split_view(view) == (view[:host], view[host:])


@pytest.mark.parametrize("name", list_recipes("res*") + list_recipes("vit*"))
def test_what_is_left_of_every_recipes_views_runs_on_a_batch(name):
    for view in Recipe.load(name).views.train:
        host, rest = split_view(view)
        size = host[-1].size if host and hasattr(host[-1], "size") else 32
        (out,) = TensorViews([rest], MEAN, STD)(
            torch.zeros(1, 3, size, size, dtype=torch.uint8), torch.Generator()
        )
        assert out.shape == (1, 3, size, size)


def denormalised(view):
    return view * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)


@pytest.mark.parametrize(
    "rest",
    [
        [],
        [{"op": "horizontal_flip", "p": 1.0}],
        [{"op": "grayscale", "p": 1.0}],
        [{"op": "solarize", "p": 1.0}],
        [{"op": "gaussian_blur", "p": 1.0, "sigma": [1.0, 1.0], "kernel_size": 5}],
    ],
)
def test_a_view_without_further_draws_is_torchvisions(tmp_path, rest):
    """The crop is drawn alike, so where nothing else is drawn all of the view is equal, but for rounding."""
    data = list_dataset(tmp_path, [photo(40 + seed, 30, seed) for seed in range(8)])
    views = [[{"op": "random_resized_crop", "size": 16}, *rest]]
    for batches in zip(
        *(make(data, b, views=views).stream(0, 3) for b in ("stream", "torchvision")), strict=True
    ):
        ours, theirs = (denormalised(batch.views[0]) for batch in batches)
        assert batches[0].index.tolist() == batches[1].index.tolist()
        assert (ours - theirs).abs().max() <= (2 if rest else 0.01) / 255
        assert theirs.std() > 0.1


def test_a_view_of_a_crop_alone_is_torchvisions_to_the_bit(tmp_path):
    data = list_dataset(tmp_path, [photo(30, 20, seed) for seed in range(8)])
    views = [[{"op": "random_resized_crop", "size": 16}]] * 2
    first, second = (next(make(data, b, views=views).stream(0, 1)) for b in ("stream", "torchvision"))
    assert all(map(torch.equal, first.views, second.views))


def test_bytes_travel_and_not_floats():
    samples = Samples(digits(), [[CROP]], 1, None)
    assert samples[(0, 3)].views[0].dtype == torch.uint8


def test_candidates_travel_with_their_images():
    data = digits()
    rows = np.random.default_rng(0).random((len(data), 10)) < 0.3
    rows[np.arange(len(data)), data.labels] = True
    for backend in ("tensor", "stream"):
        batch = next(make(data.with_candidates(rows), backend).stream(2, 3))
        assert batch.candidates.tolist() == rows[batch.index.numpy()].tolist()


def test_draws_on_the_device_are_new_in_every_step():
    view = [
        {"op": "pad_crop", "size": 8, "padding": 0},
        {"op": "color_jitter", "p": 1.0},
    ]  # no worker draws
    feed = make(digits().subset([0]), "stream", views=[view], batch_size=1)
    assert len({batch.views[0].numpy().tobytes() for batch in feed.stream(0, 6)}) == 6
