"""Few-shot, retrieval, metrics and calibration against scikit-learn and plain restatements."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import accuracy_score, average_precision_score, balanced_accuracy_score, recall_score
from sklearn.neighbors import NearestCentroid
from torch import Tensor

from zoo.errors import DataError, ZooError
from zoo.evaluation.measure import class_mean_scores, few_shot_rows
from zoo.evaluation.metrics import calibration_error, classification_metrics, retrieval_metrics

NAMES = [f"c{i}" for i in range(6)]
K = (1, 2, 4, 8)


def test_accuracies_agree_with_sklearn() -> None:
    rng = np.random.default_rng(0)
    y = rng.choice(6, 400, p=[0.5, 0.2, 0.1, 0.1, 0.06, 0.04])
    p = np.where(rng.random(400) < 0.6, y, rng.integers(0, 6, 400))
    m = classification_metrics(torch.tensor(p), torch.tensor(y), None, NAMES)
    assert m["accuracy"] == pytest.approx(100 * accuracy_score(y, p))
    assert m["balanced_accuracy"] == pytest.approx(100 * balanced_accuracy_score(y, p))
    assert m["per_class"] == pytest.approx((100 * recall_score(y, p, average=None)).tolist())
    assert (m["many"], m["medium"], m["few"], m["test_images"]) == (None, None, None, 400)


def test_groups_are_means_over_classes_and_those_absent_from_the_test_set_count_in_none():
    labels = torch.tensor([0, 0, 0, 0, 1, 2, 2, 3, 4, 4, 5, 5])
    right = torch.tensor([1, 1, 1, 0, 0, 1, 1, 0, 1, 0, 1, 1]).bool()
    counts = torch.tensor([500, 101, 100, 20, 19, 1])  # many, many, medium, medium, few, few
    m = classification_metrics(torch.where(right, labels, (labels + 1) % 6), labels, counts, NAMES)
    assert (m["many"], m["medium"], m["few"]) == ((75 + 0) / 2, (100 + 0) / 2, (50 + 100) / 2)
    counts = torch.tensor([200, 50, 50, 5, 5, 200])
    m = classification_metrics(torch.tensor([0, 1, 5]), torch.tensor([0, 0, 1]), counts, NAMES)
    assert m["per_class"] == [50.0, 0.0, None, None, None, None]
    assert (m["balanced_accuracy"], m["many"], m["medium"], m["few"]) == (25.0, 50.0, 0.0, None)


@pytest.mark.parametrize("scale", [0.0, 0.5, 2.0, 50.0])
def test_calibration_error_is_that_of_the_authors_code(scale: float) -> None:
    """github.com/gpleiss/temperature_scaling, on a grid of boundaries."""
    g = torch.Generator().manual_seed(0)
    logits, labels = scale * torch.randn(300, 4, generator=g), torch.randint(0, 4, (300,), generator=g)
    logits[torch.arange(300), labels] += scale
    confidence, predicted = logits.double().softmax(1).max(1)
    expected = 0.0
    for low, high in itertools.pairwise(np.linspace(0, 1, 16)):
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            right = (predicted == labels)[inside].double().mean()
            expected += float((confidence[inside].mean() - right).abs() * inside.double().mean())
    assert calibration_error(logits, labels) == pytest.approx(100 * expected, abs=1e-9)
    unseen = torch.tensor([[3.0, -torch.inf], [3.0, -torch.inf]])
    assert calibration_error(unseen, torch.tensor([0, 1])) == pytest.approx(50)


def rows_of(labels: Tensor, shots: int, draws: int = 3, seed: int = 0) -> list[Tensor]:
    return list(few_shot_rows(labels, NAMES[:3], shots=shots, draws=draws, seed=seed))


def test_each_draw_has_n_images_of_each_class_and_depends_on_seed_and_number_alone() -> None:
    labels = torch.tensor([0] * 40 + [1] * 7 + [2] * 12)
    drawn = rows_of(labels, 5)
    for rows in drawn:
        assert torch.bincount(labels[rows]).tolist() == [5, 5, 5] and len(set(rows.tolist())) == 15
    assert len({tuple(rows.tolist()) for rows in drawn}) == 3
    assert all(torch.equal(a, b) for a, b in zip(drawn, rows_of(labels, 5, draws=4), strict=False))
    assert not torch.equal(drawn[0], rows_of(labels, 5, seed=1)[0])
    for few, more in zip(rows_of(labels, 2), drawn, strict=True):
        assert set(few.tolist()) < set(more.tolist())
    with pytest.raises(DataError, match='class "c1" has 7; expected 8'):
        rows_of(labels, 8)


def test_the_class_mean_is_sklearns_nearest_centroid_of_unit_features() -> None:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 8, generator=g), torch.arange(60) % 3
    test = torch.randn(200, 8, generator=g) * torch.rand(200, 1, generator=g) * 9
    theirs = NearestCentroid().fit(F.normalize(x, dim=1).numpy(), y.numpy())
    scores = class_mean_scores(x, y, test, num_classes=3)
    assert scores.argmax(dim=1).tolist() == theirs.predict(F.normalize(test, dim=1).numpy()).tolist()
    distance = torch.cdist(F.normalize(test, dim=1), torch.tensor(theirs.centroids_).float())
    gaps = scores + 0.5 * distance.square()
    assert (gaps - gaps[:, :1]).abs().max() < 1e-5  # a constant of each row


def features(count: int, seed: int, classes: int = 6) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (count,), generator=g)
    centers = torch.randn(classes, 12, generator=torch.Generator().manual_seed(0))
    return centers[labels] + 1.5 * torch.randn(count, 12, generator=g), labels


def naive(queries: Tensor, labels: Tensor, gallery: Tensor, others: Tensor, alone: bool) -> dict[str, float]:
    """One query at a time, in Python and scikit-learn."""
    found: dict[str, list[float]] = {f"recall_at_{k}": [] for k in K} | {"map": []}
    for i, query in enumerate(queries):
        s = F.cosine_similarity(query[None], gallery).tolist()
        pairs = [(s[j], int(others[j] == labels[i])) for j in range(len(gallery)) if not (alone and i == j)]
        if not any(relevant for _, relevant in pairs):
            continue
        scores, relevant = np.array([a for a, _ in pairs]), np.array([b for _, b in pairs])
        found["map"].append(100 * average_precision_score(relevant, scores))
        ranked = sorted(pairs, key=lambda pair: (-pair[0], pair[1]))
        for k in K:
            found[f"recall_at_{k}"].append(100.0 * any(b for _, b in ranked[:k]))
    return {key: float(np.mean(values)) for key, values in found.items()} | {"queries": len(found["map"])}


def test_retrieval_is_scikit_learns_and_the_naive_ranking() -> None:
    (x, y), (bank, others) = features(90, 1), features(140, 2)
    alone = retrieval_metrics(x, y, num_classes=6, k=K)
    assert alone == pytest.approx({**naive(x, y, x, y, True), "gallery_images": 89}, abs=1e-4)
    across = retrieval_metrics(x, y, bank, others, num_classes=6, k=K)
    assert across == pytest.approx({**naive(x, y, bank, others, False), "gallery_images": 140}, abs=1e-4)


def test_queries_with_nothing_to_find_are_left_out_and_mistakes_are_named() -> None:
    same = retrieval_metrics(torch.ones(20, 3), torch.arange(20) % 4, num_classes=4, k=[8])
    assert same["recall_at_8"] == 0  # of an encoder that maps all to one point
    x, y = features(30, 3, classes=2)
    y[7] = 5  # the only one of its class, which stays in the way of the others
    metrics = retrieval_metrics(x, y, num_classes=6, k=[1])
    assert (metrics["queries"], metrics["gallery_images"]) == (29, 29)
    for change, message in (
        ({"queries": x[:3], "labels": torch.arange(3)}, "no query has another image"),
        ({"k": [0, 1]}, r"found k = \[0, 1\]"),
        ({"labels": y * 0}, "found a gallery of 1 class"),
        ({"labels": y + 1}, "retrieval: query labels"),
    ):
        with pytest.raises(ZooError, match=message):
            retrieval_metrics(**{"queries": x, "labels": y, "num_classes": 6, "k": [1]} | change)
