"""Losses that contrast instances: no labels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.functional.precision import full


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
    """InfoNCE against a queue of negatives.

    L = -log exp(q.k/tau) / (exp(q.k/tau) + sum_z exp(q.z/tau)); the positive is in the denominator once.

    Args:
        q: queries `[N, D]`, unit rows.
        k: their positive keys `[N, D]`.
        queue: negative keys `[K, D]`.
        tau: temperature.
        valid: which queue rows are filled `[K]`, bool; all when None.

    Returns:
        The mean over the N anchors, `[]`.

    Source: He et al. 2020, https://arxiv.org/abs/1911.05722, equation 1.
    """
    positive, negative, usable = _scores(q, k, queue, valid)
    return _contrast(positive, negative, usable, tau)


def nt_xent(a: Tensor, b: Tensor, *, tau: float | Tensor) -> Tensor:
    """InfoNCE with the batch's other images as negatives, SimCLR's form.

    L = -log exp(z_i.z_j/tau) / sum_{m != i} exp(z_i.z_m/tau) over all 2N anchors i, where z = a then b and
    j is the other view of i's image.

    Args:
        a: first views `[N, D]`, unit rows.
        b: second views of the same images `[N, D]`.
        tau: temperature.

    Returns:
        The mean over the 2N anchors, `[]`.

    Source: Chen et al. 2020, https://arxiv.org/abs/2002.05709, equation 1.
    """
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
    """The simple loss -s_ii + weight * sum_j s_ij: every negative is pushed alike.

    Args:
        q: queries `[N, D]`.
        k: positive keys `[N, D]`.
        queue: negatives `[K, D]`.
        weight: lambda, the weight of each negative.
        valid: which queue rows are filled `[K]`.

    Returns:
        The mean over the N anchors, `[]`.

    Source: Wang and Liu 2021, https://arxiv.org/abs/2012.09740, section 3.
    """
    positive, negative, usable = _scores(q, k, queue, valid)
    return (weight * torch.where(usable, negative, 0).sum(dim=1) - positive).mean()


def _hardest(negative: Tensor, usable: Tensor, keep: float) -> Tensor:
    """Mask [N, K] of the usable negatives above each anchor's (1 - keep) quantile of scores."""
    if not 0 < keep <= 1:
        raise ValueError(f"keep: found {keep}, expected a fraction in (0, 1]")
    usable = usable.expand_as(negative)
    if keep == 1 or negative.shape[1] == 0:
        return usable
    scores = negative.detach().masked_fill(~usable, torch.nan)
    # by hand: torch.quantile refuses more than 16M elements. Between two scores the quantile's value does
    # not matter: the upper of them is the least that reaches it
    ordered = scores.sort(dim=1).values  # NaN sorts last
    position = (1 - keep) * (usable.sum(dim=1, keepdim=True) - 1).clamp(min=0).to(scores.dtype)
    threshold = ordered.gather(1, position.ceil().long())
    return usable & (negative.detach() >= threshold)


def hard_contrastive(
    q: Tensor, k: Tensor, queue: Tensor, *, tau: float | Tensor, keep: float, valid: Tensor | None = None
) -> Tensor:
    """InfoNCE over only the hardest fraction `keep` of each anchor's negatives.

    A negative counts when its score is not below the (1 - keep) quantile of its anchor's scores.
    Arguments and result as `info_nce`. Source: https://arxiv.org/abs/2012.09740, section 3.
    """
    positive, negative, usable = _scores(q, k, queue, valid)
    return _contrast(positive, negative, _hardest(negative, usable, keep), tau)


def hard_simple(
    q: Tensor, k: Tensor, queue: Tensor, *, weight: float, keep: float, valid: Tensor | None = None
) -> Tensor:
    """The simple loss over only the hardest fraction `keep` of each anchor's negatives.

    Arguments and result as `simple_contrastive`. Source: https://arxiv.org/abs/2012.09740, section 3.
    """
    positive, negative, usable = _scores(q, k, queue, valid)
    hardest = _hardest(negative, usable, keep)
    return (weight * torch.where(hardest, negative, 0).sum(dim=1) - positive).mean()


def margin_contrastive(
    a: Tensor, b: Tensor, same: Tensor, *, margin: float, squared_margin: bool = False
) -> Tensor:
    """The early margin loss on pairs: same pairs attract, others repel up to a margin.

    L = (1 - y) d^2 / 2 + y max(0, margin - d)^2 / 2 with y = 0 for the same class and d = |a - b|.

    Args:
        a: first of each pair `[N, D]`.
        b: second of each pair `[N, D]`.
        same: whether the pair is of one class `[N]`, bool.
        margin: distance (or squared distance) beyond which other pairs are left alone.
        squared_margin: repel with max(0, margin - d^2) / 2 instead, on the squared distance.

    Returns:
        The mean over the N pairs, `[]`.

    Source: Hadsell, Chopra and LeCun 2006, equation 4.
    """
    squared = (full(a) - full(b)).square().sum(dim=1)
    if squared_margin:
        repel = (margin - squared).clamp(min=0)
    else:
        # the root's gradient is infinite at 0, where two different images coincide
        distance = squared.clamp(min=torch.finfo(squared.dtype).tiny).sqrt()
        repel = (margin - distance).clamp(min=0).square()
    return 0.5 * torch.where(same, squared, repel).mean()
