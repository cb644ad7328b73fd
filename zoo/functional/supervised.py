"""Losses that contrast by label, with and without class centers; long-tailed softmax; partial labels."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.functional.precision import full


def _supervised_contrast(
    q: Tensor, k: Tensor, labels: Tensor, queue: Tensor, queue_labels: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores of every anchor against A(i), who is in A(i) and who is in P(i): each `[N, 2N + K]`.

    A(i) is both views of the batch and the filled queue, without the anchor itself; P(i) are those in
    A(i) that share the anchor's label.
    """
    q, k, queue = full(q), full(k), full(queue)
    contrast_labels = torch.cat([labels, labels, queue_labels])
    with torch.autocast(q.device.type, enabled=False):
        scores = q @ torch.cat([q, k, queue]).T
    n = len(q)
    itself = torch.zeros_like(scores, dtype=torch.bool)
    itself[:, :n].fill_diagonal_(True)
    contrast = ~itself & (contrast_labels >= 0)
    positive = contrast & (labels[:, None] == contrast_labels)
    return scores, contrast, positive


def sup_con(
    q: Tensor, k: Tensor, labels: Tensor, queue: Tensor, queue_labels: Tensor, *, tau: float | Tensor
) -> Tensor:
    """Supervised contrastive loss with MoCo's queue; the mean over positives outside the logarithm.

    L_i = -1/|P(i)| sum_{p in P(i)} log exp(q_i.z_p/tau) / sum_{a in A(i)} exp(q_i.z_a/tau), where A(i) is
    both views of the batch and the queue without the anchor itself, P(i) those of the anchor's class.

    Args:
        q: anchors `[N, D]`; they are contrasts for each other too, with gradient.
        k: the second view's keys `[N, D]`.
        labels: classes `[N]`, none negative.
        queue: earlier keys `[K, D]`.
        queue_labels: their classes `[K]`; -1 marks an empty slot.
        tau: temperature.

    Returns:
        The mean over the N anchors, `[]`.

    Source: Khosla et al. 2020, https://arxiv.org/abs/2004.11362, equation 2.
    """
    scores, contrast, positive = _supervised_contrast(q, k, labels, queue, queue_labels)
    logits = (scores / tau).masked_fill(~contrast, -torch.inf)
    log_probability = scores / tau - logits.logsumexp(dim=1, keepdim=True)
    per_anchor = torch.where(positive, log_probability, 0).sum(dim=1) / positive.sum(dim=1)
    return -per_anchor.mean()


