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
        labels: classes `[N]`; rows of a negative one, which is unknown, are in no pair.

    Returns:
        `[]`; NaN when no two rows share a class. Source: https://arxiv.org/abs/2012.09740, equation 9.
    """
    z = full(z)
    same = (labels[:, None] == labels) & (labels >= 0)
    same.fill_diagonal_(False)
    with torch.autocast(z.device.type, enabled=False):
        similarity = z @ z.T
    # no selection by the mask: how much it selects, a GPU would be waited for
    return similarity.masked_fill(~same, 0).sum() / same.sum()


def anchor_moments(scores: Tensor, chosen: Tensor) -> Tensor:
    """Mean and variance of the chosen ones of each anchor's scores, and how many these are.

    Args:
        scores: of pairs `[N, K]`.
        chosen: which of them count `[N, K]`, bool.

    Returns:
        `[N, 3]`, in this order; mean and variance, of the population, are NaN where none counts.
    """
    count = chosen.sum(dim=1)
    mean = scores.masked_fill(~chosen, 0).sum(dim=1) / count
    squares = (scores - mean[:, None]).masked_fill_(~chosen, 0).square_()
    return torch.stack([mean, squares.sum(dim=1) / count, count.to(scores.dtype)], dim=1)


def pooled_moments(moments: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of several anchors' scores taken together.

    Var = sum_i n_i (var_i + (mean_i - mean)^2) / sum_i n_i: no large numbers cancel.

    Args:
        moments: of each anchor mean, variance and how many scores `[N, 3]`, as `anchor_moments` gives them.

    Returns:
        `(mean [], variance [])`, of the population; NaN when there is no score.
    """
    means, variances, counts = moments.unbind(dim=1)
    there, total = counts > 0, counts.sum()
    mean = torch.where(there, means * counts, 0).sum() / total
    return mean, torch.where(there, (variances + (means - mean).square()) * counts, 0).sum() / total


def center_cosine(weight: Tensor) -> Tensor:
    """Mean cosine between two different class centers.

    The sum of u_a . u_b over all pairs is |sum_a u_a|^2, C of them of a center with itself: it takes O(C D).

    Args:
        weight: centers `[C, D]`.

    Returns:
        `[]`; NaN for one center. -1 / (C - 1) is the least there can be: a regular simplex.
    """
    unit = F.normalize(full(weight), dim=1)
    own = unit.square().sum()  # a center that is zero has no direction: it counts as at right angles to all
    count = len(unit)
    return (unit.sum(dim=0).square().sum() - own) / (torch.ones_like(own) * count * (count - 1))


def group_means(values: Tensor, labels: Tensor, members: Tensor) -> Tensor:
    """Mean of the values whose class is in each group.

    Args:
        values: `[N]`.
        labels: their classes `[N]`; negative ones are in no group.
        members: which classes belong to each group `[G, C]`, bool.

    Returns:
        `[G]`; NaN for a group of which there is no value.
    """
    inside = members[:, labels.clamp(min=0)] & (labels >= 0)
    return torch.where(inside, values, 0).sum(dim=1) / inside.sum(dim=1)
