"""Epochs that are drawn with replacement: shares of classes and images, a function of the step, ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.test_data_loader import MOCO, digits, make, same
from zoo.data.batches import Order, drawn_by
from zoo.errors import DataError, RecipeError
from zoo.recipe import Recipe

COUNTS = [900, 90, 0, 9, 1]  # a class without images, and one with a single one
LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(5), COUNTS))


def drawn(sampling: str, epochs: int = 60) -> torch.Tensor:
    order = Order(1000, 64, drop_last=False, seed=3, draw=drawn_by(sampling, LABELS))
    parts = [position.index for position in order.positions(0, epochs * 16, torch.device("cpu"))]
    return torch.cat(parts).view(epochs, 1000)


@pytest.mark.parametrize(("sampling", "power"), [("class_balanced", 0.0), ("square_root", 0.5)])
def test_classes_come_with_their_share_and_their_images_alike(sampling: str, power: float) -> None:
    """Within 4.5 standard deviations of a binomial count each, with 60,000 draws."""
    index = drawn(sampling).flatten().numpy()
    shares = np.array([count**power if count else 0.0 for count in COUNTS])
    shares /= shares.sum()
    found = np.bincount(LABELS[index], minlength=5)
    assert (abs(found - 60_000 * shares) <= 4.5 * np.sqrt(60_000 * shares * (1 - shares))).all()
    assert found[2] == 0
    for c in (0, 1, 3, 4):
        of_class = np.bincount(index, minlength=1000)[c == LABELS]
        expected = found[c] / COUNTS[c]
        assert (abs(of_class - expected) <= 4.5 * np.sqrt(expected) + 1e-9).all(), c


def test_by_default_every_image_comes_once() -> None:
    assert drawn_by("instance", LABELS) is None
    ordered = drawn("instance", 3)
    assert all(torch.equal(epoch.sort().values, torch.arange(1000)) for epoch in ordered)


@pytest.mark.parametrize("sampling", ["class_balanced", "square_root"])
def test_an_epoch_is_as_long_as_before_and_another_each_time(sampling: str) -> None:
    epochs = drawn(sampling, 2)
    assert epochs.shape == (2, 1000)
    assert not torch.equal(epochs[0], epochs[1])
    assert len(epochs[0].unique()) < 1000


@pytest.mark.parametrize("backend", ["tensor", "stream", "torchvision"])
def test_a_drawn_stream_can_begin_at_any_step_and_be_cut_into_ranks(backend: str) -> None:
    data = tailed()
    keys = {"sampling": "class_balanced", "views": [MOCO], "drop_last": False, "batch_size": 7}
    whole = list(make(data, backend, **keys).stream(0, 12))
    tail = list(make(data, backend, **keys).stream(5, 12))
    assert all(same(a, b) for a, b in zip(whole[5:], tail, strict=True))
    ranks = [list(make(data, backend, rank=r, world_size=2, **keys).stream(0, 12)) for r in range(2)]
    for batch, first, second in zip(whole, *ranks, strict=True):
        assert torch.equal(batch.index, torch.cat([first.index, second.index]))
        assert torch.equal(batch.views[0], torch.cat([first.views[0], second.views[0]]))


@pytest.mark.parametrize("backend", ["tensor", "stream", "torchvision"])
def test_an_image_that_comes_again_in_an_epoch_is_augmented_anew(backend: str) -> None:
    data = tailed()
    keys = {"sampling": "class_balanced", "views": [MOCO], "drop_last": False, "batch_size": 20}
    batches = list(make(data, backend, **keys).stream(0, 2))
    index, views = torch.cat([b.index for b in batches]), torch.cat([b.views[0] for b in batches])
    single = int(np.flatnonzero(data.labels == 1)[0])
    found = [view for i, view in zip(index.tolist(), views, strict=True) if i == single]
    assert len(found) > 5
    assert not any(torch.equal(found[0], other) for other in found[1:])


def tailed():
    """30 images of one digit and 1 of another; of eight there is none."""
    full = digits(500)
    zeros, one = np.flatnonzero(full.labels == 0)[:30], np.flatnonzero(full.labels == 1)[:1]
    return full.subset(np.concatenate([zeros, one]))


def test_sampling_by_class_needs_labels() -> None:
    with pytest.raises(
        RecipeError, match=r'training.sampling: found "square_root", expected "instance": .*pico'
    ):
        Recipe.load("cifar_resnet20.pico_digits_q05", ["training.sampling=square_root"])


@pytest.mark.parametrize("sampling", ["class_balanced", "square_root"])
def test_images_without_labels_are_of_no_class_that_can_be_drawn(sampling: str) -> None:
    with pytest.raises(DataError, match=f'3 of the 5 training images have no label.*found "{sampling}"'):
        drawn_by(sampling, np.array([-1, 0, -1, 1, -1]))
    assert drawn_by("instance", np.array([-1, 0])) is None
