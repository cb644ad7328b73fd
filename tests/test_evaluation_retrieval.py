"""Retrieval against scikit-learn and a naive ranking; ties, leave-one-out, what has nothing to find."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import average_precision_score
from torch import Tensor

from tests.test_evaluation_augmented import digits
from zoo.config import parse
from zoo.errors import DataError, ZooError
from zoo.evaluation import retrieval
from zoo.evaluation.measure import measure
from zoo.evaluation.retrieval import Retrieval
from zoo.recipe.protocols import RetrievalProtocol

K = (1, 2, 4, 8)


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


@pytest.mark.parametrize("block", [1, 1000, 1 << 24])
def test_it_is_scikit_learns_and_the_naive_ranking(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "_BLOCK", block)
    (x, y), (bank, others) = features(90, 1), features(140, 2)
    alone = Retrieval(x).metrics(y, None, 6, K)
    assert alone == pytest.approx({**naive(x, y, x, y, True), "gallery_images": 89}, abs=1e-4)
    across = Retrieval(x, bank).metrics(y, others, 6, K)
    assert across == pytest.approx({**naive(x, y, bank, others, False), "gallery_images": 140}, abs=1e-4)
    assert 30 < across["map"] < 90  # neither trivial
    assert across["recall_at_1"] < across["recall_at_8"]


def test_an_image_never_finds_itself() -> None:
    x = torch.eye(4)  # each is orthogonal to all others
    x[1] = torch.tensor([0.9, 0.1, 0, 0])
    metrics = Retrieval(x).metrics(torch.tensor([0, 1, 0, 1]), None, 2, [1])
    assert metrics["recall_at_1"] == 0
    assert Retrieval(x).nearest(1).flatten().tolist()[:2] == [1, 0]


@pytest.mark.parametrize("block", [1, 1 << 24])
def test_nearest_come_with_their_cosines_and_pairs_are_all_above_a_threshold(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrieval, "_BLOCK", block)
    x, bank = features(16, 1)[0], features(9, 2)[0]
    cosine = F.cosine_similarity(x[:, None], bank, dim=2)
    similarity, index = Retrieval(x, bank).ranked(9)
    torch.testing.assert_close(similarity, cosine.gather(1, index))
    assert torch.equal(index, Retrieval(x, bank).nearest(9)) and bool((similarity.diff(dim=1) <= 0).all())
    expected = {(i, j) for i in range(16) for j in range(9) if cosine[i, j] >= 0.2}
    found = Retrieval(x, bank).pairs(0.2)
    assert {*zip(found.query.tolist(), found.other.tolist(), strict=True)} == expected != set()
    torch.testing.assert_close(found.similarity, cosine[found.query, found.other])
    assert bool((found.similarity.diff() <= 0).all())

    copies = torch.cat([x, 3 * x[4:5], x[4:5]])  # of any length: rows 16 and 17 are row 4
    query, other, similarity = Retrieval(copies).pairs(0.999)
    assert sorted(zip(query.tolist(), other.tolist(), strict=True)) == [(4, 16), (4, 17), (16, 17)]
    torch.testing.assert_close(similarity, torch.ones(3))
    assert len(Retrieval(torch.eye(3)).pairs(0.5).query) == 0


def test_more_neighbours_than_there_are_and_no_cosine_are_refused() -> None:
    x, bank = features(16, 1)[0], features(9, 2)[0]
    for count in (200, 16, 0, -1, True, 1.5):
        with pytest.raises(ZooError, match=rf"found {count} nearest images, expected 1 to 15, the other ima"):
            Retrieval(x).nearest(count)  # type: ignore[arg-type]
    with pytest.raises(ZooError, match="found 10 nearest images, expected 1 to 9, the images of the gallery"):
        Retrieval(x, bank).ranked(10)
    assert Retrieval(x).nearest(15).shape == (16, 15)
    for above in (95, float("nan"), "0.9"):
        with pytest.raises(ZooError, match=r"retrieval: above: found .*, expected a cosine from -1 to 1"):
            Retrieval(x).pairs(above)  # type: ignore[arg-type]


def test_an_encoder_that_maps_all_to_one_point_finds_nothing() -> None:
    x, y = torch.ones(20, 3), torch.arange(20) % 4
    metrics = Retrieval(x).metrics(y, None, 4, [1, 8])
    assert (metrics["recall_at_1"], metrics["recall_at_8"]) == (0, 0)
    assert metrics["map"] == pytest.approx(100 * 4 / 19)  # the share of relevant images
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    assert Retrieval(x).metrics(y[order], None, 4, [1, 8]) == pytest.approx(metrics)


def test_queries_with_nothing_to_find_are_left_out_and_counted() -> None:
    x, y = features(30, 3, classes=2)
    y[7] = 5  # the only one of its class
    metrics = Retrieval(x).metrics(y, None, 6, [1])
    assert metrics["queries"] == 29
    assert metrics["gallery_images"] == 29  # it stays in the way of the others
    bank, others = features(30, 4, classes=1)
    assert Retrieval(x, bank).metrics(y, others, 6, [1])["queries"] == int((y == 0).sum())
    with pytest.raises(DataError, match="no query has another image of its class"):
        Retrieval(x[:3]).metrics(torch.arange(3), None, 6, [1])


@pytest.mark.parametrize("gallery", ["test", "train"])
def test_the_protocol_is_the_function_on_the_test_images(gallery: str) -> None:
    encoded = digits()
    protocol = parse(RetrievalProtocol, {"protocol": "retrieval", "gallery": gallery, "k": [5, 1]}, "test")
    entry = measure(protocol, encoded, None)
    (test, labels), (train, train_labels) = encoded.test, encoded.train
    whole = Retrieval(test) if gallery == "test" else Retrieval(test, train)
    expected = whole.metrics(labels, None if gallery == "test" else train_labels, 10, [1, 5])
    assert entry["metrics"] == {**expected, "test_images": 547}
    assert list(entry["metrics"])[:3] == ["recall_at_1", "recall_at_5", "map"]
    assert entry["metrics"]["recall_at_1"] > 90
    assert entry["settings"] == {"k": [5, 1], "gallery": gallery}


def test_mistakes_are_named() -> None:
    x, y = features(10, 0)
    with pytest.raises(ZooError, match=r"found k = \[0, 1\]"):
        Retrieval(x).metrics(y, None, 6, [0, 1])
    with pytest.raises(DataError, match="gallery features: found 11 dimensions, expected 12"):
        Retrieval(x, x[:, 1:])
    with pytest.raises(DataError, match="found 1 image, expected at least 2"):
        Retrieval(x[:1])
    with pytest.raises(DataError, match="retrieval: query labels"):
        Retrieval(x).metrics(y + 1, None, 6, [1])
