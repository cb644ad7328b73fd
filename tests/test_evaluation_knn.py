from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from zoo.errors import DataError, ZooError
from zoo.functional.diagnostics import _ranking_keys, knn_predict


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
def test_agrees_with_brute_force(digits, k, tau):
    bank, labels, queries, _ = digits
    found = knn_predict(bank, labels, queries[:100], k=k, tau=tau, num_classes=10, chunk=97)
    assert found.predictions.tolist() == brute_force(bank, labels, queries[:100], k, tau, 10)


@pytest.mark.parametrize("chunk", [1, 7, 300, 1200, 5000])
def test_result_does_not_depend_on_where_the_data_is_cut(digits, chunk):
    bank, labels, queries, _ = digits
    whole = knn_predict(bank, labels, queries[:40], k=30, num_classes=10).predictions
    assert torch.equal(
        knn_predict(bank, labels, queries[:40], k=30, num_classes=10, chunk=chunk).predictions, whole
    )


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_of_equal_neighbours_the_first_in_the_bank_vote(chunk):
    bank = torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 0.0], [4.0, 0.0], [-1.0, 0.0], [0.0, -1.0]])
    query = torch.tensor([[3.0, 0.0]])
    labels = torch.tensor([0, 4, 3, 3, 1, 2])
    assert knn_predict(bank, labels, query, k=1, num_classes=5, chunk=chunk).predictions.tolist() == [4]
    assert knn_predict(bank, labels, query, k=3, num_classes=5, chunk=chunk).predictions.tolist() == [3]
    # equal votes of classes 4 and 3: the lower index
    assert knn_predict(bank, labels, query, k=2, num_classes=5, chunk=chunk).predictions.tolist() == [3]


def test_the_two_zeros_are_equal_similarities():
    keys = _ranking_keys(torch.tensor([[-0.0, 0.0, -1e-30, 1e-30]]), start=5)
    assert keys.argsort(descending=True).tolist() == [[3, 0, 1, 2]]


def test_mistakes_are_named(digits):
    bank, labels, queries, _ = digits
    with pytest.raises(ZooError, match="k: found 0"):
        knn_predict(bank, labels, queries, k=0, num_classes=10)
    with pytest.raises(DataError, match="kNN test features: found 63 dimensions, expected 64"):
        knn_predict(bank, labels, queries[:, 1:], num_classes=10)
    with pytest.raises(DataError, match="found values from 0 to 9, expected 0 to 8"):
        knn_predict(bank, labels, queries, num_classes=9)
    assert knn_predict(bank[:50], labels[:50], queries, k=200, num_classes=10).settings["k"] == 50
