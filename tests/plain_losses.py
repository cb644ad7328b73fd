"""The losses in their plain form, with every score in memory: what `zoo.functional`'s are held to.

`[N, K]` and `[N, 2N + K]` matrices, masks, and torch's own differentiation. Arguments, results and equations
are those of the functions of the same names in `zoo.functional`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def full(x: Tensor) -> Tensor:
    """Raise half precisions to float32."""
    return x if x.dtype == torch.float64 else x.float()


def _scores(q: Tensor, k: Tensor, queue: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return positive scores [N], negative scores [N, K] and the mask of usable negatives [K]."""
    q, k, queue = full(q), full(k), full(queue)
    with torch.autocast(q.device.type, enabled=False):
        positive = (q * k).sum(dim=1)
        negative = q @ queue.T
    if valid is None:
        valid = torch.ones(len(queue), dtype=torch.bool, device=queue.device)
    return positive, negative, valid


def _contrast(positive: Tensor, negative: Tensor, usable: Tensor, tau: float | Tensor) -> Tensor:
    """Mean of -log softmax of the positive [N] among itself and the usable negatives [N, K]."""
    # divide first: the gradient of -inf / tau with respect to a learned tau is not a number
    negative = (negative / tau).masked_fill(~usable, -torch.inf)
    logits = torch.cat([positive[:, None] / tau, negative], dim=1)
    return (logits.logsumexp(dim=1) - logits[:, 0]).mean()


def info_nce(
    q: Tensor, k: Tensor, queue: Tensor, *, tau: float | Tensor, valid: Tensor | None = None
) -> Tensor:
    positive, negative, usable = _scores(q, k, queue, valid)
    return _contrast(positive, negative, usable, tau)


def in_batch_info_nce(a: Tensor, b: Tensor, *, tau: float | Tensor, both_views: bool) -> Tensor:
    assert both_views
    n = len(a)
    z = torch.cat([full(a), full(b)])
    with torch.autocast(z.device.type, enabled=False):
        logits = z @ z.T / tau
    other_view = torch.arange(2 * n, device=z.device).roll(n)
    itself = torch.eye(2 * n, dtype=torch.bool, device=z.device)
    return F.cross_entropy(logits.masked_fill(itself, -torch.inf), other_view)


def simple_contrastive(
    q: Tensor, k: Tensor, queue: Tensor, *, weight: float, valid: Tensor | None = None
) -> Tensor:
    positive, negative, usable = _scores(q, k, queue, valid)
    return (weight * torch.where(usable, negative, 0).sum(dim=1) - positive).mean()


def _hardest(negative: Tensor, usable: Tensor, keep: float) -> Tensor:
    """Mask [N, K] of the usable negatives above each anchor's (1 - keep) quantile of scores."""
    usable = usable.expand_as(negative)
    if keep == 1 or negative.shape[1] == 0:
        return usable
    scores = negative.detach().masked_fill(~usable, torch.nan)
    ordered = scores.sort(dim=1).values  # NaN sorts last
    position = (1 - keep) * (usable.sum(dim=1, keepdim=True) - 1).clamp(min=0).to(scores.dtype)
    threshold = ordered.gather(1, position.ceil().long())
    return usable & (negative.detach() >= threshold)


def hard_contrastive(
    q: Tensor, k: Tensor, queue: Tensor, *, tau: float | Tensor, keep: float, valid: Tensor | None = None
) -> Tensor:
    positive, negative, usable = _scores(q, k, queue, valid)
    return _contrast(positive, negative, _hardest(negative, usable, keep), tau)


def hard_simple(
    q: Tensor, k: Tensor, queue: Tensor, *, weight: float, keep: float, valid: Tensor | None = None
) -> Tensor:
    positive, negative, usable = _scores(q, k, queue, valid)
    hardest = _hardest(negative, usable, keep)
    return (weight * torch.where(hardest, negative, 0).sum(dim=1) - positive).mean()


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
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
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
