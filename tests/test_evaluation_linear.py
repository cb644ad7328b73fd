"""The linear probe against scikit-learn, its penalty chosen inside the training set; kNN by brute force."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from zoo.data.batches import derive_seed
from zoo.data.long_tail import rank_in_class
from zoo.errors import DataError, ZooError
from zoo.evaluation.linear import fit_linear
from zoo.functional import knn_predict


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x[:1200]), torch.tensor(y[:1200]), torch.tensor(x[1200:]), torch.tensor(y[1200:])


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
def test_the_strength_is_the_one_of_an_independent_cross_validation(select):
    """On a long tail of 4 classes that overlap, so that the strength matters; the last has one image."""
    y = torch.tensor([0] * 30 + [1] * 20 + [2] * 8 + [3])
    noise = torch.randn(59, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = noise + torch.eye(12, dtype=torch.float64)[y]
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
            logistic = LogisticRegression(C=1 / (l2 * int((~held).sum())), tol=1e-9, max_iter=20000)
            model = make_pipeline(StandardScaler(), logistic).fit(x[~held], y[~held])
            weights, found = (share / share.sum())[held].numpy(), model.predict_proba(x[held])
            total += weights.sum() * log_loss(y[held], found, sample_weight=weights, labels=range(4))
        losses[l2] = total
    assert ours.l2 == min(losses, key=losses.get)
    assert ours.l2 not in (grid[0], grid[-1])  # there was a choice to make
    whole = fit_linear(x, y, 4, l2_grid=[ours.l2])  # and then all of the training set is fitted
    torch.testing.assert_close(ours.weight, whole.weight)


def test_a_class_absent_from_training_is_never_predicted_and_one_of_one_image_is_fitted(digits):
    x, y, test, _ = digits
    keep = (y != 3) & (y != 9)
    probe = fit_linear(x[keep], y[keep], 11, l2_grid=[1e-2])
    assert set(probe.logits(test).argmax(1).tolist()) == set(range(9)) - {3}
    assert torch.isneginf(probe.bias[[3, 9, 10]]).all() and not probe.weight[[3, 9, 10]].any()
    g = torch.Generator().manual_seed(0)
    few = torch.cat([torch.randn(30, 4, generator=g), torch.full((1, 4), 8.0)])
    labels = torch.tensor([0] * 15 + [1] * 15 + [2])
    found = fit_linear(few, labels, 3, l2_grid=[1e-2, 1e-3])
    assert found.logits(torch.full((1, 4), 7.0)).argmax(1).tolist() == [2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": torch.zeros(20, dtype=torch.int64)}, "found only class 0 in training"),
        ({"labels": torch.arange(20), "num_classes": 20}, "20 classes has a single training image"),
        ({"labels": torch.arange(20) % 3 - 1}, "found values from -1 to 1, expected 0 to 1"),
        ({"features": torch.full((20, 3), float("inf"))}, "20 of 20 rows hold NaN or infinity"),
        ({"folds": 1}, "folds 1"),
    ],
)
def test_mistakes_are_named(change, message):
    arguments = {"features": torch.randn(20, 3), "labels": torch.arange(20) % 2, "num_classes": 2} | change
    with pytest.raises((DataError, ZooError), match=message):
        fit_linear(**arguments)


def brute_force(bank, labels, queries, k, tau, num_classes):
    """Python loops over one query at a time."""
    result = []
    for q in queries.double().numpy():
        b = bank.double().numpy()
        s = b @ q / (np.linalg.norm(b, axis=1) * np.linalg.norm(q))
        votes = [0.0] * num_classes
        for i in sorted(range(len(s)), key=lambda i: -s[i])[:k]:
            votes[int(labels[i])] += np.exp(s[i] / tau)
        result.append(int(np.argmax(votes)))
    return result


@pytest.mark.parametrize(("k", "tau"), [(1, 0.07), (20, 0.07), (200, 0.1), (200, 5.0)])
def test_agrees_with_brute_force_also_over_several_blocks(digits, k, tau):
    bank, labels, queries, _ = digits
    bank, queries = bank.float() - 8, queries.float() - 8
    noise = torch.randn(2 * 1200, 64, generator=torch.Generator().manual_seed(0))
    for times in (1, 2):  # 2,400 rows are more than a block
        rows = bank.repeat(times, 1) + noise[: 1200 * times]
        found = knn_predict(rows, labels.repeat(times), queries[:50], k=k, tau=tau, num_classes=10)
        expected = brute_force(rows, labels.repeat(times), queries[:50], k, tau, 10)
        assert found.tolist() == expected


@pytest.mark.parametrize("before", [1, 2046])  # other rows, so that a block ends among the equal ones
def test_of_equal_neighbours_the_first_in_the_bank_vote(before):
    rows = torch.tensor([[1.0, 0.0], [2.0, 0.0], [4.0, 0.0], [-1.0, 0.0], [0.0, -1.0]])
    bank = torch.cat([torch.tensor([[0.0, 1.0]]).expand(before, 2), rows])
    labels = torch.cat([torch.zeros(before, dtype=torch.int64), torch.tensor([4, 3, 3, 1, 2])])
    for k, expected in ((1, 4), (3, 3), (2, 3)):  # equal votes of classes 4 and 3: the lower index
        found = knn_predict(bank, labels, torch.tensor([[3.0, 0.0]]), k=k, num_classes=5)
        assert found.tolist() == [expected]


def test_knns_mistakes_are_named(digits):
    bank, labels, queries, _ = digits
    for change, message in (
        ({"k": 0}, "k: found 0"),
        ({"test_features": queries[:, 1:]}, "kNN test features: found 63 dimensions, expected 64"),
        ({"num_classes": 9}, "found values from 0 to 9, expected 0 to 8"),
    ):
        with pytest.raises(ZooError, match=message):
            given = {"train_features": bank, "train_labels": labels, "test_features": queries}
            knn_predict(**given | {"num_classes": 10} | change)
    assert len(knn_predict(bank[:50], labels[:50], queries, k=200, num_classes=10)) == len(queries)
