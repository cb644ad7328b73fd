"""Supervised contrastive losses, with and without class centers; partial labels; distillation."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.errors import ArgumentError
from zoo.functional._streaming import log_sum_exp
from zoo.functional.checks import check_classes, check_positive, check_range, to_float32, to_same_precision

Others = tuple[Tensor, Tensor] | None


def _contrast(
    q: Tensor,
    k: Tensor,
    labels: Tensor,
    queue: Tensor,
    queue_labels: Tensor,
    tau: float | Tensor,
    others: Others,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log sum_{a in A(i)} exp(q_i.z_a / tau), sum_{p in P(i)} q_i.z_p / tau, |P(i)|, each `[N]`.

    A(i) and P(i) as in `sup_con`, P(i) empty for an unlabelled anchor; nothing of size N x K is allocated.
    """
    more = [] if others is None else [others]
    q, k, queue, *theirs = to_same_precision(q, k, queue, *(rows for rows, _ in more))
    scaled = q / tau
    # each part of A(i) separately, so that the queue's gradient need not be computed
    sums = [log_sum_exp(scaled, q, itself=True), log_sum_exp(scaled, k)]
    sums += [log_sum_exp(scaled, queue, usable=queue_labels >= 0)]
    sums += [log_sum_exp(scaled, rows) for rows in theirs]

    # The scores with a class's rows sum to the score with the rows' sum. A class is indexed by its place in
    # the batch's sorted labels, so memory does not depend on the number of classes; N is for all others.
    ordered = labels.sort().values
    of_class, counts = q.new_zeros(len(q) + 1, q.shape[1]), q.new_zeros(len(q) + 1)
    all_classes = (labels, labels, queue_labels, *(classes for _, classes in more))
    for rows, classes in zip((q, k, queue, *theirs), all_classes, strict=True):
        place = torch.searchsorted(ordered, classes.contiguous()).clamp(max=len(ordered) - 1)
        place = torch.where((ordered[place] == classes) & (classes >= 0), place, len(ordered))
        of_class = of_class.index_add(0, place, rows)
        counts.index_add_(0, place, torch.ones_like(place, dtype=counts.dtype))
    own = torch.where(labels >= 0, torch.searchsorted(ordered, labels.contiguous()), len(ordered))
    positives = (scaled * (of_class[own] - q)).sum(dim=1)
    return torch.stack(sums).logsumexp(dim=0), positives, torch.where(labels >= 0, counts[own] - 1, 0)


