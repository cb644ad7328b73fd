"""Where the softmax of a loss with labels puts its mass, and where the loss is least.

Source: Cui et al. 2021 (PaCo), https://arxiv.org/abs/2107.12028, section 3: with labels the loss of an anchor
is a cross-entropy whose targets are its positives' weights, so it is least where each positive's probability
is its share of them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from zoo.functional.precision import full, together


class Probabilities(NamedTuple):
    """What some anchors give to their positives; each `[n]`.

    Attributes:
        p_sup: of all class centers together (the paper's P_sup).
        center: of the anchor's own center.
        pair: of one positive sample, the mean over them.
        positives: how many samples these are, |P(i)|.
    """

    p_sup: Tensor
    center: Tensor
    pair: Tensor
    positives: Tensor


@torch.no_grad()
def paco_probabilities(
    q: Tensor,
    k: Tensor,
    labels: Tensor,
    queue: Tensor,
    queue_labels: Tensor,
    center_logits: Tensor,
    log_prior: Tensor,
    *,
    tau: float | Tensor,
    gamma: float = 1.0,
    center_tau: float = 1.0,
    others: tuple[Tensor, Tensor] | None = None,
    anchors: int = 128,
) -> Probabilities:
    """Probabilities in the softmax of `paco` for the first rows of a batch.

    That of z is psi(z) / (sum_{c in C} psi(c) + gamma sum_{a in A(i)} psi(a)): of centers they sum up to
    P_sup, of samples to (1 - P_sup) / gamma.

    Args:
        q: `[N, D]`, the first n of which are the anchors; this and the rest as in `paco`.
        k: the second view's keys `[N, D]`.
        labels: classes `[N]`.
        queue: earlier keys `[K, D]`.
        queue_labels: their classes `[K]`; -1 marks an empty slot.
        center_logits: before the prior `[N, C]`.
        log_prior: log class frequencies `[C]`.
        tau: temperature of the samples' scores.
        gamma: weight of the samples in the denominator.
        center_tau: temperature of the centers' logits.
        others: what other ranks have of both views `[M, D]`, and its classes `[M]`.
        anchors: n at most; all of A(i) is contrasted with each.
    """
    log_samples, pairs, same = _samples(q, k, labels, queue, queue_labels, tau, others, anchors)
    centers = (full(center_logits[:anchors]) + log_prior) / center_tau
    log_centers = centers.logsumexp(dim=1)
    log_gamma = math.log(gamma) if gamma > 0 else -math.inf
    log_sum = torch.logaddexp(log_centers, log_samples + log_gamma)
    own = centers.gather(1, labels[:anchors, None]).squeeze(1)
    return Probabilities(
        (log_centers - log_sum).exp(), (own - log_sum).exp(), *_mean_pair(pairs, same, log_sum)
    )


@torch.no_grad()
def sup_con_probabilities(
    q: Tensor,
    k: Tensor,
    labels: Tensor,
    queue: Tensor,
    queue_labels: Tensor,
    *,
    tau: float | Tensor,
    others: tuple[Tensor, Tensor] | None = None,
    anchors: int = 128,
) -> tuple[Tensor, Tensor]:
    """Mean probability of a true pair in the softmax of `sup_con`, and |P(i)|, for a batch's first rows.

    The loss is least where it is 1 / |P(i)|.

    Args:
        q: `[N, D]`, the first n of which are the anchors; this and the rest as in `sup_con`.
        k: the second view's keys `[N, D]`.
        labels: classes `[N]`.
        queue: earlier keys `[K, D]`.
        queue_labels: their classes `[K]`; -1 marks an empty slot.
        tau: temperature.
        others: what other ranks have of both views `[M, D]`, and its classes `[M]`.
        anchors: n at most; all of A(i) is contrasted with each.

    Returns:
        Both `[n]`; the probability is NaN where there is no true pair.
    """
    log_sum, pairs, same = _samples(q, k, labels, queue, queue_labels, tau, others, anchors)
    return _mean_pair(pairs, same, log_sum)


def paco_optimum(
    positives: Tensor, *, alpha: float, beta: float = 1.0, gamma: float = 1.0, label_smoothing: float = 0.0
) -> Probabilities:
    """Return the probabilities at which `paco` is least, were all scores free.

    P_sup = beta / (beta + alpha |P|), of the own center that without what smoothing gives to the others, of a
    pair alpha / (gamma (beta + alpha |P|)). With beta = gamma = 1 the paper's 1 / (1 + alpha K*) and
    alpha / (1 + alpha K*).

    Args:
        positives: |P(i)| `[n]`.
        alpha: weight of a sample among the positives; this and the rest as in `paco`.
        beta: weight of the own center.
        gamma: weight of the samples in the denominator, > 0: without them there is no minimum.
        label_smoothing: share of beta that goes to the other centers.
    """
    total = beta + alpha * positives
    p_sup = beta / total
    return Probabilities(p_sup, (1 - label_smoothing) * p_sup, alpha / (gamma * total), positives)


def _samples(
    q: Tensor,
    k: Tensor,
    labels: Tensor,
    queue: Tensor,
    queue_labels: Tensor,
    tau: float | Tensor,
    others: tuple[Tensor, Tensor] | None,
    anchors: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Score the first rows of `q` `[n, D]` with all M samples of the contrast.

    Returns:
        `(log sum_{a in A(i)} exp(q_i.z_a / tau) [n], q_i.z / tau [n, M], which are positives [n, M])`.
    """
    parts = [(q, labels), (k, labels), (queue, queue_labels), *([] if others is None else [others])]
    members = together(*(each for each, _ in parts))
    scaled, own = members[0][:anchors] / tau, labels[:anchors, None]
    with torch.autocast(q.device.type, enabled=False):
        scores = torch.cat([scaled @ each.T for each in members], dim=1)
    theirs = torch.cat([of_theirs for _, of_theirs in parts])
    # of this step's images those without a label are contrasts too, though nobody's positives
    there = [torch.ones_like(of_theirs, dtype=torch.bool) for _, of_theirs in parts]
    there[2] = queue_labels >= 0
    usable = torch.cat(there).expand_as(scores).clone()
    usable.fill_diagonal_(False)  # the first columns are the batch's own: an anchor is no contrast for itself
    same = (own == theirs) & (own >= 0) & usable
    return scores.masked_fill(~usable, -torch.inf).logsumexp(dim=1), scores, same


def _mean_pair(pairs: Tensor, same: Tensor, log_sum: Tensor) -> tuple[Tensor, Tensor]:
    count = same.sum(dim=1)
    probability = pairs.sub_(log_sum[:, None]).masked_fill_(~same, -torch.inf).exp_()
    return probability.sum(dim=1) / count, count
