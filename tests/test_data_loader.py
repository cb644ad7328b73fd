"""Training batches: a pure function of the global step, whatever the backend and the number of workers."""

import gc
import multiprocessing
import time

import numpy as np
import pytest
import torch

from tests.data_fixtures import MEAN, STD, list_dataset, photo
from zoo.config import parse
from zoo.data import DataConfig, TrainLoader, ViewsConfig, open_dataset
from zoo.data.batches import derive_seed
from zoo.data.config import Digits
from zoo.errors import DataError, ZooError

CROP = {"op": "random_resized_crop", "size": 8}
MOCO = [CROP, *({"op": op} for op in ("color_jitter", "grayscale", "horizontal_flip"))]
BLURRED = [CROP, {"op": "gaussian_blur", "kernel_size": 3}]
PADDED = [{"op": "pad_crop", "size": 8, "padding": 2}, {"op": "horizontal_flip"}]
EVERY_BACKEND = pytest.mark.parametrize("backend", ["tensor", "stream"])


def digits(count=50):
    return open_dataset(DataConfig(source=Digits()), "test", None).subset(range(0, 500, 500 // count))


def make(data, backend="tensor", workers=0, views=(MOCO, BLURRED), cache=False, **keys):
    section = {"backend": backend, "workers": workers, "cache": cache, "train": list(views)}
    config = parse(ViewsConfig, {**section, "eval": {"size": 8}}, "r")
    defaults = {"mean": MEAN, "std": STD, "batch_size": 8, "drop_last": True, "seed": 1, "device": "cpu"}
    return TrainLoader(data, config, **{**defaults, **keys})


def same(left, right):
    pairs = zip(
        (*left.views, left.labels, left.index), (*right.views, right.labels, right.index), strict=True
    )
    return all(torch.equal(a, b) for a, b in pairs)


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
def test_an_epoch_has_every_image_once_in_an_order_of_seed_and_epoch_and_in_new_views(backend):
    data = digits()
    feed = make(data, backend, drop_last=False)
    assert feed.steps_per_epoch == 7
    epochs = [list(feed.stream(7 * e, 7 * e + 7)) for e in range(2)]
    views = []
    for number, epoch in enumerate(epochs):
        order = torch.cat([b.index for b in epoch])
        seed = derive_seed("order", 1, number)
        assert torch.equal(order, torch.randperm(50, generator=torch.Generator().manual_seed(seed)))
        assert [len(b.index) for b in epoch] == [8] * 6 + [2]
        assert torch.cat([b.labels for b in epoch]).tolist() == data.labels[order.numpy()].tolist()
        views.append(torch.cat([b.views[0] for b in epoch])[order.argsort()])
    assert not torch.allclose(views[0], views[1])
    assert [view.shape for view in epochs[0][0].views] == [(8, 3, 8, 8)] * 2


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
    monkeypatch.setattr("zoo.data.batches.own_cores", lambda: 2)
    before = len(workers_alive())
    stream = make(digits(), "stream", workers=2).stream(0, 4 if how == "exhaust" else 1000)
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


def test_images_of_several_sizes_need_a_size_or_a_crop_first(tmp_path):
    data = list_dataset(tmp_path, [photo(8, 8, 0), photo(9, 8, 1)])
    with pytest.raises(DataError, match=r'"1\.png" has 9x8 pixels.*data.image_size'):
        make(data, batch_size=2)
    for feed in (make(data, batch_size=2, image_size=8), make(data, "stream", batch_size=2)):
        assert next(feed.stream(0, 1)).views[0].shape == (2, 3, 8, 8)
    for view in (PADDED, []):
        with pytest.raises(ZooError, match="expected random_resized_crop first"):
            make(data, "stream", views=[MOCO, view])


@pytest.mark.parametrize(("backend", "workers"), [("tensor", 0), ("stream", 0), ("stream", 1)])
def test_an_unreadable_image_ends_the_training_by_name(tmp_path, backend, workers):
    data = list_dataset(tmp_path, [photo(8, 8, i) for i in range(6)])
    for number in (1, 4):
        (tmp_path / f"{number}.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r'^image "[14].png" cannot be read: [^\n]*$'):
        list(make(data, backend, workers, batch_size=3).stream(0, 2))


@pytest.mark.parametrize("op", [{"op": "pad_crop", "size": 32}, {"op": "gaussian_blur", "kernel_size": 23}])
def test_images_too_small_for_an_operation_are_a_clear_error(op):
    with pytest.raises(DataError, match=rf"^{op['op']}: [^\n]* 8x8 pixels[^\n]*$|^{op['op']}: 8x8 pixels"):
        next(make(digits(), views=[[op]]).stream(0, 1))


def test_without_operations_views_are_the_normalised_images():
    data = digits()
    batch = next(make(data, views=[[]]).stream(0, 1))
    pixels = np.stack([np.asarray(data.image(int(i))) for i in batch.index]).transpose(0, 3, 1, 2) / 255
    expected = (pixels - np.reshape(MEAN, (3, 1, 1))) / np.reshape(STD, (3, 1, 1))
    assert np.allclose(batch.views[0].numpy(), expected, atol=1e-5)