def sup_con(
    q: Tensor,
    k: Tensor,
    labels: Tensor,
    queue: Tensor,
    queue_labels: Tensor,
    *,
    tau: float | Tensor,
    others: Others = None,
) -> Tensor:
    """Supervised contrastive loss with MoCo's queue; the mean over positives is outside the logarithm.

    L_i = -1/|P(i)| sum_{p in P(i)} log exp(q_i.z_p/tau) / sum_{a in A(i)} exp(q_i.z_a/tau), where A(i) is
    both views of the batch and the queue without the anchor itself, and P(i) those of the anchor's class.

    Rows of `q` `[N, D]` are contrasts for each other, too, with gradient. Both views of an unlabelled image
    (label -1) are contrasts but never positives, not even of each other. The loss `[]` is the mean over the
    labelled anchors; 0 if there are none.
    Source: Khosla et al. 2020, https://arxiv.org/abs/2004.11362, equation 2.
    """
    check_positive(tau=tau)
    log_sum, positives, count = _contrast(q, k, labels, queue, queue_labels, tau, others)
    # exactly 1 for each anchor if all are labelled; boolean indexing would need a device sync
    weight = (labels >= 0).to(log_sum.dtype)
    weight = weight * (len(labels) / weight.sum().clamp(min=1))
    return ((log_sum - positives / count.clamp(min=1)) * weight).mean()


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
    others: Others = None,
) -> Tensor:
    """Parametric contrastive loss: SupCon whose softmax also includes one learnable center per class.

    L_i = -sum_{z in P(i) + {c_y}} w(z) log psi(z) / (sum_{c in C} psi(c) + gamma sum_{a in A(i)} psi(a)),
    psi(sample) = exp(q_i.z/tau), psi(center c) = exp((center_logits[i, c] + log_prior[c]) / center_tau),
    w = alpha for samples and beta for the own center; A(i) and P(i) as in `sup_con`. No label may be -1.

    - `center_logits` `[N, C]`: `c . F(x)` before the prior, not divided by tau.
    - `log_prior` `[C]`: log class frequencies (the rebalanced centers); zeros for plain centers.
    - `reduction` over positives: "mean" divides by the weights' sum beta + alpha |P(i)| as the authors' code
      does, "sum" is the paper's equation.
    - `label_smoothing`: share of beta that moves from the own center to the C - 1 others, equally. (Unlike
      torch's smoothing, which gives the own class a part of that share.)
    Source: Cui et al. 2021, https://arxiv.org/abs/2107.12028, equations 6 and 10; other arguments are from
    https://github.com/dvlab-research/Parametric-Contrastive-Learning (GPaCo/LT/losses.py).
    """
    if reduction not in ("mean", "sum"):
        raise ArgumentError(f'reduction: found {reduction!r}, expected "mean" or "sum"')
    check_positive(tau=tau, center_tau=center_tau)
    check_range(0, alpha=alpha, beta=beta, gamma=gamma)
    check_range(0, 1, label_smoothing=label_smoothing)
    check_classes(labels, center_logits.shape[1])
    samples, positives, count = _contrast(q, k, labels, queue, queue_labels, tau, others)
    centers = (to_float32(center_logits) + log_prior) / center_tau
    # gamma = 0 removes the samples from the denominator: log(0) = -inf is the correct term
    log_gamma = math.log(gamma) if gamma > 0 else -math.inf
    log_sum = torch.logaddexp(centers.logsumexp(dim=1), samples + log_gamma)

    center = centers.gather(1, labels[:, None]).squeeze(1)
    if label_smoothing > 0:
        other_centers = (centers.sum(dim=1) - center) / max(centers.shape[1] - 1, 1)
        center = (1 - label_smoothing) * center + label_smoothing * other_centers
    total = beta * (center - log_sum) + alpha * (positives - count * log_sum)
    if reduction == "mean":
        total = total / (beta + alpha * count)
    return -total.mean()


def balanced_contrast(
    a: Tensor, b: Tensor, labels: Tensor, prototypes: Tensor, *, tau: float | Tensor, others: Others = None
) -> Tensor:
    """Supervised contrastive loss in which every class counts equally, whatever its number of images.

    L_i = -mean_{p in A_y(i)} log exp(z_i.z_p/tau) / sum_{j in C} mean_{a in A_j(i)} exp(z_i.z_a/tau) over the
    2N anchors z = [a, b], each `[N, D]`, where A_j(i) is all of class j but the anchor itself: both views of
    its images and its row of `prototypes` `[C, D]` (class-complement: every class is in every batch). The
    denominator has each class's mean instead of its sum (class-averaging). No label `[N]` may be -1.
    Source: Zhu et al. 2022, https://arxiv.org/abs/2207.09052; FlamieZhu/Balanced-Contrastive-Learning.
    """
    check_positive(tau=tau)
    check_classes(labels, len(prototypes))
    rows, theirs = others or (a[:0], labels[:0])
    a, b, prototypes, rows = to_same_precision(a, b, prototypes, rows)
    anchors, own = torch.cat([a, b]), labels.repeat(2)
    contrasts = torch.cat([anchors, rows, prototypes])
    classes = torch.cat([own, theirs, torch.arange(len(prototypes), device=labels.device)])
    sizes = anchors.new_zeros(len(prototypes)).index_add_(0, classes, torch.ones_like(classes, dtype=a.dtype))
    same = own[:, None] == classes
    # the own class has one contrast less, the anchor; its other view and the prototype always remain
    log_sizes = (sizes[classes] - same.to(a.dtype)).clamp(min=1).log()
    with torch.autocast(a.device.type, enabled=False):
        scores = (anchors / tau) @ contrasts.T
    itself = torch.zeros_like(same).fill_diagonal_(True)
    log_sum = (scores - log_sizes).masked_fill(itself, -torch.inf).logsumexp(dim=1)
    positives = (scores * (same & ~itself)).sum(dim=1) / (sizes[own] - 1)
    return (log_sum - positives).mean()


