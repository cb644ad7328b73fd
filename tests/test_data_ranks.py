"""The ranks' rows of a batch, one after another, are the batch of one rank, bit for bit."""

from typing import get_args

import numpy as np
import pytest
import torch

from tests.test_data_loader import MOCO, WEAK, digits, make, same
from zoo.data import Batch, ops
from zoo.data.tensor_views import CPU_PART, color, draws
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
