"""The linear probe against scikit-learn; its penalty chosen inside the training set, the same everywhere."""

from __future__ import annotations

import inspect

import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler

from zoo.data.long_tail import rank_in_class
from zoo.errors import DataError, ZooError
from zoo.evaluation.linear import fit_linear
from zoo.seeding import derive_seed


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x[:1200]), torch.tensor(y[:1200]), torch.tensor(x[1200:]), torch.tensor(y[1200:])


@pytest.fixture(scope="module")
def noisy():
    """A long tail of 4 classes that overlap, so that the strength matters; the last has one image."""
    y = torch.tensor([0] * 30 + [1] * 20 + [2] * 8 + [3])
    noise = torch.randn(59, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return noise + torch.eye(12, dtype=torch.float64)[y], y


def sklearn_fit(x, y, l2):
    scaler = StandardScaler().fit(x)
    model = LogisticRegression(C=1 / (l2 * len(x)), tol=1e-9, max_iter=20000)
    return scaler, model.fit(scaler.transform(x), y)


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("l2", [1.0, 1e-4])
def test_the_stated_loss_is_at_its_minimum(digits, l2, classes, balanced):
    x, y, _, _ = digits
    keep = torch.cat([(y == c).nonzero()[:, 0][: 100 // (c + 1)] for c in range(classes)])  # a long tail
    x, y = x[keep].double(), y[keep]
    probe = fit_linear(x, y, classes, l2_grid=[l2], balanced=balanced)
    scale = x.std(dim=0, correction=0)
    scale = torch.where(scale > 0, scale, 1)
    standard = (x - x.mean(dim=0)) / scale
    weight = (probe.weight * scale).requires_grad_()
    bias = (probe.bias + probe.weight @ x.mean(dim=0)).requires_grad_()
    share = 1 / torch.bincount(y).double()[y] / classes if balanced else torch.full((len(y),), 1 / len(y))
    losses = torch.nn.functional.cross_entropy(standard @ weight.T + bias, y, reduction="none")
    (share * losses).sum().add(l2 / 2 * weight.square().sum()).backward()
    assert max(weight.grad.abs().max(), bias.grad.abs().max()) < 2e-7


@pytest.mark.parametrize("select", ["accuracy", "balanced_accuracy"])
def test_the_strength_is_the_one_of_an_independent_cross_validation(noisy, select):
    x, y = noisy
    grid = [10.0, 1.0, 0.1, 1e-2]
    ours = fit_linear(x, y, 4, l2_grid=grid, seed=3, select=select, folds=4)
    counts = torch.bincount(y)
    fold = (rank_in_class(y, derive_seed("linear", 3, "split")) + y) % 4
    fold[counts[y] == 1] = -1
    share = (counts[y] > 1).double() if select == "accuracy" else 1 / counts[y].double() * (counts[y] > 1)
    losses = {}
    for l2 in grid:
        total = 0.0
        for number in range(4):
            held = fold == number
            scaler, model = sklearn_fit(x[~held].numpy(), y[~held].numpy(), l2)
            probabilities = model.predict_proba(scaler.transform(x[held].numpy()))
            weights = (share / share.sum())[held].numpy()
            total += weights.sum() * log_loss(
                y[held].numpy(), probabilities, sample_weight=weights, labels=range(4)
            )
        losses[l2] = total
    assert ours.l2 == min(losses, key=losses.get)
    assert ours.l2 not in (grid[0], grid[-1])  # there was a choice to make
    whole = fit_linear(x, y, 4, l2_grid=[ours.l2])  # and then all of the training set is fitted
    torch.testing.assert_close(ours.weight, whole.weight)


def test_held_out_images_are_not_fitted_and_test_images_are_no_argument():
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(90, 120, generator=g), torch.randint(0, 10, (90,), generator=g)
    probe = fit_linear(x, y, 10, l2_grid=[1e-2, 1e-1])
    assert probe.l2 == 1e-1  # held-out images of random labels want the strong one, fitted ones the weak
    assert (probe.predict(x) == y).all()
    assert "test" not in " ".join(inspect.signature(fit_linear).parameters)


def test_a_class_absent_from_training_is_never_predicted_and_one_of_one_image_is_fitted(digits):
    x, y, test, _ = digits
    keep = (y != 3) & (y != 9)
    probe = fit_linear(x[keep], y[keep], 11, l2_grid=[1e-2])
    assert set(probe.predict(test).tolist()) == set(range(9)) - {3}
    assert torch.isneginf(probe.bias[[3, 9, 10]]).all() and not probe.weight[[3, 9, 10]].any()
    g = torch.Generator().manual_seed(0)
    few = torch.cat([torch.randn(30, 4, generator=g), torch.full((1, 4), 8.0)])
    labels = torch.tensor([0] * 15 + [1] * 15 + [2])
    found = fit_linear(few, labels, 3, l2_grid=[1e-2, 1e-3])
    assert found.predict(torch.full((1, 4), 7.0)).tolist() == [2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": torch.zeros(20, dtype=torch.int64)}, "found only class 0 in training"),
        ({"labels": torch.arange(20), "num_classes": 20}, "20 classes has a single training image"),
        ({"labels": torch.arange(20) % 3 - 1}, "found values from -1 to 1, expected 0 to 1"),
        ({"features": torch.full((20, 3), float("inf"))}, "20 of 20 rows hold NaN or infinity"),
        ({"l2_grid": [0.0]}, "l2_grid"),
        ({"folds": 1}, "folds 1"),
    ],
)
def test_mistakes_are_named(change, message):
    arguments = {"features": torch.randn(20, 3), "labels": torch.arange(20) % 2, "num_classes": 2} | change
    with pytest.raises((DataError, ZooError), match=message):
        fit_linear(**arguments)