def move_prototypes(prototypes: Tensor, q: Tensor, labels: Tensor, momentum: float) -> Tensor:
    """Return the prototypes `[C, D]` after an EMA update by each row `[N, D]` of their class, one by one.

    mu_c <- momentum mu_c + (1 - momentum) q_i for each row i of class c in turn, then mu_c <- mu_c / |mu_c|
    once at the end, as in the authors' code. A class without a prototype yet (zeros) gets one from its first
    rows; the prototype of a class without rows does not change.
    Source: Wang et al. 2022 (PiCO), https://arxiv.org/abs/2201.08984, equation 6.
    """
    # not torch's one_hot, which syncs with the device to check the labels
    classes = torch.arange(len(prototypes), device=labels.device)
    member = (labels[:, None] == classes).to(prototypes.dtype)
    # row i is multiplied by momentum once for every later row of its class
    later = member.sum(dim=0) - member.cumsum(dim=0)
    weight = (1 - momentum) * momentum**later * member
    with torch.autocast(q.device.type, enabled=False):
        added = weight.T @ q.to(prototypes.dtype)
    moved = momentum ** member.sum(dim=0)[:, None] * prototypes + added
    return F.normalize(moved, dim=1)


def disambiguate(targets: Tensor, prototype_scores: Tensor, candidates: Tensor, momentum: float) -> Tensor:
    """Return label distributions `[N, C]` moved toward the candidate class with the nearest prototype.

    s <- momentum s + (1 - momentum) onehot(argmax_{c in Y} q.mu_c), with scores q.mu_c `[N, C]` and
    candidate classes Y `[N, C]`, bool, at least one per row.
    Source: https://arxiv.org/abs/2201.08984, equation 4.
    """
    nearest = prototype_scores.masked_fill(~candidates, -torch.inf).argmax(dim=1, keepdim=True)
    return (momentum * targets).scatter_add(1, nearest, torch.full_like(targets[:, :1], 1 - momentum))


def distillation(logits: Tensor, teacher_logits: Tensor, *, tau: float) -> Tensor:
    """KL divergence of a student from the mean of its teachers: tau^2 KL(p || s).

    s = softmax(z / tau) for the student's logits z `[N, C]`, p = mean_t softmax(v_t / tau) for the logits v
    `[T, N, C]` of T teachers. The factor tau^2 compensates for gradients in z that scale with 1 / tau^2.
    Source: Hinton, Vinyals and Dean 2015, https://arxiv.org/abs/1503.02531, sections 1 and 2.
    """
    check_positive(tau=tau)
    if teacher_logits.ndim != 3 or teacher_logits.shape[1:] != logits.shape or not len(teacher_logits):
        raise ArgumentError(f"teacher_logits: found {[*teacher_logits.shape]}, expected [T, *logits.shape]")
    logits, teacher_logits = to_same_precision(logits, teacher_logits)
    log_p = (teacher_logits / tau).log_softmax(dim=2).logsumexp(dim=0) - math.log(len(teacher_logits))
    student = (logits / tau).log_softmax(dim=1)
    return tau**2 * F.kl_div(student, log_p, reduction="batchmean", log_target=True)
