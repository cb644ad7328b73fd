"""Instance-level contrastive losses: without labels, or only with whether two images share a class."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from zoo.errors import ArgumentError
from zoo.functional._streaming import log_sum_exp, row_blocks
from zoo.functional.checks import check_pairs, check_positive, to_float32, to_same_precision

KEPT = 2**22  # up to this many scores of a batch are kept for the backward pass, which is faster


def info_nce(
    q: Tensor, k: Tensor, queue: Tensor, *, tau: float | Tensor, valid: Tensor | None = None
) -> Tensor:
    """InfoNCE of queries `[N, D]` and keys `[N, D]` against a queue of negatives `[K, D]`; `[]`.
    L = -log exp(q.k/tau) / (exp(q.k/tau) + sum_z exp(q.z/tau)); the positive is in the denominator once.
    Source: He et al. 2020, https://arxiv.org/abs/1911.05722, equation 1.
    """
    check_positive(tau=tau)
    check_pairs(q, k)
    q, k, queue = to_same_precision(q, k, queue)
    q = q / tau
    negatives = log_sum_exp(q, queue, usable=valid)
    # log(e^positive + e^negatives) - positive, without cancellation
    return -F.logsigmoid((q * k).sum(dim=1) - negatives).mean()


def in_batch_info_nce(
    q: Tensor, k: Tensor, *, tau: float | Tensor, both_views: bool = False, others: Tensor | None = None
) -> Tensor:
    """InfoNCE with the batch's other images as negatives, for two views `[N, D]`; `[]`.

    L = -log exp(q_i.k_i/tau) / sum_j exp(q_i.k_j/tau): MoCo v3's form (https://arxiv.org/abs/2104.02057,
    algorithm 1) without its factor 2 tau. `others` `[M, D]` are the other ranks' keys.

    With `both_views`: SimCLR's NT-Xent (https://arxiv.org/abs/2002.05709, equation 1) over the 2N anchors
    z = [q, k], L = -log exp(z_i.z_p/tau) / sum_{j != i} exp(z_i.z_j/tau), p being i's other view.
    """
    check_positive(tau=tau)
    check_pairs(q, k)
    q, k = to_same_precision(q, k)
    keys = k
    if both_views:
        q = keys = torch.cat([q, k])
    scaled = q / tau
    rows = len(q)
    if others is None and rows * len(keys) <= KEPT:
        with torch.autocast(q.device.type, enabled=False):  # which would round the scores
            scores = scaled @ keys.t()
        if both_views:  # hidden from autograd: softmax has no gradient there
            scores.detach().diagonal().fill_(-torch.inf)
        return F.cross_entropy(scores, torch.arange(rows, device=q.device).roll(rows - len(k)))
    log_sum = log_sum_exp(scaled, keys, itself=both_views)
    if others is not None:
        log_sum = torch.logaddexp(log_sum, log_sum_exp(*to_same_precision(scaled, others)))
    positives = keys.roll(len(k), dims=0) if both_views else k
    return (log_sum - (scaled * positives).sum(dim=1)).mean()


def simple_contrastive(
    q: Tensor, k: Tensor, queue: Tensor, *, weight: float, valid: Tensor | None = None
) -> Tensor:
    """The simple loss -s_ii + weight * sum_j s_ij: repels all negatives equally; shapes as in `info_nce`.
    Source: Wang and Liu 2021, https://arxiv.org/abs/2012.09740, section 3.
    """
    q, k, queue = to_same_precision(q, k, queue)
    # the sum of scores is the score of the sum
    negatives = queue.sum(dim=0) if valid is None else torch.where(valid[:, None], queue, 0).sum(dim=0)
    return (q * (weight * negatives - k)).sum(dim=1).mean()


def hard_contrastive(
    q: Tensor, k: Tensor, queue: Tensor, *, tau: float | Tensor, keep: float, valid: Tensor | None = None
) -> Tensor:
    """InfoNCE over only the hardest fraction `keep` (0 to 1) of each anchor's negatives.
    A negative counts when its score is not below the (1 - keep) quantile of its anchor's scores.
    Other arguments as in `info_nce`. Source: https://arxiv.org/abs/2012.09740, section 3.
    """
    check_positive(tau=tau)
    return _over_hardest(q, k, queue, valid, keep, tau=tau)


def hard_simple(
    q: Tensor, k: Tensor, queue: Tensor, *, weight: float, keep: float, valid: Tensor | None = None
) -> Tensor:
    """The simple loss over only the hardest fraction `keep` (0 to 1) of each anchor's negatives.
    Other arguments as in `simple_contrastive`. Source: https://arxiv.org/abs/2012.09740, section 3.
    """
    return _over_hardest(q, k, queue, valid, keep, weight=weight)


def _over_hardest(
    q: Tensor,
    k: Tensor,
    queue: Tensor,
    valid: Tensor | None,
    keep: float,
    *,
    tau: float | Tensor = 1.0,
    weight: float | None = None,
) -> Tensor:
    """Return InfoNCE over the hardest negatives, or the simple loss if `weight` is given, block by block."""
    if not 0 < keep <= 1:
        raise ArgumentError(f"keep: found {keep}, expected a fraction in (0, 1]")
    q, k, queue = to_same_precision(q, k, queue)
    usable = torch.ones_like(queue[:, 0], dtype=torch.bool) if valid is None else valid

    def of_block(q: Tensor, k: Tensor, queue: Tensor) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):
            negative = q @ queue.T
        scores = negative.detach().masked_fill(~usable, torch.nan)
        # torch.quantile is limited to 16M elements; the upper of the two scores it interpolates is enough
        ordered = scores.sort(dim=1).values  # NaN sorts last
        position = ((1 - keep) * (usable.sum() - 1).clamp(min=0).to(scores.dtype)).ceil().long()
        hardest = usable & (scores >= ordered.gather(1, position.expand(len(scores), min(1, len(queue)))))
        positive = (q * k).sum(dim=1)
        if weight is not None:
            return weight * torch.where(hardest, negative, 0).sum(dim=1) - positive
        # divide first: the gradient of -inf / tau with respect to a learned tau is NaN
        negative = (negative / tau).masked_fill(~hardest, -torch.inf)
        positive = positive / tau
        return torch.cat([positive[:, None], negative], dim=1).logsumexp(dim=1) - positive

    # backward recomputes each block; // 4: more rows than a cache holds, as sorting outweighs its benefit
    losses = [
        checkpoint(of_block, q[rows], k[rows], queue, use_reentrant=False, preserve_rng_state=False)
        for rows in row_blocks(len(q), len(queue) // 4, q.device)
    ]
    return torch.cat(losses).mean()


def margin_contrastive(
    a: Tensor, b: Tensor, same: Tensor, *, margin: float, squared_margin: bool = False
) -> Tensor:
    """The margin loss on pairs: pairs of one class attract, others repel up to a margin.

    L = (1 - y) d^2 / 2 + y max(0, margin - d)^2 / 2 with y = 0 for the same class and d = |a - b|.

    `a` and `b` `[N, D]` are the two rows of each pair; `same` `[N]`, bool or 0 and 1, marks pairs of one
    class (the opposite of the paper's y). `squared_margin`: repel with max(0, margin - d^2) / 2 instead.
    Source: Hadsell, Chopra and LeCun 2006, equation 4.
    """
    check_positive(margin=margin)
    squared = (to_float32(a) - to_float32(b)).square().sum(dim=1)
    if squared_margin:
        repel = (margin - squared).clamp(min=0)
    else:
        # sqrt has an infinite gradient at 0, where two different images coincide
        distance = squared.clamp(min=torch.finfo(squared.dtype).tiny).sqrt()
        repel = (margin - distance).clamp(min=0).square()
    return 0.5 * torch.where(same.bool(), squared, repel).mean()
