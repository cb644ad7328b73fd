"""The backend whose workers crop and whose device does the rest: which part is whose, and equal results."""

import numpy as np
import pytest
import torch

from tests.data_fixtures import MEAN, STD, list_dataset, photo
from tests.test_data_loader import MOCO, digits, make
from zoo.catalog import list_recipes
from zoo.data import TensorViews, ops
from zoo.data.streamed import Samples, processes, split_view
from zoo.errors import DataError
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


def test_the_three_backends_have_the_same_order(tmp_path):
    data = list_dataset(tmp_path, [photo(8, 8, seed) for seed in range(11)])
    for drop_last in (True, False):
        feeds = [
            make(data, backend, batch_size=4, drop_last=drop_last)
            for backend in ("tensor", "stream", "torchvision")
        ]
        orders = [[b.index.tolist() for b in feed.stream(2, 9)] for feed in feeds]
        labels = [[b.labels.tolist() for b in feed.stream(2, 9)] for feed in feeds]
        assert orders[0] == orders[1] == orders[2]
        assert labels[0] == labels[1] == labels[2]


def test_statistics_of_moco_views_are_torchvisions(tmp_path):
    """400 draws of one image by both: mean and spread of every channel, and of neighbours' differences."""
    image = photo(48, 40, 3)
    data = list_dataset(tmp_path, [image]).subset([0] * 400)
    moco = [{**op, "size": 24} if "size" in op else op for op in MOCO]

    def statistics(backend):
        views = next(make(data, backend, views=[moco], batch_size=400).stream(0, 1)).views[0]
        views = denormalised(views)
        edges = views.diff(dim=-1).abs().mean((1, 2, 3))
        per_image = torch.cat(
            [views.mean((2, 3)), views.std((2, 3)), edges[:, None], views[..., :12].mean((2, 3))], 1
        )
        return per_image.mean(0), per_image.std(0) / 400**0.5

    (ours, e1), (theirs, e2) = statistics("stream"), statistics("torchvision")
    assert ((ours - theirs).abs() < 4.5 * (e1**2 + e2**2).sqrt() + 1e-3).all()


def test_bytes_travel_and_not_floats():
    samples = Samples(digits(), [[CROP]], 1, None, 0)
    assert samples[(0, 3)].views[0].dtype == torch.uint8


def test_unreadable_images_are_replaced_as_by_torchvision(tmp_path):
    data = list_dataset(tmp_path, [photo(20, 20, seed) for seed in range(5)])
    (tmp_path / "1.png").write_bytes(b"")
    feeds = [make(data, b, views=[MOCO], batch_size=5, max_bad_images=1) for b in ("stream", "torchvision")]
    first, second = (next(feed.stream(0, 1)) for feed in feeds)
    assert first.index.tolist() == second.index.tolist()
    assert sorted(first.index.tolist()) == [0, 2, 2, 3, 4]
    assert feeds[0].bad_images == ["1.png"]
    with pytest.raises(DataError, match=r"1\.png"):
        next(make(data, "stream", views=[MOCO], batch_size=5).stream(0, 1))


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
