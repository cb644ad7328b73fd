"""Measures of an embedding and of score distributions."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.functional.precision import full


def uniformity(z: Tensor, t: float = 2.0) -> Tensor:
    """Log of the mean Gaussian potential of pairs, log E exp(-t |x - y|^2): lower is more uniform.

    Args:
        z: unit rows `[N, D]`.
        t: the potential's scale.

    Returns:
        `[]`, between -4 t and 0; NaN for fewer than two rows, which are no pair.

    Source: Wang and Isola 2020, https://arxiv.org/abs/2005.10242.
    """
    z = full(z)
    if len(z) < 2:
        return z.new_full((), torch.nan)
    potentials: Tensor = F.pdist(z).square().mul(-t)
    return potentials.logsumexp(dim=0) - math.log(len(potentials))


def alignment(a: Tensor, b: Tensor) -> Tensor:
    """Mean squared distance of positive pairs, E |a - b|^2, for rows `[N, D]`; `[]`.

    Source: https://arxiv.org/abs/2005.10242.
    """
    return (full(a) - full(b)).square().sum(dim=1).mean()


def relative_penalty(scores: Tensor, *, tau: float | Tensor, valid: Tensor | None = None) -> Tensor:
    """Share of each negative in the gradient that pushes an anchor's negatives away.

    r_ij = exp(s_ij/tau) / sum_k exp(s_ik/tau): uniform for large tau, on the hardest negative for small tau.

    Args:
        scores: of anchors with negatives `[N, K]`.
        tau: temperature.
        valid: which of them count, bool, broadcast to `[N, K]`; all when None.

    Returns:
        `[N, K]`, rows that sum to 1, zero where a score does not count; NaN where none of a row does.

    Source: https://arxiv.org/abs/2012.09740, section 3.2.
    """
    logits = full(scores) / tau
    if valid is not None:
        logits = logits.masked_fill(~valid, -torch.inf)
    return logits.softmax(dim=1)


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
        `[N, 3]`, in this order; mean and variance, of the population, are NaN where none counts. A variance
        is right as far as the scores are: those near 1 are rounded to 1e-7 in float32, so one of an encoder
        that has collapsed, below some 1e-12, is rounding.
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
