"""Slow references in float64, written from the equations with loops over anchors, positives and negatives.

Nothing here imports the code under test. `tau` may be a number or a tensor; labels of -1 are empty slots.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

Number = float | Tensor


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a.double() * b.double()).sum()


def _mean(losses: list[Tensor]) -> Tensor:
    return torch.stack(losses).mean()


def _exp(score: Tensor, tau: Number) -> Tensor:
    return (score / (tau.double() if isinstance(tau, Tensor) else tau)).exp()


def info_nce(q: Tensor, k: Tensor, queue: Tensor, tau: Number) -> Tensor:
    """Mean over i of -log e^{q_i.k_i/tau} / (e^{q_i.k_i/tau} + sum_z e^{q_i.z/tau})."""
    return hard_info_nce(q, k, queue, tau, keep=1.0)


def nt_xent(a: Tensor, b: Tensor, tau: Number) -> Tensor:
    """Equation 1 of SimCLR over the pairs (2k-1, 2k): both orders of each pair, 2N terms."""
    rows = [row for pair in zip(a, b, strict=True) for row in pair]

    def term(i: int, j: int) -> Tensor:
        total = sum(_exp(_dot(rows[i], rows[m]), tau) for m in range(len(rows)) if m != i)
        return -(_exp(_dot(rows[i], rows[j]), tau) / total).log()

    return _mean([x for n in range(len(a)) for x in (term(2 * n, 2 * n + 1), term(2 * n + 1, 2 * n))])


def _contrasts(
    i: int, q: Tensor, k: Tensor, labels: Tensor, queue: Tensor, queue_labels: Tensor
) -> list[tuple[Tensor, int]]:
    """A(i): (vector, label) of both views and the queue, without the anchor and without empty slots."""
    members = [(q[j], int(labels[j])) for j in range(len(q)) if j != i]
    members += [(k[j], int(labels[j])) for j in range(len(k))]
    members += [(queue[j], int(queue_labels[j])) for j in range(len(queue)) if queue_labels[j] >= 0]
    return members


def sup_con(q: Tensor, k: Tensor, labels: Tensor, queue: Tensor, queue_labels: Tensor, tau: Number) -> Tensor:
    """Mean over labelled anchors of the mean over positives of -log softmax over A(i)."""
    losses = []
    for i in range(len(q)):
        if int(labels[i]) < 0:
            continue
        members = [(_exp(_dot(q[i], z), tau), y) for z, y in _contrasts(i, q, k, labels, queue, queue_labels)]
        total = sum(e for e, _ in members)
        terms = [-(e / total).log() for e, y in members if y == int(labels[i])]
        losses.append(sum(terms) / len(terms))
    return _mean(losses)


def balanced_contrast(a: Tensor, b: Tensor, labels: Tensor, prototypes: Tensor, tau: Number) -> Tensor:
    """BCL over the 2N anchors: in the denominator a mean for each class, of all but the anchor itself."""
    rows = [(row, int(y)) for view in (a, b) for row, y in zip(view, labels, strict=True)]
    members = rows + [(row, y) for y, row in enumerate(prototypes)]
    losses = []
    for i, (anchor, label) in enumerate(rows):
        total, terms = torch.zeros((), dtype=torch.float64), []
        for y in range(len(prototypes)):
            of_class = [_exp(_dot(anchor, z), tau) for m, (z, c) in enumerate(members) if c == y and m != i]
            total = total + sum(of_class) / len(of_class)
            terms = of_class if y == label else terms
        losses.append(sum(-(e / total).log() for e in terms) / len(terms))
    return _mean(losses)


def paco_of_anchor(
    anchor: Tensor,
    label: int,
    members: list[tuple[Tensor, int]],
    center_logits: Tensor,
    prior: list[float],
    *,
    alpha: float,
    tau: Number,
    beta: float,
    gamma: float,
    center_tau: float,
    reduction: str,
    smoothing: float = 0.0,
) -> Tensor:
    """Equation 10 of PaCo for one anchor; "mean" divides by the positives' total weight.

    With smoothing, the own center's weight is beta (1 - eps), each other center's beta eps / (C - 1).
    """
    classes = range(len(prior))
    centers = [(center_logits[c].double().exp() * prior[c]) ** (1 / center_tau) for c in classes]
    samples = [(_exp(_dot(anchor, z), tau), y) for z, y in members]
    total = sum(centers) + gamma * sum(e for e, _ in samples)
    terms = []
    for c in classes:
        share = 1 - smoothing if c == label else (smoothing / (len(prior) - 1) if smoothing else 0.0)
        terms.append((beta * share, centers[c]))
    terms += [(alpha, e) for e, y in samples if y == label]
    loss = -sum(w * (e / total).log() for w, e in terms)
    return loss / sum(w for w, _ in terms) if reduction == "mean" else loss


def paco_probabilities_of_anchor(
    i: int,
    q: Tensor,
    k: Tensor,
    labels: Tensor,
    queue: Tensor,
    queue_labels: Tensor,
    center_logits: Tensor,
    log_prior: Tensor,
    tau: Number,
    gamma: float,
    center_tau: float,
    others: tuple[Tensor, Tensor] | None,
) -> list[float]:
    """P_sup, probability of the own center, mean probability of a true pair, and the number of true pairs."""
    samples = _contrasts(i, q, k, labels, queue, queue_labels)
    if others is not None:
        samples += [(others[0][j], int(others[1][j])) for j in range(len(others[0]))]
    centers = [_exp(z + p, center_tau) for z, p in zip(center_logits[i], log_prior, strict=True)]
    total = sum(centers) + gamma * sum(_exp(_dot(q[i], z), tau) for z, _ in samples)
    pairs = [_exp(_dot(q[i], z), tau) / total for z, label in samples if label == labels[i]]
    own = centers[int(labels[i])] / total
    return [float(sum(centers) / total), float(own), float(sum(pairs) / len(pairs)), float(len(pairs))]


def paco(
    q: Tensor,
    k: Tensor,
    labels: Tensor,
    queue: Tensor,
    queue_labels: Tensor,
    center_logits: Tensor,
    prior: list[float],
    **settings: object,
) -> Tensor:
    """Mean over the N anchors q; settings of `paco_of_anchor`."""
    losses = []
    for i in range(len(q)):
        members = _contrasts(i, q, k, labels, queue, queue_labels)
        losses.append(
            paco_of_anchor(q[i], int(labels[i]), members, center_logits[i], prior, **settings)  # type: ignore[arg-type]
        )
    return _mean(losses)


def priors(counts: list[int]) -> list[float]:
    """Class frequencies; an absent class has 1e-9, that of the authors' code, so that it has a logarithm."""
    return [n / sum(counts) if n else 1e-9 for n in counts]


