"""Weighted k-nearest-neighbour classification of frozen features."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.errors import ZooError
from zoo.functional.checks import check_features, check_labels

_CHUNK = 2048  # rows of a block of similarities, and its columns
_LOW = 0xFFFFFFFF  # the low 32 bits of a ranking key hold the bank index, reversed


class KnnPrediction(NamedTuple):
    """Predicted classes `[N]`, int64, on the CPU; and `k` and `tau` as used, for `metrics.json`."""

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
) -> KnnPrediction:
    """Classify by the votes `exp(s / tau)` of the `k` training features of highest cosine similarity s.

    Exact, and the same on any device: neighbours of equal similarity are taken in the order of the bank,
    classes of equal votes in that of their index. Features `[M, D]` and `[N, D]` are normalised here. The
    bank, which may be mapped from a file, is not copied: one block of 2048 x 2048 similarities exists at a
    time. All M neighbours vote when M < k.

    Raises:
        DataError: for features that are not finite, of unequal dimension, or labels outside `[0, C)`.
        ZooError: for `k` or `tau` that is not positive.
    Source: InstDisc, Wu et al. 2018, section 3.4, with k = 200 and tau = 0.07.
    """
    for name, value in (("k", k), ("tau", tau)):
        if not value > 0:
            raise ZooError(f"kNN: found {name} = {value}, expected a number above 0")
    check_features(train_features, "kNN training features")
    check_features(test_features, "kNN test features", dim=train_features.shape[1])
    check_labels(train_labels, "kNN training labels", count=len(train_features), num_classes=num_classes)
    used, labels = min(k, len(train_features)), train_labels.cpu()
    predictions = []
    for queries in torch.split(test_features, _CHUNK):
        similarity, index = _nearest(queries, train_features, used)
        # relative to the nearest neighbour, so that a small tau cannot overflow; the argmax is the same
        weights = ((similarity - similarity[:, :1]).double() / tau).exp()
        votes = torch.zeros(len(weights), num_classes, dtype=torch.float64)
        # on the CPU scatter_add_ always adds in the same order
        predictions.append(votes.scatter_add_(1, labels[index], weights).argmax(dim=1))
    return KnnPrediction(torch.cat(predictions), {"k": used, "tau": tau})


def _nearest(queries: Tensor, bank: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return similarities and bank indices `[B, k]` of the k nearest, best first, on the CPU."""
    queries = F.normalize(queries.to(bank.device, torch.float32), dim=1)
    best = torch.empty(len(queries), 0, dtype=torch.int64, device=bank.device)
    for start in range(0, len(bank), _CHUNK):
        block = F.normalize(bank[start : start + _CHUNK].float(), dim=1)
        keys = torch.cat([best, _ranking_keys(queries @ block.T, start)], dim=1)
        best = keys.topk(min(k, keys.shape[1]), dim=1).values
    best = best.cpu()
    return _flip_negative((best >> 32).to(torch.int32)).view(torch.float32), _LOW - (best & _LOW)


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
