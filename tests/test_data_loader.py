"""Batches: of a training, a pure function of seed and step whatever makes them; of an evaluation, timm's."""

import gc
import multiprocessing
import os
import resource
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import create_transform
from torchvision.transforms import RandomResizedCrop, v2

from tests.data_fixtures import CROP, MEAN, MOCO, STD, digits, list_dataset, make, photo, same
from zoo.data import Batch, DataConfig, EvalView, batches, eval_images, open_dataset, ops
from zoo.data.batches import CPU_PART, derive_seed, epoch_order
from zoo.data.config import ListFiles
from zoo.errors import DataError, RecipeError, ZooError, ZooWarning
from zoo.recipe import Recipe
from zoo.training.signals import stop_on_signal

EVERY_BACKEND = pytest.mark.parametrize("backend", ["tensor", "stream"])
EVERY = [  # every operation
    [*MOCO, {"op": "gaussian_blur", "kernel_size": 3}, {"op": "solarize"}],
    [CROP, {"op": "pad_crop", "size": 8}, {"op": "rand_augment"}, {"op": "cutout", "size": 3}],
    [
        {"op": "random_resized_crop", "size": 10, "interpolation": "bicubic"},
        {"op": "random_affine", "degrees": 20.0, "translate": [0.2, 0.1], "scale": [0.8, 1.2]},
        {"op": "auto_augment", "policy": "cifar10", "variant": "paco"},
    ],
]


@pytest.mark.parametrize("sampling", ["instance", "class_balanced"])
@EVERY_BACKEND
def test_a_stream_begins_at_any_step_and_draws_nothing_from_the_global_generator(backend, sampling):
    data = digits()
    torch.manual_seed(1)
    state = torch.get_rng_state()
    whole = list(make(data, backend, sampling=sampling).stream(0, 16))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    for start, workers in ((1, 0), (6, 0), (9, 1)):  # 6 steps an epoch; the last by a worker process
        tail = list(make(data, backend, workers, sampling=sampling).stream(start, 16))
        assert len(tail) == 16 - start
        assert all(same(a, b) for a, b in zip(whole[start:], tail, strict=True))
    (other,) = make(data, backend, sampling=sampling, seed=2).stream(0, 1)
    assert not torch.equal(other.index, whole[0].index)


@EVERY_BACKEND
def test_an_epoch_has_every_image_once_in_an_order_of_seed_and_epoch_and_in_new_views(backend):
    data = digits()
    feed = make(data, backend, drop_last=False)
    assert feed.steps_per_epoch == 7
    views = []
    for number in range(2):
        epoch = list(feed.stream(7 * number, 7 * number + 7))
        order = torch.cat([b.index for b in epoch])
        seed = derive_seed("order", 1, number)
        assert torch.equal(order, torch.randperm(50, generator=torch.Generator().manual_seed(seed)))
        assert [len(b.index) for b in epoch] == [8] * 6 + [2]
        assert torch.cat([b.labels for b in epoch]).tolist() == data.labels[order.numpy()].tolist()
        views.append(torch.cat([b.views[0] for b in epoch])[order.argsort()])
    assert not torch.allclose(views[0], views[1])
    with pytest.raises(DataError, match="50 images are fewer than one batch of 64"):
        make(data, backend, batch_size=64)


def workers_alive():
    return len([p for p in multiprocessing.active_children() if p.is_alive()])


def test_no_worker_process_outlives_its_stream(monkeypatch):
    monkeypatch.setattr("zoo.data.batches.own_cores", lambda: 2)
    before = workers_alive()
    stream = make(digits(), "stream", workers=2).stream(0, 1000)
    next(stream)
    assert workers_alive() == before + 2
    del stream
    gc.collect()
    deadline = time.monotonic() + 5
    while workers_alive() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert workers_alive() == before


