"""Measures of an embedding and of score distributions."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.functional._streaming import row_blocks
from zoo.functional.precision import full


def uniformity(z: Tensor, t: float = 2.0) -> Tensor:
    """Log of the mean Gaussian potential of pairs, log E exp(-t |x - y|^2): lower is more uniform.

    Args:
        z: unit rows `[N, D]`, N >= 2.
        t: the potential's scale.

    Returns:
        `[]`, between -4 t and 0. Source: Wang and Isola 2020, https://arxiv.org/abs/2005.10242.
    """
    z = full(z)
    potentials: Tensor = F.pdist(z).square().mul(-t)
    return potentials.logsumexp(dim=0) - math.log(len(potentials))


def alignment(a: Tensor, b: Tensor) -> Tensor:
    """Mean squared distance of positive pairs, E |a - b|^2, for rows `[N, D]`; `[]`.

    Source: https://arxiv.org/abs/2005.10242.
    """
    return (full(a) - full(b)).square().sum(dim=1).mean()


def relative_penalty(q: Tensor, queue: Tensor, *, tau: float | Tensor, valid: Tensor | None = None) -> Tensor:
    """Share of each negative in the gradient that pushes an anchor's negatives away.

    r_ij = exp(s_ij/tau) / sum_k exp(s_ik/tau): uniform for large tau, on the hardest negative for small tau.

    Args:
        q: anchors `[N, D]`.
        queue: negatives `[K, D]`.
        tau: temperature.
        valid: which queue rows are filled `[K]`, bool; all when None.

    Returns:
        `[N, K]`, rows that sum to 1, zero where a slot is not filled.

    Source: https://arxiv.org/abs/2012.09740, section 3.2.
    """
    q, queue = full(q), full(queue)
    with torch.autocast(q.device.type, enabled=False):
        logits = q @ queue.T / tau
    if valid is not None:
        logits = logits.masked_fill(~valid, -torch.inf)
    return logits.softmax(dim=1)


def score_moments(q: Tensor, z: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of all scores q_i . z_j without forming them.

    E[s] = E[q] . E[z], and with covariances Q and Z of the queries and the negatives
    Var[s] = E[q]^T Z E[q] + E[z]^T Q E[z] + <Q, Z>. Memory is D^2, not N K, and no large numbers cancel.

    Args:
        q: queries `[N, D]`.
        z: negatives `[K, D]`.
        valid: which rows of `z` count `[K]`, bool.

    Returns:
        `(mean [], variance [])`, NaN when no row counts.
    """
    q, z, usable, count = full(q), full(z), valid[:, None], valid.sum()
    with torch.autocast(q.device.type, enabled=False):
        mean_q, mean_z = q.mean(dim=0), valid.to(z.dtype) @ z / count
        q = q - mean_q
        cov_q = q.T @ q / len(q)
        cov_z = torch.zeros_like(cov_q)
        for rows in row_blocks(len(z), z.shape[1], z.device):  # centered rows stay in the cache
            centered = (z[rows] - mean_z).mul_(usable[rows])
            cov_z.addmm_(centered.T, centered)
        cov_z /= count
        variance = mean_q @ cov_z @ mean_q + mean_z @ cov_q @ mean_z + (cov_q * cov_z).sum()
        return mean_q @ mean_z, variance


def tolerance(z: Tensor, labels: Tensor) -> Tensor:
    """Mean similarity E f(x).f(y) over pairs x != y of one class.

    Args:
        z: unit rows `[N, D]`.
        labels: classes `[N]`.

    Returns:
        `[]`; NaN when no two rows share a class. Source: https://arxiv.org/abs/2012.09740, equation 9.
    """
    z = full(z)
    same = labels[:, None] == labels
    same.fill_diagonal_(False)
    with torch.autocast(z.device.type, enabled=False):
        similarity: Tensor = (z @ z.T)[same]
    return similarity.mean()
