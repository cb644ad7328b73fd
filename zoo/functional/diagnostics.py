"""Measures of an embedding, and of where a loss's softmax puts its mass."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.functional.checks import check_positive, to_float32, to_same_precision


def uniformity(z: Tensor, t: float = 2.0) -> Tensor:
    """Log of the mean Gaussian potential of pairs, log E exp(-t |x - y|^2): lower is more uniform.

    Args:
        z: unit rows `[N, D]`.
        t: the potential's scale.

    Returns:
        `[]`, between -4 t and 0; NaN for fewer than two rows, which are no pair.

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
    check_positive(tau=tau)
    logits = to_float32(scores) / tau
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
    z = to_float32(z)
    same = (labels[:, None] == labels) & (labels >= 0)
    same.fill_diagonal_(False)
    with torch.autocast(z.device.type, enabled=False):
        similarity = z @ z.T
    # a product, not a selection by the mask, whose size the host would have to wait for
    return similarity.masked_fill(~same, 0).sum() / same.sum()


class Probabilities(NamedTuple):
    """The mass that a loss's softmax puts on some anchors' positives; each `[n]`.

    Attributes:
        p_sup: of all class centers together (the paper's P_sup); 0 without centers.
        center: of the anchor's own center; 0 without centers.
        pair: of one positive sample, the mean over them; NaN where there is none.
        positives: how many samples these are, |P(i)|.
    """

    p_sup: Tensor
    center: Tensor
    pair: Tensor
    positives: Tensor


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
    """Probabilities in the softmax of `paco`, or of `sup_con`, for the first rows of a batch.

    That of z is psi(z) / (sum_{c in C} psi(c) + gamma sum_{a in A(i)} psi(a)): those of centers sum to P_sup,
    those of samples to (1 - P_sup) / gamma. Images without a label are contrasts, and have no positives.

    Args:
        q: `[N, D]`, the first n of which are the anchors; this and the rest as in `sup_con` and `paco`.
        k: the second view's keys `[N, D]`.
        labels: classes `[N]`.
        queue: earlier keys `[K, D]`.
        queue_labels: their classes `[K]`; -1 marks an empty slot.
        centers: log psi(c), the centers' logits with prior and temperature `[N, C]`; None for `sup_con`.
        tau: temperature of the samples' scores.
        gamma: weight of the samples in the denominator.
        others: what other ranks have of both views `[M, D]`, and its classes `[M]`.
        anchors: n at most; all of A(i) is contrasted with each.

    Source: Cui et al. 2021, https://arxiv.org/abs/2107.12028, section 3.
    """
    check_positive(tau=tau)
    parts = [(q, labels), (k, labels), (queue, queue_labels), *([] if others is None else [others])]
    members = to_same_precision(*(rows for rows, _ in parts))
    scaled, own = members[0][:anchors] / tau, labels[:anchors, None]
    with torch.autocast(q.device.type, enabled=False):
        scores = torch.cat([scaled @ rows.T for rows in members], dim=1)
    theirs = torch.cat([of_rows for _, of_rows in parts])
    # of the queue, slots without a label are empty; images of this step without one are contrasts
    present = [torch.ones_like(of_rows, dtype=torch.bool) for _, of_rows in parts]
    present[2] = queue_labels >= 0
    usable = torch.cat(present).expand_as(scores).clone()
    usable.fill_diagonal_(False)  # the first columns are the batch's own: an anchor is no contrast for itself
    log_sum = scores.masked_fill(~usable, -torch.inf).logsumexp(dim=1)
    p_sup = center = torch.zeros_like(log_sum)
    if centers is not None:
        centers = to_float32(centers[:anchors])
        log_centers = centers.logsumexp(dim=1)
        log_gamma = math.log(gamma) if gamma > 0 else -math.inf
        log_sum = torch.logaddexp(log_centers, log_sum + log_gamma)
        p_sup = (log_centers - log_sum).exp()
        center = (centers.gather(1, labels[:anchors, None]).squeeze(1) - log_sum).exp()
    same = (own == theirs) & (own >= 0) & usable
    positives = same.sum(dim=1)
    pair = (scores - log_sum[:, None]).masked_fill(~same, -torch.inf).exp().sum(dim=1) / positives
    return Probabilities(p_sup, center, pair, positives)


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
    check_positive(gamma=gamma)
    total = beta + alpha * positives
    p_sup = beta / total
    return Probabilities(p_sup, (1 - label_smoothing) * p_sup, alpha / (gamma * total), positives)
