"""Embedding metrics, probabilities in the softmax of contrastive losses, and kNN classification."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.functional.checks import (
    check_features,
    check_labels,
    check_pairs,
    check_positive,
    to_float32,
    to_same_precision,
)

_CHUNK = 2048  # rows and columns of a block of similarities
_LOW = 0xFFFFFFFF  # the low 32 bits of a ranking key hold the bank index, reversed


def uniformity(z: Tensor, t: float = 2.0) -> Tensor:
    """Log of the mean Gaussian potential over pairs of unit rows `[N, D]`, log E exp(-t |x - y|^2); `[]`.
    Between -4 t and 0, lower is more uniform; NaN for fewer than two rows.
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
    check_pairs(a, b)
    return (to_float32(a) - to_float32(b)).square().sum(dim=1).mean()


def tolerance(z: Tensor, labels: Tensor) -> Tensor:
    """Mean similarity E f(x).f(y) over pairs x != y of one class, for unit rows `[N, D]`; `[]`.
    Rows with a negative label (unknown) are in no pair; NaN if there are no pairs.
    Source: https://arxiv.org/abs/2012.09740, equation 9.
    """
    z = to_float32(z)
    same = (labels[:, None] == labels) & (labels >= 0)
    same.fill_diagonal_(False)
    with torch.autocast(z.device.type, enabled=False):
        similarity = z @ z.T
    # not boolean indexing: the size of its result would need a device sync
    return similarity.masked_fill(~same, 0).sum() / same.sum()


class Probabilities(NamedTuple):
    """Probabilities in a loss's softmax for n anchors; each `[n]`."""

    p_sup: Tensor  # sum over all class centers (the paper's P_sup); 0 without centers
    center: Tensor  # of the anchor's own center; 0 without centers
    pair: Tensor  # mean over the anchor's positive samples; NaN if it has none
    positives: Tensor  # number of positive samples, |P(i)|


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
    """Return probabilities in the softmax of `paco` or `sup_con` for the first `anchors` of the batch.

    z has probability psi(z) / (sum_{c in C} psi(c) + gamma sum_{a in A(i)} psi(a)). `centers` `[N, C]` are
    log psi(c), the center logits with prior and temperature applied; None for `sup_con`. Unlabelled images
    are contrasts and have no positives. The other arguments are those of the loss.
    Source: Cui et al. 2021, https://arxiv.org/abs/2107.12028, section 3.
    """
    check_positive(tau=tau)
    parts = [(q, labels), (k, labels), (queue, queue_labels), *([] if others is None else [others])]
    members = to_same_precision(*(rows for rows, _ in parts))
    theirs, own = torch.cat([classes for _, classes in parts]), labels[:anchors, None]
    with torch.autocast(q.device.type, enabled=False):
        scores = torch.cat([members[0][:anchors] / tau @ rows.T for rows in members], dim=1)
    # queue slots without a label do not count; unlabelled images of this step are contrasts
    there = [torch.ones_like(classes, dtype=torch.bool) for _, classes in parts]
    there[2] = queue_labels >= 0
    usable = torch.cat(there).expand_as(scores).clone()
    usable.fill_diagonal_(False)  # the first columns are q itself: an anchor is not its own contrast
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
    """Return the probabilities that minimise `paco` if all scores are free, for |P(i)| = `positives` `[n]`.

    P_sup = beta / (beta + alpha |P|); own center: (1 - label_smoothing) P_sup; each pair: alpha /
    (gamma (beta + alpha |P|)), gamma > 0. The paper's values are those for beta = gamma = 1.
    """
    check_positive(gamma=gamma)
    total = beta + alpha * positives
    p_sup = beta / total
    return Probabilities(p_sup, (1 - label_smoothing) * p_sup, alpha / (gamma * total), positives)


def knn_predict(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    *,
    k: int = 20,
    tau: float = 0.07,
    num_classes: int,
) -> Tensor:
    """Return classes `[N]`, int64, on CPU: votes `exp(s / tau)` of the `k` most similar training features.

    Exact, and the same on any device: ties in similarity are broken by position in the bank, ties in votes
    by class index. Features `[M, D]` and `[N, D]` are normalised here. The bank is not copied: only one
    2048 x 2048 block of similarities exists at a time. All M vote if M < k.
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
    return torch.cat(predictions)


def _nearest(queries: Tensor, bank: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return similarities and bank indices `[B, k]` of the k nearest, best first, on the CPU.

    `topk` breaks ties arbitrarily. So it is asked for one more, and if that one ties with the last, all
    columns are ranked, by integer keys that are never equal: ordered by similarity, then lower index first.
    The result depends neither on the device nor on where the bank is split.
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
    """Map float32 bits to int32 with the same ordering, and back: it is its own inverse."""
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
