"""Weighted k-nearest-neighbour classification of frozen features."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.errors import ZooError
from zoo.functional.checks import check_features, check_labels

_QUERIES = 16384  # that share one pass over the bank; their neighbours so far are all in memory
_LOW = 0xFFFFFFFF  # the low 32 bits of a ranking key hold the bank index, reversed


class KnnPrediction(NamedTuple):
    """Predicted classes and the settings that gave them.

    Attributes:
        predictions: `[N]`, int64, on the CPU.
        settings: `k` as used, at most the rows of the bank, and `tau`: plain numbers for `metrics.json`.
    """

    predictions: Tensor
    settings: dict[str, Any]


def knn_predict(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    *,
    k: int = 20,
    tau: float = 0.07,
    num_classes: int,
    chunk: int = 2048,
) -> KnnPrediction:
    """Classify by the votes `exp(s / tau)` of the `k` training features of highest cosine similarity s.

    The protocol of InstDisc (Wu et al. 2018, section 3.4: k = 200, tau = 0.07). Exact. Memory beside the
    features: one `chunk x chunk` block of similarities and one chunk of normalised features at a time, and
    the k neighbours of 16,384 queries; no copy of the bank, which may be mapped from a file. Neighbours of
    equal similarity are taken in the order of the bank, classes of equal votes in the order of their index.

    Args:
        train_features: the bank `[M, D]`; normalised here, a chunk at a time.
        train_labels: `[M]`, integer.
        test_features: the queries `[N, D]`; normalised here, computed on the bank's device.
        k: neighbours that vote; all M of them when M < k, as `settings["k"]` then says.
        tau: temperature of the votes.
        num_classes: C.
        chunk: rows of queries and of the bank that meet at a time.

    Raises:
        DataError: for features that are not finite, of unequal dimension, or labels outside `[0, C)`.
        ZooError: for `k`, `tau` or `chunk` that is not positive.
    """
    for name, value in (("k", k), ("tau", tau), ("chunk", chunk)):
        if not value > 0:
            raise ZooError(f"kNN: found {name} = {value}, expected a number above 0")
    check_features(train_features, "kNN training features")
    check_features(test_features, "kNN test features", dim=train_features.shape[1])
    check_labels(train_labels, "kNN training labels", count=len(train_features), num_classes=num_classes)
    used = min(k, len(train_features))
    labels = train_labels.cpu()
    predictions = [
        _vote(*part, labels, tau, num_classes)
        for queries in torch.split(test_features, max(chunk, _QUERIES))
        for part in _nearest(queries, train_features, used, chunk)
    ]
    return KnnPrediction(torch.cat(predictions), {"k": used, "tau": tau})


def _nearest(queries: Tensor, bank: Tensor, k: int, chunk: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield similarities and bank indices `[B, k]` of the k nearest, best first, `chunk` queries at a time.

    On the CPU. The bank is read once, and normalised part by part: a normalised copy of a million features
    would take as much memory as they do.
    """
    parts = torch.split(F.normalize(queries.to(bank.device, torch.float32), dim=1), chunk)
    best = [torch.empty(len(part), 0, dtype=torch.int64, device=bank.device) for part in parts]
    for start in range(0, len(bank), chunk):
        block = F.normalize(bank[start : start + chunk].float(), dim=1)
        for i, part in enumerate(parts):
            keys = torch.cat([best[i], _ranking_keys(part @ block.T, start)], dim=1)
            best[i] = keys.topk(min(k, keys.shape[1]), dim=1).values
    for found in (part.cpu() for part in best):
        yield _flip_negative((found >> 32).to(torch.int32)).view(torch.float32), _LOW - (found & _LOW)


def _ranking_keys(similarity: Tensor, start: int) -> Tensor:
    """Return int64 `[B, M]` that order like (similarity, lower index first) and hold both.

    `topk` promises no order among equal values; these are never equal, so the result depends neither
    on the device nor on where the bank is cut.
    """
    index = torch.arange(start, start + similarity.shape[1], device=similarity.device)
    ordered = _flip_negative((similarity + 0.0).view(torch.int32))  # + 0.0 makes -0.0 equal 0.0
    return (ordered.to(torch.int64) << 32) | (_LOW - index)


def _flip_negative(bits: Tensor) -> Tensor:
    """Map the bits of float32 to int32 of the same order, and back: it is its own inverse."""
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def _vote(similarity: Tensor, index: Tensor, labels: Tensor, tau: float, num_classes: int) -> Tensor:
    # Relative to the nearest neighbour, so that a small tau cannot overflow; the argmax is the same.
    # On the CPU, where scatter_add_ always adds in the same order.
    weights = ((similarity - similarity[:, :1]).double() / tau).exp()
    votes = torch.zeros(len(weights), num_classes, dtype=torch.float64)
    return votes.scatter_add_(1, labels[index], weights).argmax(dim=1)
