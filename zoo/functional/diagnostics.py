"""Measures of an embedding, of where a loss's softmax puts its mass, and classification by neighbours."""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.functional.checks import check_features, check_labels, check_positive, to_float32, to_same_precision

_CHUNK = 2048  # rows of a block of similarities, and its columns
_LOW = 0xFFFFFFFF  # the low 32 bits of a ranking key hold the bank index, reversed


def uniformity(z: Tensor, t: float = 2.0) -> Tensor:
    """Log of the mean Gaussian potential of pairs of unit rows `[N, D]`, log E exp(-t |x - y|^2); `[]`.
    Lower is more uniform, between -4 t and 0; NaN for fewer than two rows, which are no pair.
    Source: Wang and Isola 2020, https://arxiv.org/abs/2005.10242.
    """
    z = to_float32(z)
    if len(z) < 2:
        return z.new_full((), torch.nan)
    potentials: Tensor = F.pdist(z).square().mul(-t)
    return potentials.logsumexp(dim=0) - math.log(len(potentials))


def alignment(a: Tensor, b: Tensor) -> Tensor:
    """Mean squared distance of positive pairs, E |a - b|^2, for rows `[N, D]`; `[]`.
    Source: https://arxiv.org/abs/2005.10242.
    """
    return (to_float32(a) - to_float32(b)).square().sum(dim=1).mean()


def tolerance(z: Tensor, labels: Tensor) -> Tensor:
    """Mean similarity E f(x).f(y) over pairs x != y of one class, for unit rows `[N, D]`; `[]`.
    Rows of a negative label, which is unknown, are in no pair; NaN where there is none.
    Source: https://arxiv.org/abs/2012.09740, equation 9.
    """
    z = to_float32(z)
    same = (labels[:, None] == labels) & (labels >= 0)
    same.fill_diagonal_(False)
    with torch.autocast(z.device.type, enabled=False):
        similarity = z @ z.T
    # a product, not a selection by the mask, whose size the host would have to wait for
    return similarity.masked_fill(~same, 0).sum() / same.sum()


class Probabilities(NamedTuple):
    """The mass that a loss's softmax puts on some anchors' positives; each `[n]`."""

    p_sup: Tensor  # of all class centers together (the paper's P_sup); 0 without centers
    center: Tensor  # of the anchor's own center; 0 without centers
    pair: Tensor  # of one positive sample, the mean over them; NaN where there is none
    positives: Tensor  # how many samples these are, |P(i)|


@torch.no_grad()
def contrast_probabilities(
    q: Tensor,
    k: Tensor,
    labels: Tensor,
    queue: Tensor,
    queue_labels: Tensor,
    centers: Tensor | None = None,
    *,
    tau: float | Tensor,
    gamma: float = 1.0,
    others: tuple[Tensor, Tensor] | None = None,
    anchors: int = 128,
) -> Probabilities:
    """Probabilities in the softmax of `paco` or `sup_con`, for the first `anchors` of the batch.

    That of z is psi(z) / (sum_{c in C} psi(c) + gamma sum_{a in A(i)} psi(a)). `centers` are log psi(c), the
    logits with prior and temperature `[N, C]`; None for `sup_con`. Images without a label are contrasts, and
    have no positives. All other arguments are those of the loss.
    Source: Cui et al. 2021, https://arxiv.org/abs/2107.12028, section 3.
    """
    check_positive(tau=tau)
    parts = [(q, labels), (k, labels), (queue, queue_labels), *([] if others is None else [others])]
    members = to_same_precision(*(rows for rows, _ in parts))
    theirs, own = torch.cat([classes for _, classes in parts]), labels[:anchors, None]
    with torch.autocast(q.device.type, enabled=False):
        scores = torch.cat([members[0][:anchors] / tau @ rows.T for rows in members], dim=1)
    # of the queue, slots without a label are empty; images of this step without one are contrasts
    there = [torch.ones_like(classes, dtype=torch.bool) for _, classes in parts]
    there[2] = queue_labels >= 0
    usable = torch.cat(there).expand_as(scores).clone()
    usable.fill_diagonal_(False)  # the first columns are the batch's own: an anchor is no contrast for itself
    log_sum = scores.masked_fill(~usable, -torch.inf).logsumexp(dim=1)
    p_sup = center = torch.zeros_like(log_sum)
    if centers is not None:
        centers = to_float32(centers[:anchors])
        log_centers = centers.logsumexp(dim=1)
        log_sum = torch.logaddexp(log_centers, log_sum + (math.log(gamma) if gamma > 0 else -math.inf))
        p_sup = (log_centers - log_sum).exp()
        center = (centers.gather(1, own).squeeze(1) - log_sum).exp()
    same = (own == theirs) & (own >= 0) & usable
    positives = same.sum(dim=1)
    pair = (scores - log_sum[:, None]).masked_fill(~same, -torch.inf).exp().sum(dim=1) / positives
    return Probabilities(p_sup, center, pair, positives)


def paco_optimum(
    positives: Tensor, *, alpha: float, beta: float = 1.0, gamma: float = 1.0, label_smoothing: float = 0.0
) -> Probabilities:
    """Return the probabilities at which `paco` is least, were all scores free, for |P(i)| `positives` `[n]`.

    P_sup = beta / (beta + alpha |P|), of the own center that without what smoothing gives to the others, of a
    pair alpha / (gamma (beta + alpha |P|)); gamma > 0. The paper's have beta = gamma = 1.
    """
    check_positive(gamma=gamma)
    total = beta + alpha * positives
    p_sup = beta / total
    return Probabilities(p_sup, (1 - label_smoothing) * p_sup, alpha / (gamma * total), positives)


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
    bank is not copied: one block of 2048 x 2048 of similarities exists at a time. All M vote when M < k.
    Source: InstDisc, Wu et al. 2018, section 3.4, with k = 200 and tau = 0.07.
    """
    check_positive(k=k, tau=tau)
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
    """Return similarities and bank indices `[B, k]` of the k nearest, best first, on the CPU.

    `topk` promises no order among equal values. So it is asked for one more, and where that one is as near as
    the last, all are compared by keys: whole numbers in the order of (similarity, lower index first), which
    are never equal. The result depends neither on the device nor on where the bank is cut.
    """
    queries = F.normalize(queries.to(bank.device, torch.float32), dim=1)
    best = torch.empty(len(queries), 0, dtype=torch.int64, device=bank.device)
    for start in range(0, len(bank), _CHUNK):
        similarity = queries @ F.normalize(bank[start : start + _CHUNK].float(), dim=1).T
        values, index = similarity.topk(min(k + 1, similarity.shape[1]), dim=1)
        if (values[:, k - 1 : -1] == values[:, k:]).any():
            values, index = similarity, torch.arange(similarity.shape[1], device=bank.device)
        ordered = _flip_negative((values + 0.0).view(torch.int32))  # + 0.0 makes -0.0 equal 0.0
        keys = torch.cat([best, (ordered.to(torch.int64) << 32) | (_LOW - start - index)], dim=1)
        best = keys.topk(min(k, keys.shape[1]), dim=1).values
    best = best.cpu()
    return _flip_negative((best >> 32).to(torch.int32)).view(torch.float32), _LOW - (best & _LOW)


def _flip_negative(bits: Tensor) -> Tensor:
    """Map the bits of float32 to int32 of the same order, and back: it is its own inverse."""
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
