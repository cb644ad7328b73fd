from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, recall_score
from zoo.evaluation.classifier import center_logits
from zoo.evaluation.printed import plain

from zoo.errors import DataError
from zoo.evaluation.metrics import classification_metrics
from zoo.modules.centers import Centers

NAMES = [f"c{i}" for i in range(6)]


def test_accuracies_agree_with_sklearn():
    rng = np.random.default_rng(0)
    y = rng.choice(6, 400, p=[0.5, 0.2, 0.1, 0.1, 0.06, 0.04])
    p = np.where(rng.random(400) < 0.6, y, rng.integers(0, 6, 400))
    m = classification_metrics(torch.tensor(p), torch.tensor(y), None, NAMES)
    assert m["accuracy"] == pytest.approx(100 * accuracy_score(y, p))
    assert m["balanced_accuracy"] == pytest.approx(100 * balanced_accuracy_score(y, p))
    assert m["per_class"] == pytest.approx((100 * recall_score(y, p, average=None)).tolist())
    assert (m["many"], m["medium"], m["few"], m["test_images"]) == (None, None, None, 400)


def test_groups_are_means_over_classes_with_the_bounds_of_the_literature():
    labels = torch.tensor([0, 0, 0, 0, 1, 2, 2, 3, 4, 4, 5, 5])
    right_ = torch.tensor([1, 1, 1, 0, 0, 1, 1, 0, 1, 0, 1, 1]).bool()
    predictions = torch.where(right_, labels, (labels + 1) % 6)
    #                       many many  medium    few
    counts = torch.tensor([500, 101, 100, 20, 19, 1])
    m = classification_metrics(predictions, labels, counts, NAMES)
    assert m["many"] == (75 + 0) / 2
    assert m["medium"] == (100 + 0) / 2
    assert m["few"] == (50 + 100) / 2
    assert m["accuracy"] == pytest.approx(100 * 8 / 12)


def test_classes_absent_from_the_test_set_count_in_no_mean():
    m = classification_metrics(
        torch.tensor([0, 1, 5]), torch.tensor([0, 0, 1]), torch.tensor([200, 50, 50, 5, 5, 200]), NAMES
    )
    assert m["per_class"] == [50.0, 0.0, None, None, None, None]
    assert (m["balanced_accuracy"], m["many"], m["medium"], m["few"]) == (25.0, 50.0, 0.0, None)
    assert json.loads(json.dumps(m, allow_nan=False)) == m


@pytest.mark.parametrize(
    ("predictions", "labels", "counts", "message"),
    [
        ([], [], None, "the test set is empty"),
        ([0, 6], [0, 1], None, "predictions: found values from 0 to 6, expected 0 to 5"),
        ([0, 1], [0, -1], None, "test labels: found values from -1 to 0"),
        ([0], [0, 1], None, "expected one integer for each of 2 rows"),
        ([0], [0], [1, 2], r"train_counts: found \(2,\), expected \(6,\)"),
    ],
)
def test_impossible_input_is_refused(predictions, labels, counts, message):
    with pytest.raises(DataError, match=message):
        classification_metrics(
            torch.tensor(predictions, dtype=torch.int64),
            torch.tensor(labels, dtype=torch.int64),
            None if counts is None else torch.tensor(counts),
            NAMES,
        )


def test_center_logits_are_those_of_the_linear_layer_without_a_prior():
    torch.manual_seed(0)
    layer = torch.nn.Linear(7, 4)
    centers = Centers(layer.weight.detach(), layer.bias.detach(), torch.tensor([1000, 100, 10, 1]))
    x = torch.randn(9, 7)
    torch.testing.assert_close(center_logits(x, centers), layer(x).detach())
    with pytest.raises(DataError, match="found 6 dimensions, expected 7"):
        center_logits(x[:, :6], centers)
    with pytest.raises(DataError, match="1 of 9 rows hold NaN"):
        center_logits(x.index_fill(0, torch.tensor([3]), float("nan")), centers)


def test_table_shows_one_decimal_and_a_dash_for_what_is_missing():
    rows = {
        "PaCo": {"accuracy": 81.25, "balanced_accuracy": 80.0, "many": 99.96, "medium": 7.04, "few": None},
        "kNN": {"accuracy": 9.0},
    }
    assert plain(rows).splitlines() == [
        "method  accuracy  balanced   many  medium  few",
        "PaCo        81.2      80.0  100.0     7.0    -",
        "kNN          9.0         -      -       -    -",
    ]
