"""Every equation once, in pure torch.

Conventions. N: anchors in the batch; K: keys in the queue; D: projection; C: classes. `q` and `k` are
unit rows `[N, D]`, `queue` is `[K, D]`. Losses are means over anchors, computed in float32 or better
whatever the inputs' precision, and differentiable in every floating-point argument. `queue_labels` holds
-1 in slots that are not filled yet; unlabelled losses take `valid` `[K]` for the same purpose.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "alignment",
    "balanced_softmax",
    "disambiguate",
    "ema_update",
    "extrapolate",
    "hard_contrastive",
    "hard_simple",
    "info_nce",
    "interpolate",
    "log_prior",
    "margin_contrastive",
    "move_prototypes",
    "nt_xent",
    "paco",
    "sample_beta",
    "score_moments",
    "simple_contrastive",
    "sup_con",
    "tolerance",
    "uniformity",
]


def _full(x: Tensor) -> Tensor:
    """Raise half precisions to float32: an exponential of s / 0.01 needs the digits."""
    return x if x.dtype == torch.float64 else x.float()


def _scores(q: Tensor, k: Tensor, queue: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return positive scores [N], negative scores [N, K] and the mask of usable negatives [K]."""
    q, k, queue = _full(q), _full(k), _full(queue)
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
    z = torch.cat([_full(a), _full(b)])
    with torch.autocast(z.device.type, enabled=False):
        logits = z @ z.T / tau
    other_view = torch.arange(2 * n, device=z.device).roll(n)
    itself = torch.eye(2 * n, dtype=torch.bool, device=z.device)
    return F.cross_entropy(logits.masked_fill(itself, -torch.inf), other_view)


