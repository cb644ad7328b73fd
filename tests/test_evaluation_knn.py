"""kNN against a plain restatement; ties, blocks, mistakes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from zoo.errors import DataError, ZooError
from zoo.functional import knn_predict


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x, dtype=torch.float32) - 8, torch.tensor(y)
    return x[:1200], y[:1200], x[1200:], y[1200:]


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
    noise = torch.randn(2 * 1200, 64, generator=torch.Generator().manual_seed(0))
    for times in (1, 2):  # 2,400 rows are more than a block
        rows = bank.repeat(times, 1) + noise[: 1200 * times]
        found = knn_predict(rows, labels.repeat(times), queries[:50], k=k, tau=tau, num_classes=10)
        expected = brute_force(rows, labels.repeat(times), queries[:50], k, tau, 10)
        assert found.predictions.tolist() == expected


@pytest.mark.parametrize("before", [0, 2045])  # other rows, so that a block ends among the equal ones
def test_of_equal_neighbours_the_first_in_the_bank_vote(before):
    bank = torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 0.0], [4.0, 0.0], [-1.0, 0.0], [0.0, -1.0]])
    bank = torch.cat([torch.tensor([[0.0, 1.0]]).repeat(before, 1), bank])
    labels = torch.cat([torch.zeros(before, dtype=torch.int64), torch.tensor([0, 4, 3, 3, 1, 2])])
    for k, expected in ((1, 4), (3, 3), (2, 3)):  # equal votes of classes 4 and 3: the lower index
        found = knn_predict(bank, labels, torch.tensor([[3.0, 0.0]]), k=k, num_classes=5)
        assert found.predictions.tolist() == [expected]


def test_mistakes_are_named(digits):
    bank, labels, queries, _ = digits
    with pytest.raises(ZooError, match="found k = 0"):
        knn_predict(bank, labels, queries, k=0, num_classes=10)
    with pytest.raises(DataError, match="kNN test features: found 63 dimensions, expected 64"):
        knn_predict(bank, labels, queries[:, 1:], num_classes=10)
    with pytest.raises(DataError, match="found values from 0 to 9, expected 0 to 8"):
        knn_predict(bank, labels, queries, num_classes=9)
    assert knn_predict(bank[:50], labels[:50], queries, k=200, num_classes=10).settings["k"] == 50
