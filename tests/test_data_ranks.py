"""The ranks' rows of a batch, one after another, are the batch of one rank, bit for bit."""

from typing import get_args

import numpy as np
import pytest
import torch

from tests.data_fixtures import list_dataset, photo
from tests.test_data_loader import MOCO, WEAK, digits, make, same
from zoo.data import Batch, ops
from zoo.data.tensor_views import CPU_PART, color, draws
from zoo.errors import DataError
from zoo.ranks import part_of

STRONG = [
    {"op": "random_resized_crop", "size": 10},
    {"op": "rand_augment"},
    {"op": "horizontal_flip"},
    {"op": "cutout", "size": 3},
    {"op": "random_resized_crop", "size": 8, "interpolation": "bicubic"},
    {"op": "random_affine", "degrees": 20.0, "translate": [0.2, 0.1], "scale": [0.8, 1.2]},
    {"op": "auto_augment", "policy": "cifar10"},
    {"op": "solarize"},
]
EVERY = [[*MOCO, {"op": "solarize"}], [*WEAK, {"op": "auto_augment", "policy": "svhn"}], STRONG]
IMAGES = 333


@pytest.fixture(scope="module")
def data():
    dataset = digits(500).subset(range(IMAGES))
    candidates = np.random.default_rng(0).random((IMAGES, 10)) < 0.3
    candidates[np.arange(IMAGES), dataset.labels] = True
    return dataset.with_candidates(candidates)


def together(batches):
    """The rows of all ranks, in order."""
    return Batch(
        tuple(map(torch.cat, zip(*(batch.views for batch in batches), strict=True))),
        torch.cat([batch.labels for batch in batches]),
        torch.cat([batch.index for batch in batches]),
        torch.cat([batch.candidates for batch in batches]),
    )


def ranks(count, data, backend, start, stop, **keys):
    """The batches of each step, those of all ranks put together."""
    feeds = [make(data, backend, views=EVERY, rank=r, world_size=count, **keys) for r in range(count)]
    return [together(batches) for batches in zip(*(feed.stream(start, stop) for feed in feeds), strict=True)]


def test_every_operation_is_in_these_views():
    kinds = {op.model_fields["op"].default for op in get_args(get_args(ops.Op)[0])}
    assert {op["op"] for view in EVERY for op in view} == kinds