def _supervised_contrast(
    q: Tensor, k: Tensor, labels: Tensor, queue: Tensor, queue_labels: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores of every anchor against A(i), who is in A(i) and who is in P(i): each `[N, 2N + K]`.

    A(i) is both views of the batch and the filled queue, without the anchor itself; P(i) are those in
    A(i) that share the anchor's label.
    """
    q, k, queue = _full(q), _full(k), _full(queue)
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
    centers = (_full(center_logits) + log_prior) / center_tau
    # gamma = 0 takes the samples out of the denominator: log(0) is the right thing to add
    log_gamma = math.log(gamma) if gamma > 0 else -math.inf
    in_denominator = (sample_logits + log_gamma).masked_fill(~contrast, -torch.inf)
    log_sum = torch.cat([centers, in_denominator], dim=1).logsumexp(dim=1)

    center = centers.gather(1, labels[:, None]).squeeze(1)
    if label_smoothing > 0:
        others = (centers.sum(dim=1) - center) / (centers.shape[1] - 1)
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
    return F.cross_entropy(_full(logits) + log_prior(class_counts), labels, label_smoothing=label_smoothing)


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
    squared = (_full(a) - _full(b)).square().sum(dim=1)
    if squared_margin:
        repel = (margin - squared).clamp(min=0)
    else:
        # the root's gradient is infinite at 0, where two different images coincide
        distance = squared.clamp(min=torch.finfo(squared.dtype).tiny).sqrt()
        repel = (margin - distance).clamp(min=0).square()
    return 0.5 * torch.where(same, squared, repel).mean()


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


def sample_beta(
    alpha: float,
    shape: Sequence[int],
    *,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw from the symmetric Beta(alpha, alpha), alpha > 1/2, in closed form from two uniforms.

    X = 1/2 + 1/2 sqrt(1 - U^(2 / (2 alpha - 1))) cos(2 pi V), exact; one kernel on any device.

    Args:
        alpha: both parameters of the distribution, above 1/2.
        shape: of the result.
        device: of the result.
        generator: source of the uniforms, on the same device.

    Returns:
        float32 samples in [0, 1].

    Raises:
        ValueError: if alpha is 1/2 or less, where the closed form does not hold.

    Source: Ulrich 1984 (a polar method for Student's t), applied to the symmetric Beta as in Devroye 1996,
    "Random variate generation in one line of code".
    """
    if not alpha > 0.5:
        raise ValueError(f"alpha: found {alpha}, expected a number above 0.5")
    u, v = torch.rand((2, *shape), device=device, generator=generator)
    radius = (1 - u.pow(2 / (2 * alpha - 1))).clamp(min=0).sqrt()
    samples: Tensor = 0.5 + 0.5 * radius * torch.cos(2 * math.pi * v)
    return samples


def extrapolate(q: Tensor, k: Tensor, lam: Tensor | float) -> tuple[Tensor, Tensor]:
    """Push a positive pair apart: q^ = lam q + (1 - lam) k, k^ = lam k + (1 - lam) q, lam >= 1.

    For unit rows and one lam per pair, q^.k^ = 2 lam (1 - lam) (1 - q.k) + q.k <= q.k: a harder positive.

    Args:
        q: queries `[N, D]`.
        k: keys `[N, D]`.
        lam: coefficient, broadcast to `[N, D]`.

    Returns:
        The transformed pair, not renormalised.

    Source: Zhu et al. 2021, https://arxiv.org/abs/2108.02982, equations 3 to 5.
    """
    return lam * q + (1 - lam) * k, lam * k + (1 - lam) * q


def interpolate(queue: Tensor, lam: Tensor | float, perm: Tensor) -> Tensor:
    """Mix each negative with another: lam Z + (1 - lam) Z[perm].

    Args:
        queue: negatives `[K, D]`.
        lam: coefficient in [0, 1], broadcast to `[K, D]`.
        perm: a permutation of the rows `[K]`.

    Returns:
        The mixed negatives `[K, D]`, not renormalised.

    Source: https://arxiv.org/abs/2108.02982, equation 6.
    """
    return torch.lerp(queue[perm], queue, torch.as_tensor(lam, dtype=queue.dtype, device=queue.device))


@torch.no_grad()
def ema_update(teacher_tensors: Sequence[Tensor], student_tensors: Sequence[Tensor], momentum: float) -> None:
    """Move the teacher toward the student, in place: t <- momentum t + (1 - momentum) s.

    Args:
        teacher_tensors: tensors to change.
        student_tensors: tensors to follow, in the same order.
        momentum: 1 keeps the teacher, 0 copies the student.

    Source: https://arxiv.org/abs/1911.05722, equation 2.
    """
    torch._foreach_lerp_(list(teacher_tensors), list(student_tensors), 1 - momentum)


def uniformity(z: Tensor, t: float = 2.0) -> Tensor:
    """Log of the mean Gaussian potential of pairs, log E exp(-t |x - y|^2): lower is more uniform.

    Args:
        z: unit rows `[N, D]`, N >= 2.
        t: the potential's scale.

    Returns:
        `[]`, between -4 t and 0. Source: Wang and Isola 2020, https://arxiv.org/abs/2005.10242.
    """
    z = _full(z)
    potentials: Tensor = F.pdist(z).square().mul(-t)
    return potentials.logsumexp(dim=0) - math.log(len(potentials))


def alignment(a: Tensor, b: Tensor) -> Tensor:
    """Mean squared distance of positive pairs, E |a - b|^2, for rows `[N, D]`; `[]`.

    Source: https://arxiv.org/abs/2005.10242.
    """
    return (_full(a) - _full(b)).square().sum(dim=1).mean()


def score_moments(q: Tensor, z: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of all scores q_i . z_j without forming them.

    E[s] = E[q] . E[z] and E[s^2] = <E[q q^T], E[z z^T]>, so memory is D^2 instead of N K.

    Args:
        q: queries `[N, D]`.
        z: negatives `[K, D]`.
        valid: which rows of `z` count `[K]`, bool.

    Returns:
        `(mean [], variance [])`, NaN when no row counts.
    """
    q, z = _full(q), _full(z) * valid[:, None]
    count = valid.sum()
    with torch.autocast(q.device.type, enabled=False):
        mean = q.mean(dim=0) @ (z.sum(dim=0) / count)
        second = ((q.T @ q / len(q)) * (z.T @ z / count)).sum()
    return mean, second - mean.square()


def tolerance(z: Tensor, labels: Tensor) -> Tensor:
    """Mean similarity E f(x).f(y) over pairs x != y of one class.

    Args:
        z: unit rows `[N, D]`.
        labels: classes `[N]`.

    Returns:
        `[]`; NaN when no two rows share a class. Source: https://arxiv.org/abs/2012.09740, equation 9.
    """
    z = _full(z)
    same = labels[:, None] == labels
    same.fill_diagonal_(False)
    with torch.autocast(z.device.type, enabled=False):
        similarity: Tensor = (z @ z.T)[same]
    return similarity.mean()
