"""Measures of an embedding, and of where a loss's softmax puts its mass."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.functional.checks import check_positive, to_float32, to_same_precision


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


def relative_penalty(scores: Tensor, *, tau: float | Tensor, valid: Tensor | None = None) -> Tensor:
    """Share of each negative in the gradient that pushes an anchor's negatives away `[N, K]`.

    r_ij = exp(s_ij/tau) / sum_k exp(s_ik/tau): uniform for large tau, on the hardest negative for small tau.
    Scores `[N, K]` that are not `valid` (broadcast to them) have share 0.
    Source: https://arxiv.org/abs/2012.09740, section 3.2.
    """
    check_positive(tau=tau)
    logits = to_float32(scores) / tau
    if valid is not None:
        logits = logits.masked_fill(~valid, -torch.inf)
    return logits.softmax(dim=1)


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

    That of z is psi(z) / (sum_{c in C} psi(c) + gamma sum_{a in A(i)} psi(a)): those of centers sum to P_sup,
    those of samples to (1 - P_sup) / gamma. `centers` are log psi(c), the logits with prior and temperature
    `[N, C]`; None for `sup_con`. Images without a label are contrasts, and have no positives. All other
    arguments are those of the loss.
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
    pair alpha / (gamma (beta + alpha |P|)); gamma > 0: without samples there is no minimum. The paper's
    1 / (1 + alpha K*) and alpha / (1 + alpha K*) have beta = gamma = 1.
    """
    check_positive(gamma=gamma)
    total = beta + alpha * positives
    p_sup = beta / total
    return Probabilities(p_sup, (1 - label_smoothing) * p_sup, alpha / (gamma * total), positives)
