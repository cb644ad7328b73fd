"""PaCo in its plain form, with every score in memory: masks of N x (C + 2N + K)."""

import torch
from torch import Tensor


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
) -> Tensor:
    contrast_labels = torch.cat([labels, labels, queue_labels])
    logits = q @ torch.cat([q, k, queue]).T / tau
    itself = torch.zeros_like(logits, dtype=torch.bool)
    itself[:, : len(q)].fill_diagonal_(True)
    contrast = ~itself & (contrast_labels >= 0)
    positive = contrast & (labels[:, None] == contrast_labels)
    centers = center_logits + log_prior
    log_sum = torch.cat([centers, logits.masked_fill(~contrast, -torch.inf)], dim=1).logsumexp(dim=1)
    samples = torch.where(positive, logits - log_sum[:, None], 0).sum(dim=1)
    total = centers.gather(1, labels[:, None]).squeeze(1) - log_sum + alpha * samples
    return -(total / (1 + alpha * positive.sum(dim=1))).mean()
