"""Few-shot: the right images, the right classifier, an honest interval, and clear refusals."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestCentroid
from torch import Tensor

import zoo
from tests.test_evaluation_augmented import digits
from zoo.config import parse
from zoo.errors import DataError, ZooError
from zoo.evaluation.few_shot import class_mean_scores, few_shot_rows, linear_logits
from zoo.evaluation.measure import measure
from zoo.recipe.protocols import FewShotProtocol
from zoo.release import Release

NAMES = ["a", "b", "c"]


def protocol(**settings: object) -> FewShotProtocol:
    return parse(FewShotProtocol, {"protocol": "few_shot", **settings}, "test")


def rows_of(labels: Tensor, shots: int, draws: int = 3, seed: int = 0) -> list[Tensor]:
    return list(few_shot_rows(labels, NAMES, shots=shots, draws=draws, seed=seed))


def test_each_draw_has_n_images_of_each_class_and_depends_on_seed_and_number_alone() -> None:
    labels = torch.tensor([0] * 40 + [1] * 7 + [2] * 12)
    drawn = rows_of(labels, 5)
    for rows in drawn:
        assert torch.bincount(labels[rows]).tolist() == [5, 5, 5]
        assert len(set(rows.tolist())) == 15
    assert len({tuple(rows.tolist()) for rows in drawn}) == 3
    assert all(torch.equal(a, b) for a, b in zip(drawn, rows_of(labels, 5, draws=4), strict=False))
    assert not torch.equal(drawn[0], rows_of(labels, 5, seed=1)[0])
    for few, more in zip(rows_of(labels, 2), drawn, strict=True):
        assert set(few.tolist()) < set(more.tolist())


def test_every_image_of_a_class_is_as_likely() -> None:
    labels = torch.tensor([0] * 10 + [1] * 4 + [2] * 4)
    counts = torch.zeros(18)
    for rows in rows_of(labels, 2, draws=2000):
        counts[rows] += 1
    assert stats.chisquare(counts[:10].numpy()).pvalue > 1e-3
    assert stats.chisquare(counts[10:14].numpy()).pvalue > 1e-3


def test_the_linear_classifier_is_sklearns_with_the_given_penalty() -> None:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, 6, generator=g, dtype=torch.float64), torch.arange(30) % 3
    x[torch.arange(30), y] += 2
    test = torch.randn(50, 6, generator=g, dtype=torch.float64)
    mean, std = x.mean(0), x.std(0, correction=0)
    theirs = LogisticRegression(C=1 / (0.1 * 30), tol=1e-10, max_iter=10_000)
    theirs.fit(((x - mean) / std).numpy(), y.numpy())
    expected = theirs.predict_proba(((test - mean) / std).numpy())
    ours = linear_logits(x, y, test, num_classes=3, l2=0.1).softmax(dim=1)
    np.testing.assert_allclose(ours.numpy(), expected, atol=1e-5)


def test_the_class_mean_is_sklearns_nearest_centroid_of_unit_features() -> None:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 8, generator=g), torch.arange(60) % 3
    test = torch.randn(200, 8, generator=g) * torch.rand(200, 1, generator=g) * 9
    unit = [(each / each.norm(dim=1, keepdim=True)).numpy() for each in (x, test)]
    expected = NearestCentroid().fit(unit[0], y.numpy()).predict(unit[1])
    scores = class_mean_scores(x, y, test, num_classes=3)
    assert scores.argmax(dim=1).tolist() == expected.tolist()
    centroids = torch.tensor(NearestCentroid().fit(unit[0], y.numpy()).centroids_).float()
    distance = torch.cdist(torch.tensor(unit[1]), centroids)
    gaps = scores + 0.5 * distance.square()
    assert (gaps - gaps[:, :1]).abs().max() < 1e-5  # a constant of each row


@pytest.mark.parametrize("classifier", ["linear", "mean"])
def test_the_entry_has_each_draw_the_mean_and_students_interval(classifier: str) -> None:
    entry = measure(protocol(shots=3, classifier=classifier), digits(), None)
    metrics = entry["metrics"]
    each = metrics["accuracy_of_draws"]
    assert len(each) == 5
    assert len(set(each)) > 1
    assert metrics["accuracy"] == pytest.approx(np.mean(each))
    low, high = stats.t.interval(0.95, 4, loc=np.mean(each), scale=stats.sem(each))
    assert metrics["accuracy_interval"] == pytest.approx((high - low) / 2)
    assert 60 < metrics["accuracy"] < 95
    assert ("calibration_error" in metrics) == (classifier == "linear")
    assert not {"many", "medium", "few"} & set(metrics)
    assert (entry["protocol"], entry["seed"], entry["settings"]["shots"]) == ("few_shot", 0, 3)


def test_more_shots_are_better_and_another_seed_draws_others() -> None:
    encoded = digits()
    one, five = (measure(protocol(shots=n), encoded, None)["metrics"]["accuracy"] for n in (1, 5))
    assert five > one + 5
    other = measure(protocol(shots=1, seed=1), encoded, None)["metrics"]["accuracy_of_draws"]
    assert other != measure(protocol(shots=1), encoded, None)["metrics"]["accuracy_of_draws"]


def test_one_image_per_class_is_enough_for_one_shot() -> None:
    x = torch.eye(3)
    (rows, *_) = rows_of(torch.tensor([2, 0, 1]), 1)
    assert rows.tolist() == [0, 1, 2]
    logits = linear_logits(x[[2, 0, 1]], torch.tensor([2, 0, 1]), x, num_classes=3, l2=0.01)
    assert logits.argmax(dim=1).tolist() == [0, 1, 2]


def test_a_class_with_too_few_images_is_named_with_its_count(made: Release) -> None:
    with pytest.raises(DataError) as error:
        rows_of(torch.tensor([0] * 9 + [1] * 2 + [2] * 9), 3)
    assert str(error.value) == (
        'few_shot: class "b" has 2; expected 3 training images of each class (shots), the largest number '
        "that all have is 2"
    )
    with pytest.raises(DataError, match='class "b" has 0, "c" has 0; expected 1'):
        rows_of(torch.tensor([0] * 9), 1)
    many = [str(c) for c in range(9)]
    with pytest.raises(DataError, match='"2" has 1 and 6 more classes have too few; expected 2'):
        list(few_shot_rows(torch.arange(9), many, shots=2, draws=2, seed=0))
    with pytest.raises(ZooError, match=r'class "1" has 80, "2" has 52, .*expected 90 training images'):
        zoo.evaluate(made, "few_shot", "digits?imbalance=50", shots=90, save=False)


@pytest.mark.parametrize("settings", [{"shots": 0}, {"draws": 1}, {"l2": 0.0}, {"classifier": "cosine"}])
def test_impossible_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ZooError, match=re.escape(next(iter(settings)))):
        protocol(**settings)


def test_nan_features_are_refused_by_both_classifiers() -> None:
    x, y, bad = torch.eye(3), torch.arange(3), torch.full((2, 3), torch.nan)
    with pytest.raises(DataError, match="2 of 2 rows hold NaN"):
        class_mean_scores(x, y, bad, num_classes=3)
    with pytest.raises(DataError, match="2 of 2 rows hold NaN"):
        linear_logits(x, y, bad, num_classes=3, l2=0.1)