def paco(
    q: Tensor,
    k: Tensor,
    labels: Tensor,
    queue: Tensor,
    queue_labels: Tensor,
    center_logits: Tensor,
    log_prior: Tensor,
    *,
    alpha: float,
    tau: float | Tensor,
    beta: float = 1.0,
    gamma: float = 1.0,
    center_tau: float = 1.0,
    reduction: Literal["mean", "sum"] = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Parametric contrastive loss: SupCon whose softmax also holds one learnable center per class.

    L_i = -sum_{z in P(i) + {c_y}} w(z) log psi(z) / (sum_{c in C} psi(c) + gamma sum_{a in A(i)} psi(a)),
    psi(sample) = exp(q_i.z/tau), psi(center c) = exp((center_logits[i, c] + log_prior[c]) / center_tau),
    w = alpha for samples and beta for the own center.

    Args:
        q: anchors `[N, D]`, unit rows.
        k: the second view's keys `[N, D]`.
        labels: classes `[N]`, none negative.
        queue: earlier keys `[K, D]`.
        queue_labels: their classes `[K]`; -1 marks an empty slot.
        center_logits: `c . F(x)` before the prior `[N, C]`, not divided by tau.
        log_prior: log class frequencies `[C]` (the rebalanced centers); zeros for plain centers.
        alpha: weight of a sample among the positives.
        tau: temperature of the samples' scores.
        beta: weight of the own center among the positives.
        gamma: weight of the samples in the denominator.
        center_tau: temperature of the centers' logits.
        reduction: over positives; "mean" divides by the weights' sum beta + alpha |P(i)| as the authors'
            code does, "sum" is the paper's equation.
        label_smoothing: share of beta that the own center gives to the C - 1 others, equally. (Not
            torch's smoothing, which leaves the own class a part of that share.)

    Returns:
        The mean over the N anchors, `[]`.

    Source: Cui et al. 2021, https://arxiv.org/abs/2107.12028, equations 6 and 10; the mean, beta, gamma,
    center_tau and smoothing are those of
    https://github.com/dvlab-research/Parametric-Contrastive-Learning (GPaCo/LT/losses.py).
    """
    if reduction not in ("mean", "sum"):
        raise ValueError(f'reduction: found {reduction!r}, expected "mean" or "sum"')
    scores, contrast, positive = _supervised_contrast(q, k, labels, queue, queue_labels)
    sample_logits = scores / tau
    centers = (full(center_logits) + log_prior) / center_tau
    # gamma = 0 takes the samples out of the denominator: log(0) is the right thing to add
    log_gamma = math.log(gamma) if gamma > 0 else -math.inf
    in_denominator = (sample_logits + log_gamma).masked_fill(~contrast, -torch.inf)
    log_sum = torch.cat([centers, in_denominator], dim=1).logsumexp(dim=1)

    center = centers.gather(1, labels[:, None]).squeeze(1)
    if label_smoothing > 0:
        others = (centers.sum(dim=1) - center) / max(centers.shape[1] - 1, 1)
        center = (1 - label_smoothing) * center + label_smoothing * others
    samples = torch.where(positive, sample_logits - log_sum[:, None], 0).sum(dim=1)
    total = beta * (center - log_sum) + alpha * samples
    if reduction == "mean":
        total = total / (beta + alpha * positive.sum(dim=1, dtype=total.dtype))
    return -total.mean()


def log_prior(class_counts: Tensor) -> Tensor:
    """Log class frequencies `[C]` of training counts `[C]`; a class without images gets log 1e-9.

    The 1e-9 is that of PaCo's code: an absent class must not put -inf into a softmax.
    """
    return (class_counts.float() / class_counts.sum() + 1e-9).log()


def balanced_softmax(
    logits: Tensor, labels: Tensor, class_counts: Tensor, *, label_smoothing: float = 0.0
) -> Tensor:
    """Cross-entropy of `logits + log prior`: a softmax classifier that expects balanced test classes.

    Args:
        logits: class scores `[N, C]`.
        labels: classes `[N]`.
        class_counts: training images of each class `[C]`.
        label_smoothing: torch's: this share of the target is spread over all C classes.

    Returns:
        The mean over the N samples, `[]`.

    Source: Ren et al. 2020, https://arxiv.org/abs/2007.10740, equation 4.
    """
    return F.cross_entropy(full(logits) + log_prior(class_counts), labels, label_smoothing=label_smoothing)


def move_prototypes(prototypes: Tensor, q: Tensor, labels: Tensor, momentum: float) -> Tensor:
    """Move each class's prototype toward the batch's rows of that class, one row after the other.

    mu_c <- momentum mu_c + (1 - momentum) q_i for each row i of class c in turn, then mu_c <- mu_c / |mu_c|
    once at the end, as the authors' code does. A class that has no prototype yet (zeros) gets one from its
    first rows; one without rows stays.

    Args:
        prototypes: unit rows `[C, D]`, or zeros; not changed.
        q: `[N, D]`, unit rows.
        labels: the class that each row counts for `[N]`.
        momentum: gamma.

    Returns:
        The moved prototypes `[C, D]`.

    Source: Wang et al. 2022 (PiCO), https://arxiv.org/abs/2201.08984, equation 6.
    """
    member = F.one_hot(labels, len(prototypes)).to(prototypes.dtype)
    # row i is multiplied by momentum once for every later row of its class
    later = member.sum(dim=0) - member.cumsum(dim=0)
    weight = (1 - momentum) * momentum**later * member
    with torch.autocast(q.device.type, enabled=False):
        added = weight.T @ q.to(prototypes.dtype)
    moved = momentum ** member.sum(dim=0)[:, None] * prototypes + added
    return F.normalize(moved, dim=1)


def disambiguate(targets: Tensor, prototype_scores: Tensor, candidates: Tensor, momentum: float) -> Tensor:
    """Move each image's label distribution toward the candidate whose prototype is nearest.

    s <- momentum s + (1 - momentum) onehot(argmax_{c in Y} q.mu_c).

    Args:
        targets: s, distributions over classes `[N, C]`.
        prototype_scores: q.mu_c `[N, C]`.
        candidates: Y, which classes are possible `[N, C]`, bool, at least one a row.
        momentum: phi.

    Returns:
        The moved distributions `[N, C]`.

    Source: https://arxiv.org/abs/2201.08984, equation 4.
    """
    nearest = prototype_scores.masked_fill(~candidates, -torch.inf).argmax(dim=1)
    return momentum * targets + (1 - momentum) * F.one_hot(nearest, targets.shape[1])