def balanced_softmax(logits: Tensor, labels: Tensor, prior: list[float], smoothing: float) -> Tensor:
    """-sum_c t_c log (q_c e^{logit_c} / sum_d q_d e^{logit_d}), t = (1 - eps) onehot + eps / C."""
    losses = []
    for i in range(len(logits)):
        odds = [prior[c] * logits[i, c].double().exp() for c in range(len(prior))]
        target = [smoothing / len(prior)] * len(prior)
        target[int(labels[i])] += 1 - smoothing
        losses.append(-sum(t * (x / sum(odds)).log() for t, x in zip(target, odds, strict=True)))
    return _mean(losses)


def simple(q: Tensor, k: Tensor, queue: Tensor, weight: float, keep: float) -> Tensor:
    """Mean over i of -s_ii + weight * sum over the hardest negatives of s_ij."""
    losses = []
    for i in range(len(q)):
        scores = hardest([_dot(q[i], z) for z in queue], keep)
        losses.append(-_dot(q[i], k[i]) + weight * sum(scores))
    return _mean(losses)


def hard_info_nce(q: Tensor, k: Tensor, queue: Tensor, tau: Number, keep: float) -> Tensor:
    """InfoNCE over each anchor's hardest negatives."""
    losses = []
    for i in range(len(q)):
        scores = hardest([_dot(q[i], z) for z in queue], keep)
        positive = _exp(_dot(q[i], k[i]), tau)
        losses.append(-(positive / (positive + sum(_exp(s, tau) for s in scores))).log())
    return _mean(losses)


def hardest(scores: list[Tensor], keep: float) -> list[Tensor]:
    """Those not below the (1 - keep) quantile, with linear interpolation between order statistics."""
    if not scores:
        return []
    ordered = sorted(s.item() for s in scores)
    position = (1 - keep) * (len(ordered) - 1)
    low, high = math.floor(position), math.ceil(position)
    threshold = ordered[low] + (position - low) * (ordered[high] - ordered[low])
    return [s for s in scores if s.item() >= threshold - 1e-12]


def margin(a: Tensor, b: Tensor, same: Tensor, m: float, squared: bool) -> Tensor:
    """Hadsell's pair loss, or the note's with the margin on the squared distance.

    Two images at one point repel in no direction: that pair's gradient is zero.
    """
    losses = []
    for i in range(len(a)):
        square = _dot(a[i].double() - b[i].double(), a[i].double() - b[i].double())
        if same[i]:
            losses.append(0.5 * square)
        elif squared:
            losses.append(0.5 * (m - square).clamp(min=0))
        else:
            d = square.sqrt() if square > 0 else torch.zeros_like(square)
            losses.append(0.5 * (m - d).clamp(min=0) ** 2)
    return _mean(losses)


def uniformity(z: Tensor, t: float) -> Tensor:
    """log of the mean of e^{-t |x - y|^2} over ordered pairs x != y."""
    z = z.double()
    pairs = [(i, j) for i in range(len(z)) for j in range(len(z)) if i != j]
    return _mean([(-t * _dot(z[i] - z[j], z[i] - z[j])).exp() for i, j in pairs]).log()


def alignment(a: Tensor, b: Tensor) -> Tensor:
    """Mean of |a_i - b_i|^2."""
    return _mean([_dot(x - y, x - y) for x, y in zip(a.double(), b.double(), strict=True)])


def tolerance(z: Tensor, labels: Tensor) -> Tensor:
    """Mean of x.y over ordered pairs x != y of one class."""
    pairs = [(i, j) for i in range(len(z)) for j in range(len(z)) if i != j and labels[i] == labels[j]]
    return _mean([_dot(z[i], z[j]) for i, j in pairs])