@pytest.mark.parametrize("fault", ["no shared memory", "killed"])
def test_workers_without_memory_end_in_one_line_and_leave_no_process_that_blocks_the_exit(monkeypatch, fault):
    before, real = workers_alive(), batches.default_collate

    def join(images):
        if fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("unable to allocate shared memory(shm) for file </torch_9>: No space left (28)")

    monkeypatch.setattr(batches, "default_collate", join)
    monkeypatch.setattr(batches, "own_cores", lambda: 2)
    stream = make(digits(), "stream", workers=2).stream(0, 9)
    with pytest.raises(MemoryError, match=r"(shared memory|DataLoader worker).*; use fewer$") as error:
        next(stream)
    assert workers_alive() == before and "\n" not in str(error.value)
    monkeypatch.setattr(batches, "default_collate", real)
    assert len(next(make(digits(), "stream", workers=2).stream(0, 9)).views) == 2


def test_images_are_decoded_in_this_process_where_shared_memory_is_small(monkeypatch):
    free = Mock(return_value=SimpleNamespace(total=64 << 20, free=64 << 20))
    monkeypatch.setattr("zoo.files.shutil.disk_usage", free)
    before, stream = workers_alive(), make(digits(), "stream", workers=2).stream(0, 2)
    with pytest.warns(ZooWarning, match=r"^workers: 0 in place of 2, since .*/dev/shm"):
        first = next(stream)
    assert workers_alive() == before
    free.return_value.free = 1 << 30
    assert same(first, next(make(digits(), "stream", workers=2).stream(0, 2)))


def test_workers_that_have_just_begun_survive_the_signal_that_stops_a_training(monkeypatch):
    real = batches._survive_first_sigterm
    monkeypatch.setattr(batches, "_survive_first_sigterm", lambda worker: (time.sleep(0.5), real(worker)))
    monkeypatch.setattr(batches, "own_cores", lambda: 2)

    def stop():
        for worker in multiprocessing.active_children():
            os.kill(worker.pid, signal.SIGTERM)

    with stop_on_signal():  # the workers inherit its handler
        timer = threading.Timer(0.25, stop)
        timer.start()
        assert len([*make(digits(), "stream", workers=2).stream(0, 3)]) == 3
    timer.join()


def test_images_of_several_sizes_need_a_size_or_a_crop_first(tmp_path):
    data = list_dataset(tmp_path, [photo(8, 8, 0), photo(9, 8, 1)])
    with pytest.raises(DataError, match=r'"1\.png" has 9x8 pixels.*data.image_size'):
        make(data, batch_size=2)
    for feed in (make(data, batch_size=2, image_size=8), make(data, "stream", batch_size=2)):
        assert next(feed.stream(0, 1)).views[0].shape == (2, 3, 8, 8)
    with pytest.raises(ZooError, match="expected random_resized_crop first"):
        make(data, "stream", views=[MOCO, []])


@pytest.mark.parametrize("op", [{"op": "pad_crop", "size": 32}, {"op": "gaussian_blur", "kernel_size": 23}])
def test_images_too_small_for_an_operation_are_a_clear_error(op):
    with pytest.raises(DataError, match=rf"^{op['op']}: [^\n]*8x8[^\n]*$"):
        next(make(digits(), views=[[op]]).stream(0, 1))