@pytest.mark.parametrize("world_size", [2, 5])
@pytest.mark.parametrize("backend", ["tensor", "stream", "torchvision"])
@pytest.mark.parametrize("batch_size", [CPU_PART, 300])
def test_the_ranks_rows_are_the_batch_of_one_rank(data, backend, batch_size, world_size):
    keys = {"batch_size": batch_size, "drop_last": False}
    if backend == "tensor":
        start, stop = 0, 10
    else:  # a whole epoch takes long: its end and the beginning of the next
        last = -(-IMAGES // batch_size) - 1
        start, stop = last, last + 2
    one = list(make(data, backend, views=EVERY, **keys).stream(start, stop))
    assert IMAGES % batch_size in {len(batch.index) for batch in one}
    for whole, put_together in zip(one, ranks(world_size, data, backend, start, stop, **keys), strict=True):
        assert same(whole, put_together)
        assert torch.equal(whole.candidates, put_together.candidates)


@pytest.mark.parametrize("backend", ["tensor", "stream", "torchvision"])
def test_a_rank_resumes_within_an_epoch(data, backend):
    keys = {"batch_size": 37, "drop_last": True, "views": [MOCO, WEAK], "rank": 1, "world_size": 3}
    whole = list(make(data, backend, **keys).stream(0, 6))
    tail = list(make(data, backend, **keys).stream(4, 6))
    assert all(same(a, b) for a, b in zip(whole[4:], tail, strict=True))
    assert len(whole[0].index) == 12  # of 13, 12, 12


def test_what_a_gpu_does_without_looking_at_values_is_the_same_for_a_ranks_rows(data, monkeypatch):
    monkeypatch.setattr(draws, "can_look", lambda device: False)
    monkeypatch.setattr(color, "can_look", lambda device: False)
    (one,) = make(data, views=EVERY, batch_size=100).stream(0, 1)
    (three,) = ranks(3, data, "tensor", 0, 1, batch_size=100)
    assert same(one, three)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("backend", ["tensor", "stream"])
def test_on_a_gpu_the_ranks_rows_are_the_batch_of_one_rank(data, backend):
    keys = {"batch_size": 100, "device": "cuda"}
    one = list(make(data, backend, views=EVERY, **keys).stream(2, 5))
    for whole, put_together in zip(one, ranks(3, data, backend, 2, 5, **keys), strict=True):
        assert torch.equal(whole.index, put_together.index)
        for ours, theirs in zip(put_together.views, whole.views, strict=True):
            # sums of another order; where one falls to the other side of a step of 8 bits, more
            apart = (ours - theirs).abs().amax((1, 2, 3))
            assert (apart < 1e-4).float().mean() > 0.95


def test_with_two_threads_the_rows_are_the_same(data):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        (one,) = make(data, views=EVERY, batch_size=300).stream(0, 1)
        (five,) = ranks(5, data, "tensor", 0, 1, batch_size=300)
    finally:
        torch.set_num_threads(before)
    assert same(one, five)


@pytest.mark.parametrize("total", [1, 2, 3, 7, 128, 333])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
def test_rows_are_split_as_tensor_split_does(total, world_size):
    rows = torch.arange(total)
    for rank, theirs in enumerate(torch.tensor_split(rows, world_size)):
        start, stop = part_of(total, rank, world_size)
        assert rows[start:stop].tolist() == theirs.tolist()


@pytest.fixture
def damaged(tmp_path):
    data = list_dataset(tmp_path, [photo(16, 16, seed) for seed in range(12)])
    for number in (2, 3, 9):
        (tmp_path / f"{number}.png").write_bytes(b"no image")
    return data


@pytest.mark.parametrize("backend", ["tensor", "stream", "torchvision"])
def test_unreadable_images_are_replaced_alike(damaged, backend):
    keys = {"batch_size": 6, "max_bad_images": 3}
    one = make(damaged, backend, **keys)
    feeds = [make(damaged, backend, rank=rank, world_size=2, **keys) for rank in range(2)]
    for whole, *batches in zip(one.stream(0, 4), *(feed.stream(0, 4) for feed in feeds), strict=True):
        for rank, batch in enumerate(batches):
            start, stop = part_of(6, rank, 2)
            assert batch.index.tolist() == whole.index[start:stop].tolist()
            assert torch.equal(batch.views[0], whole.views[0][start:stop])


def test_the_tensor_backend_knows_all_unreadable_images_on_every_rank(damaged):
    feeds = [make(damaged, batch_size=6, max_bad_images=3, rank=r, world_size=2) for r in range(2)]
    assert [feed.bad_images for feed in feeds] == [["2.png", "3.png", "9.png"]] * 2
    for rank in range(2):
        with pytest.raises(DataError, match="at most 2 such"):
            make(damaged, batch_size=6, max_bad_images=2, rank=rank, world_size=2)


def test_what_the_ranks_met_counts_together(damaged):
    """Each of twelve ranks reads one image in a step: three of them meet one that cannot be read."""
    keys = {"backend": "stream", "views": [MOCO], "batch_size": 12, "world_size": 12}

    def met(limit):
        feeds = [make(damaged, rank=rank, max_bad_images=limit, **keys) for rank in range(12)]
        for feed in feeds:
            list(feed.stream(0, 1))
        return feeds

    feeds = met(3)
    assert all(len(feed.bad_images) < 3 for feed in feeds)
    everybody = [feed.unreadable for feed in feeds]
    for feed in feeds:
        feed.note_unreadable(everybody)
        assert feed.bad_images == feeds[0].bad_images
        assert sorted(feed.bad_images) == ["2.png", "3.png", "9.png"]
    feeds = met(2)
    for feed in feeds:
        with pytest.raises(DataError, match=r"2 more cannot be read .*at most 2 such"):
            feed.note_unreadable(everybody)
