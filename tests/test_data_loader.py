"""Training batches: a pure function of the global step, whatever the backend and the number of workers."""

import gc
import multiprocessing
import time

import numpy as np
import pytest
import torch

from tests.data_fixtures import MEAN, STD, list_dataset, photo
from zoo.config import parse
from zoo.data import (
    DataConfig,
    TrainLoader,
    ViewsConfig,
    open_dataset,
)
from zoo.data.config import Digits
from zoo.errors import DataError
from zoo.seeding import derive_seed

MOCO = [
    {"op": "random_resized_crop", "size": 8},
    {"op": "color_jitter"},
    {"op": "grayscale"},
    {"op": "gaussian_blur", "kernel_size": 3},
    {"op": "horizontal_flip"},
]
WEAK = [{"op": "pad_crop", "size": 8, "padding": 2}, {"op": "horizontal_flip"}]
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
EVERY_BACKEND = pytest.mark.parametrize("backend", ["tensor", "stream", "torchvision"])


def digits(count=50):
    return open_dataset(DataConfig(source=Digits()), "test", None).subset(range(0, 500, 500 // count))


def make(data, backend="tensor", workers=0, views=(MOCO, WEAK), cache=False, **keys):
    section = {"backend": backend, "workers": workers, "cache": cache, "train": list(views)}
    config = parse(ViewsConfig, {**section, "eval": {"size": 8}}, "r")
    defaults = {"mean": MEAN, "std": STD, "batch_size": 8, "drop_last": True, "seed": 1, "device": "cpu"}
    return TrainLoader(data, config, **{**defaults, **keys})


def same(left, right):
    tensors = zip(
        (*left.views, left.labels, left.index), (*right.views, right.labels, right.index), strict=True
    )
    return all(torch.equal(a, b) for a, b in tensors)


@EVERY_BACKEND
def test_a_stream_can_begin_at_any_step(backend):
    data = digits()
    whole = list(make(data, backend).stream(0, 16))
    assert len(whole) == 16
    for start in (1, 6, 9):  # steps_per_epoch is 6: within the first, at the second, within the second epoch
        tail = list(make(data, backend).stream(start, 16))
        assert len(tail) == 16 - start
        assert all(same(a, b) for a, b in zip(whole[start:], tail, strict=True))


@EVERY_BACKEND
def test_batches_do_not_depend_on_the_number_of_workers_or_on_the_global_generator(backend):
    data = digits()
    torch.manual_seed(1)
    state = torch.get_rng_state()
    reference = list(make(data, backend, 0).stream(3, 9))
    assert torch.equal(torch.get_rng_state(), state)
    for workers in (1, 2):
        torch.manual_seed(workers + 100)
        batches = list(make(data, backend, workers).stream(3, 9))
        assert all(same(a, b) for a, b in zip(reference, batches, strict=True))


@EVERY_BACKEND
def test_an_epoch_has_every_image_once_in_a_new_order_and_new_views(backend):
    data = digits()
    feed = make(data, backend, drop_last=False)
    assert feed.steps_per_epoch == 7
    epochs = [list(feed.stream(7 * e, 7 * e + 7)) for e in range(2)]
    orders = [torch.cat([b.index for b in epoch]) for epoch in epochs]
    for epoch, order in zip(epochs, orders, strict=True):
        assert [len(b.index) for b in epoch] == [8] * 6 + [2]
        assert sorted(order.tolist()) == list(range(50))
        assert torch.cat([b.labels for b in epoch]).tolist() == data.labels[order.numpy()].tolist()
    assert orders[0].tolist() != orders[1].tolist()
    views = [
        torch.cat([b.views[0] for b in epoch])[order.argsort()]
        for epoch, order in zip(epochs, orders, strict=True)
    ]
    assert not torch.allclose(views[0], views[1])
    assert epochs[0][0].views[0].shape == (8, 3, 8, 8)
    assert len(epochs[0][0].views) == 2


def test_the_order_is_a_function_of_seed_and_epoch_alone():
    order = torch.randperm(50, generator=torch.Generator().manual_seed(derive_seed("order", 1, 2)))
    for backend in ("tensor", "stream", "torchvision"):
        batch = next(make(digits(), backend).stream(6 * 2 + 1, 6 * 2 + 2))
        assert batch.index.tolist() == order[8:16].tolist()


@EVERY_BACKEND
def test_drop_last_with_too_few_images_is_refused(backend):
    with pytest.raises(DataError, match="50 images are fewer than one batch of 64"):
        make(digits(), backend, batch_size=64)
    feed = make(digits(), backend, batch_size=64, drop_last=False)
    assert feed.steps_per_epoch == 1
    assert len(next(feed.stream(0, 1)).index) == 50


def workers_alive():
    return [p for p in multiprocessing.active_children() if p.is_alive()]


@pytest.mark.parametrize("how", ["close", "drop", "exhaust", "error"])
def test_no_worker_process_outlives_its_stream(how, monkeypatch):
    monkeypatch.setattr("zoo.data.streamed.own_cores", lambda: 2)
    before = len(workers_alive())
    stream = make(digits(), "torchvision", workers=2).stream(0, 4 if how == "exhaust" else 1000)
    next(stream)
    assert len(workers_alive()) == before + 2
    if how == "close":
        stream.close()
    elif how == "exhaust":
        list(stream)
    elif how == "error":
        with pytest.raises(ZeroDivisionError):
            for _ in stream:
                _ = 1 / 0
    del stream
    gc.collect()
    deadline = time.monotonic() + 5
    while len(workers_alive()) > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(workers_alive()) == before


def test_tensor_backend_needs_one_size_and_says_how_to_get_it(tmp_path):
    data = list_dataset(tmp_path, [photo(8, 8, 0), photo(9, 8, 1)])
    with pytest.raises(DataError, match=r"8x8 and of 9x8 pixels.*data.image_size"):
        make(data, batch_size=2)
    batch = next(make(data, batch_size=2, image_size=8).stream(0, 1))
    assert batch.views[0].shape == (2, 3, 8, 8)
    batch = next(make(data, "torchvision", batch_size=2, views=[MOCO]).stream(0, 1))
    assert batch.views[0].shape == (2, 3, 8, 8)


@pytest.mark.parametrize(
    ("backend", "workers"), [("tensor", 0), ("stream", 0), ("stream", 1), ("torchvision", 0)]
)
def test_an_unreadable_image_ends_the_training_by_name(tmp_path, backend, workers):
    data = list_dataset(tmp_path, [photo(8, 8, i) for i in range(6)])
    for number in (1, 4):
        (tmp_path / f"{number}.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r'^image "[14].png" cannot be read') as caught:
        list(make(data, backend, workers, batch_size=3).stream(0, 2))
    assert "\n" not in str(caught.value)
    if backend == "tensor":  # decodes all before the first batch
        assert '"1.png"' in str(caught.value)
        assert str(caught.value).endswith("; 1 more cannot be read (4.png)")


@pytest.mark.parametrize("workers", [0, 1])
def test_views_of_different_sizes_are_a_clear_error(tmp_path, workers):
    data = list_dataset(tmp_path, [photo(8, 8, 0), photo(20, 8, 1)])
    with pytest.raises(DataError, match=r"view 0 has images of (8x8 and of 20x8|20x8 and of 8x8)") as caught:
        next(make(data, "torchvision", workers, [[{"op": "grayscale"}]], batch_size=2).stream(0, 1))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("backend", "workers"), [("tensor", 0), ("stream", 1), ("torchvision", 0), ("torchvision", 1)]
)
def test_an_image_too_small_for_an_operation_is_a_clear_error(backend, workers):
    with pytest.raises(DataError, match=r"(pad_crop|cannot be augmented)") as caught:
        next(make(digits(), backend, workers, [[{"op": "pad_crop", "size": 32, "padding": 1}]]).stream(0, 1))
    assert "\n" not in str(caught.value)


def test_without_operations_views_are_the_normalised_images():
    data = digits()
    batches = [
        next(make(data, backend, views=[[]]).stream(0, 1)) for backend in ("tensor", "stream", "torchvision")
    ]
    pixels = np.stack([np.asarray(data.image(int(i))) for i in batches[0].index]).transpose(0, 3, 1, 2) / 255
    expected = (pixels - np.reshape(MEAN, (3, 1, 1))) / np.reshape(STD, (3, 1, 1))
    for batch in batches:
        assert np.allclose(batch.views[0].numpy(), expected, atol=1e-5)