def test_without_operations_views_are_the_normalised_images():
    data = digits()
    batch = next(make(data, views=[[]]).stream(0, 1))
    pixels = np.stack([np.asarray(data.image(int(i))) for i in batch.index]).transpose(0, 3, 1, 2) / 255
    expected = (pixels - np.reshape(MEAN, (3, 1, 1))) / np.reshape(STD, (3, 1, 1))
    assert np.allclose(batch.views[0].numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("ending", ["png", "jpg"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_the_crops_of_workers_are_torchvisions_of_pillows_images(tmp_path, ending, interpolation):
    """With a seed of epoch and image; nothing but the crop is drawn here."""
    for number in range(8):
        photo(80 + number, 60, number).save(tmp_path / f"{number}.{ending}")
    (tmp_path / "all.txt").write_text("".join(f"{n}.{ending} {n % 2}\n" for n in range(8)))
    data = open_dataset(DataConfig(source=ListFiles(train="all.txt", test="all.txt")), "train", tmp_path)
    crop = {**CROP, "size": 48, "interpolation": interpolation}
    how = {"interpolation": v2.InterpolationMode(interpolation)}
    for workers in (0, 1):
        batch = next(make(data, "stream", workers, views=[[crop]]).stream(0, 1))
        for index, found in zip(batch.index.tolist(), batch.views[0], strict=True):
            torch.manual_seed(derive_seed("views", 1, 0, index))
            image = v2.RandomResizedCrop(48, (0.2, 1.0), **how)(data.image(index))
            expected = v2.functional.pil_to_tensor(image)
            pixels = (found * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)) * 255
            assert (pixels.round() - expected).abs().max() <= 1


@pytest.mark.parametrize(("ending", "ratio"), [("jpg", 2), ("png", 1)])
def test_a_jpeg_of_many_pixels_is_decoded_smaller_for_its_crops_alone(tmp_path, ending, ratio):
    for number in range(4):
        photo(401, 299, number).save(tmp_path / f"{number}.{ending}")
    (tmp_path / "all.txt").write_text("".join(f"{n}.{ending} {n % 2}\n" for n in range(4)))
    data = open_dataset(DataConfig(source=ListFiles(train="all.txt", test="all.txt")), "train", tmp_path)
    op = ops.RandomResizedCrop(size=56, scale=[0.5, 0.8])
    for place in range(4):
        (found,) = batches.random_crops(data, None, [[op]], 1, (0, place))
        whole = v2.functional.pil_to_tensor(data.image(place))
        torch.manual_seed(derive_seed("views", 1, 0, place))
        top, left, h, w = RandomResizedCrop.get_params(whole, op.scale, op.ratio)
        with Image.open(tmp_path / f"{place}.{ending}") as image:
            image.draft("RGB", (401 // ratio, 299 // ratio))
            pixels = v2.functional.pil_to_tensor(image)
        edges = [round(n / ratio) for n in (top, left, top + h, left + w)]
        box = (*edges[:2], edges[2] - edges[0], edges[3] - edges[1])
        expected = v2.functional.resized_crop(pixels, *box, [56, 56])
        assert (found[0].int() - expected.int()).abs().max() <= 1
        ideal = v2.functional.resized_crop(whole, top, left, h, w, [56, 56])
        assert (found[0].float() - ideal.float()).abs().mean() < 1.5


@pytest.fixture(scope="module")
def many():
    """180 images with candidates."""
    dataset = digits(500).subset(range(180))
    candidates = np.random.default_rng(0).random((180, 10)) < 0.3
    candidates[np.arange(180), dataset.labels] = True
    return dataset.with_candidates(candidates)


def ranks(count, data, backend, start, stop, **keys):
    """The batches of each step, those of all ranks put together."""
    feeds = [make(data, backend, views=EVERY, rank=r, world_size=count, **keys) for r in range(count)]
    for parts in zip(*(feed.stream(start, stop) for feed in feeds), strict=True):
        yield Batch(
            tuple(map(torch.cat, zip(*(part.views for part in parts), strict=True))),
            *(torch.cat([getattr(part, key) for part in parts]) for key in ("labels", "index", "candidates")),
        )


@pytest.mark.parametrize("sampling", ["instance", "class_balanced"])
@EVERY_BACKEND
def test_the_ranks_rows_are_the_batch_of_one_rank(many, backend, sampling):
    """At the end of an epoch, whose batch is smaller, and at the next one's begin, of more than one part."""
    keys = {"batch_size": CPU_PART + 12, "drop_last": False, "sampling": sampling}
    one = list(make(many, backend, views=EVERY, **keys).stream(1, 3))
    assert [len(batch.index) for batch in one] == [40, 140]
    for expected, found in zip(one, ranks(5, many, backend, 1, 3, **keys), strict=True):
        assert same(expected, found)
        assert torch.equal(expected.candidates, found.candidates)
        assert torch.equal(found.candidates, torch.from_numpy(many.candidates[found.index.numpy()]))


COUNTS = [900, 90, 0, 9, 1]  # a class without images, and one with a single one
LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(5), COUNTS))


def test_classes_come_alike_and_their_images_too():
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
def test_an_image_that_is_drawn_again_has_views_of_its_own(backend):
    full = digits(500)  # 30 images of one digit and 1 of another; of eight there is none
    data = full.subset([*np.flatnonzero(full.labels == 0)[:30], *np.flatnonzero(full.labels == 1)[:1]])
    feed = make(data, backend, sampling="class_balanced", views=[MOCO], batch_size=6)
    single = torch.cat([batch.views[0][batch.labels == 1] for batch in feed.stream(0, 5)])  # an epoch
    assert len(single) > 5 and len({view.numpy().tobytes() for view in single}) == len(single)


def test_sampling_by_class_needs_every_label():
    message = 'sampling: found "class_balanced"'
    with pytest.raises(RecipeError, match=message):
        Recipe.load("cifar_resnet20.pico_digits_q05", ["training.sampling=class_balanced"])
    data = digits()
    one_unknown = replace(data, labels=np.where(np.arange(len(data)) == 7, -1, data.labels))
    for unlabelled in (data.without_labels(), one_unknown):
        with pytest.raises(DataError, match=message):
            make(unlabelled, sampling="class_balanced")


@pytest.mark.parametrize(
    ("size", "crop_pct", "interpolation", "workers"), [(32, 0.875, "bicubic", 0), (48, 1.0, "bilinear", 1)]
)
def test_pixels_of_an_evaluation_are_those_of_timm(tmp_path, size, crop_pct, interpolation, workers):
    sizes = [(32, 32), (40, 33), (64, 80), (48, 48), (17, 90)]
    images = [photo(w, h, seed=i) for i, (w, h) in enumerate(sizes)]
    data = list_dataset(tmp_path, images)
    how = {"interpolation": interpolation, "crop_pct": crop_pct}
    transform = create_transform(input_size=(3, size, size), mean=MEAN, std=STD, **how)
    keys = {"batch_size": 2, "device": "cpu", "workers": workers}
    pixels, labels = zip(*eval_images(data, EvalView(size=size, **how), MEAN, STD, **keys), strict=True)
    assert [len(each) for each in labels] == [2, 2, 1]
    assert torch.cat(labels).tolist() == data.labels.tolist()
    assert torch.equal(torch.cat(pixels), torch.stack([transform(image) for image in images]))


@pytest.mark.parametrize(("backend", "workers"), [("tensor", 0), ("stream", 1)])
def test_an_unreadable_image_ends_a_training_and_an_evaluation_or_is_left_out(tmp_path, backend, workers):
    data = list_dataset(tmp_path, [photo(8, 8, seed=i) for i in range(6)])
    for name in ("1.png", "4.png"):
        (tmp_path / name).write_bytes(b"not an image")
    keys = {"batch_size": 4, "device": "cpu", "workers": workers}
    for read in (
        lambda: make(data, backend, workers, batch_size=3).stream(0, 2),
        lambda: eval_images(data, EvalView(size=8), MEAN, STD, **keys),
    ):
        with pytest.raises(DataError, match=r'^image "1.png" cannot be read: [^\n]*$'):
            list(read())
    errors = {}
    batches = list(eval_images(data, EvalView(size=8), MEAN, STD, errors=errors, **keys))
    assert [len(labels) for _, labels in batches] == [3, 1] and [*errors] == [1, 4]


def test_workers_send_a_batch_in_few_open_files(tmp_path):
    data = list_dataset(tmp_path, [photo(8, 8, seed=i) for i in range(96)])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    there = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (there + 60, hard))
    try:
        batches = eval_images(data, EvalView(size=8), MEAN, STD, batch_size=48, device="cpu", workers=1)
        assert [len(images) for images, _ in batches] == [48, 48]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
