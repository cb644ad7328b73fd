"""Evaluation images: timm's pixels, in order, and no silent replacement."""

import resource
from pathlib import Path

import pytest
import torch
from timm.data import create_transform

from tests.data_fixtures import MEAN, STD, list_dataset, photo
from zoo.data import EvalView, eval_images
from zoo.errors import DataError


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("size", "crop_pct", "interpolation"),
    [(32, 1.0, "bicubic"), (32, 0.875, "bicubic"), (24, 0.9, "bilinear"), (48, 1.0, "bilinear")],
)
def test_pixels_are_those_of_timm(tmp_path, size, crop_pct, interpolation, workers):
    sizes = [(32, 32), (40, 33), (64, 80), (48, 48), (17, 90)]
    images = [photo(w, h, seed=i) for i, (w, h) in enumerate(sizes)]
    data = list_dataset(tmp_path, images)
    transform = create_transform(
        input_size=(3, size, size),
        is_training=False,
        interpolation=interpolation,
        crop_pct=crop_pct,
        mean=MEAN,
        std=STD,
    )
    view = EvalView(size=size, crop_pct=crop_pct, interpolation=interpolation)
    batches = list(eval_images(data, view, MEAN, STD, batch_size=2, device="cpu", workers=workers))
    assert [len(labels) for _, labels in batches] == [2, 2, 1]
    assert torch.equal(torch.cat([labels for _, labels in batches]), torch.from_numpy(data.labels.copy()))
    expected = torch.stack([transform(image) for image in images])
    assert torch.equal(torch.cat([pixels for pixels, _ in batches]), expected)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_unreadable_image_ends_an_evaluation_or_is_left_out(tmp_path, workers):
    data = list_dataset(tmp_path, [photo(8, 8, seed=i) for i in range(6)])
    for name in ("1.png", "4.png"):
        (tmp_path / name).write_bytes(b"not an image")
    keys = {"batch_size": 4, "device": "cpu", "workers": workers}
    with pytest.raises(DataError, match=r'^image "1.png" cannot be read: [^\n]*$'):
        list(eval_images(data, EvalView(size=8), MEAN, STD, **keys))
    errors = {}
    batches = list(eval_images(data, EvalView(size=8), MEAN, STD, errors=errors, **keys))
    assert [len(labels) for _, labels in batches] == [3, 1]
    assert [*errors] == [1, 4]


def test_workers_send_a_batch_in_few_open_files(tmp_path, monkeypatch):
    monkeypatch.setattr("zoo.data.batches.own_cores", lambda: 2)
    data = list_dataset(tmp_path, [photo(8, 8, seed=i) for i in range(96)])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    there = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (there + 60, hard))
    try:
        batches = eval_images(data, EvalView(size=8), MEAN, STD, batch_size=48, device="cpu", workers=2)
        assert [len(images) for images, _ in batches] == [48, 48]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
