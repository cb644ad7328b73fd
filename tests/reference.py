"""Slow references in float64, written from the equations with loops over anchors, positives and negatives.

Nothing here imports the code under test. `tau` may be a number or a tensor; a queue's labels of -1 are empty
slots.
"""

import math
from itertools import permutations

import torch
from torch import Tensor

Number = float | Tensor
Members = list[tuple[Tensor, int]]  # vectors with their classes


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a.double() * b.double()).sum()


def _mean(terms: list[Tensor]) -> Tensor:
    return torch.stack(terms).mean()


def _exp(score: Tensor, tau: Number) -> Tensor:
    return (score / (tau.double() if isinstance(tau, Tensor) else tau)).exp()


def hardest(scores: list[Tensor], keep: float) -> list[Tensor]:
    """Those not below the (1 - keep) quantile, with linear interpolation between order statistics."""
    if not scores:
        return []
    ordered = sorted(s.item() for s in scores)
    position = (1 - keep) * (len(ordered) - 1)
    low, high = math.floor(position), math.ceil(position)
    threshold = ordered[low] + (position - low) * (ordered[high] - ordered[low])
    return [s for s in scores if s.item() >= threshold - 1e-12]


def info_nce(q: Tensor, k: Tensor, queue: Tensor, tau: Number, keep: float = 1.0) -> Tensor:
    """Mean over i of -log e^{q_i.k_i/tau} / (e^{q_i.k_i/tau} + sum_z e^{q_i.z/tau}), z the hardest."""
    losses = []
    for anchor, key in zip(q, k, strict=True):
        positive = _exp(_dot(anchor, key), tau)
        negatives = [_exp(score, tau) for score in hardest([_dot(anchor, z) for z in queue], keep)]
        losses.append(-(positive / (positive + sum(negatives))).log())
    return _mean(losses)


def simple(q: Tensor, k: Tensor, queue: Tensor, weight: float, keep: float = 1.0) -> Tensor:
    """Mean over i of -s_ii + weight * sum over the hardest negatives of s_ij."""
    scores = [hardest([_dot(anchor, z) for z in queue], keep) for anchor in q]
    return _mean([weight * sum(s) - _dot(q[i], k[i]) for i, s in enumerate(scores)])


def nt_xent(a: Tensor, b: Tensor, tau: Number) -> Tensor:
    """Equation 1 of SimCLR: over both orders of each pair, 2N terms."""
    rows, losses = [*a, *b], []
    for i, anchor in enumerate(rows):
        scores = {m: _exp(_dot(anchor, row), tau) for m, row in enumerate(rows) if m != i}
        losses.append(-(scores[(i + len(a)) % len(rows)] / sum(scores.values())).log())
    return _mean(losses)


def contrasts(i: int, q: Tensor, k: Tensor, labels: Tensor, queue: Tensor, queue_labels: Tensor) -> Members:
    """A(i): both views and the queue, without the anchor and without empty slots."""
    members = [(q[j], int(labels[j])) for j in range(len(q)) if j != i]
    members += [(k[j], int(labels[j])) for j in range(len(k))]
    return members + [(queue[j], int(y)) for j, y in enumerate(queue_labels) if y >= 0]


def sup_con(q: Tensor, k: Tensor, labels: Tensor, queue: Tensor, queue_labels: Tensor, tau: Number) -> Tensor:
    """Mean over labelled anchors of the mean over positives of -log softmax over A(i)."""
    losses = []
    for i in range(len(q)):
        members = contrasts(i, q, k, labels, queue, queue_labels)
        scores = [(_exp(_dot(q[i], z), tau), y) for z, y in members]
        total = sum(e for e, _ in scores)
        if labels[i] >= 0:
            losses.append(_mean([-(e / total).log() for e, y in scores if y == labels[i]]))
    return _mean(losses)


def balanced_contrast(a: Tensor, b: Tensor, labels: Tensor, prototypes: Tensor, tau: Number) -> Tensor:
    """BCL over the 2N anchors: in the denominator a mean for each class, of all but the anchor itself."""
    rows = [(row, int(y)) for view in (a, b) for row, y in zip(view, labels, strict=True)]
    members = rows + [(row, y) for y, row in enumerate(prototypes)]
    losses = []
    for i, (anchor, label) in enumerate(rows):
        others = members[:i] + members[i + 1 :]
        of_class = [[_exp(_dot(anchor, z), tau) for z, c in others if c == y] for y in range(len(prototypes))]
        total = sum(sum(each) / len(each) for each in of_class)
        losses.append(_mean([-(e / total).log() for e in of_class[label]]))
    return _mean(losses)


def paco(
    q: Tensor,
    k: Tensor,
    labels: Tensor,
    queue: Tensor,
    queue_labels: Tensor,
    center_logits: Tensor,
    prior: list[float],
    *,
    alpha: float,
    tau: Number,
    beta: float = 1.0,
    gamma: float = 1.0,
    center_tau: float = 1.0,
    reduction: str = "mean",
    smoothing: float = 0.0,
) -> Tensor:
    """Equation 10 of PaCo; "mean" divides by the positives' total weight.

    With smoothing, the own center's weight is beta (1 - eps), each other center's beta eps / (C - 1).
    """
    losses = []
    for i in range(len(q)):
        centers = [
            (z.double().exp() * p) ** (1 / center_tau) for z, p in zip(center_logits[i], prior, strict=True)
        ]
        members = contrasts(i, q, k, labels, queue, queue_labels)
        samples = [(_exp(_dot(q[i], z), tau), y) for z, y in members]
        total = sum(centers) + gamma * sum(e for e, _ in samples)
        shares = [smoothing / (len(prior) - 1) if smoothing else 0.0] * len(prior)
        shares[int(labels[i])] = 1 - smoothing
        terms = [(beta * share, center) for share, center in zip(shares, centers, strict=True)]
        terms += [(alpha, e) for e, y in samples if y == labels[i]]
        loss = -sum(w * (e / total).log() for w, e in terms)
        losses.append(loss / sum(w for w, _ in terms) if reduction == "mean" else loss)
    return _mean(losses)


def paco_probabilities(
    anchor: Tensor, label: int, members: Members, centers: Tensor, tau: Number, gamma: float
) -> list[float]:
    """P_sup, probability of the own center, mean probability of a true pair, and the number of true pairs."""
    samples = [(_exp(_dot(anchor, z), tau), y) for z, y in members]
    total = centers.exp().sum() + gamma * sum(e for e, _ in samples)
    pairs = [e / total for e, y in samples if y == label]
    own = centers[label].exp() / total
    return [float(centers.exp().sum() / total), float(own), float(_mean(pairs)), float(len(pairs))]


def priors(counts: list[int]) -> list[float]:
    """Class frequencies; an absent class has 1e-9, that of the authors' code, so that it has a logarithm."""
    return [n / sum(counts) if n else 1e-9 for n in counts]


def logit_adjusted(
    logits: Tensor, labels: Tensor, prior: list[float], smoothing: float = 0.0, tau: float = 1.0
) -> Tensor:
    """-sum_c t_c log (q_c^tau e^{logit_c} / sum_d q_d^tau e^{logit_d}), t = (1 - eps) onehot + eps / C."""
    losses = []
    for row, label in zip(logits, labels, strict=True):
        odds = [p**tau * z.double().exp() for p, z in zip(prior, row, strict=True)]
        target = [smoothing / len(prior)] * len(prior)
        target[int(label)] += 1 - smoothing
        losses.append(-sum(t * (x / sum(odds)).log() for t, x in zip(target, odds, strict=True)))
    return _mean(losses)


def ldam(
    cosines: Tensor, labels: Tensor, counts: list[int], max_margin: float, scale: float, weight: list[float]
) -> Tensor:
    """Cross-entropy of scaled cosines, the own class's less its margin; images by their class's weight.

    The margin is n^(-1/4) as a share of the largest one, 0 for a class without images.
    """
    margins = [n**-0.25 if n else 0.0 for n in counts]
    losses = []
    for row, label in zip(cosines.double(), labels.tolist(), strict=True):
        own = (scale * (row[label] - max_margin * margins[label] / max(margins))).exp()
        others = [(scale * x).exp() for c, x in enumerate(row) if c != label]
        losses.append(-weight[label] * (own / (own + sum(others))).log())
    return sum(losses) / sum(weight[label] for label in labels)


def distillation(logits: Tensor, teachers: Tensor, tau: float) -> Tensor:
    """tau^2 times the mean over images of sum_c p_c log(p_c / s_c), p the teachers' mean probability."""
    p = (teachers.double() / tau).softmax(dim=2).mean(dim=0)
    s = (logits.double() / tau).softmax(dim=1)
    return tau**2 * _mean([(p[i] * (p[i] / s[i]).log()).sum() for i in range(len(p))])


def margin(a: Tensor, b: Tensor, same: Tensor, m: float, squared: bool = False) -> Tensor:
    """Hadsell's pair loss, or the note's with the margin on the squared distance.

    Two images at one point repel in no direction: that pair's gradient is zero.
    """
    losses = []
    for x, y, attract in zip(a.double(), b.double(), same, strict=True):
        square = _dot(x - y, x - y)
        distance = square.sqrt() if square > 0 else torch.zeros_like(square)
        repel = (m - square).clamp(min=0) if squared else (m - distance).clamp(min=0) ** 2
        losses.append(0.5 * (square if attract else repel))
    return _mean(losses)


def uniformity(z: Tensor, t: float) -> Tensor:
    """log of the mean of e^{-t |x - y|^2} over ordered pairs x != y."""
    return _mean([(-t * _dot(x - y, x - y)).exp() for x, y in permutations(z.double(), 2)]).log()


def alignment(a: Tensor, b: Tensor) -> Tensor:
    """Mean of |a_i - b_i|^2."""
    return _mean([_dot(x - y, x - y) for x, y in zip(a.double(), b.double(), strict=True)])


def tolerance(z: Tensor, labels: Tensor) -> Tensor:
    """Mean of x.y over ordered pairs x != y of one class."""
    pairs = permutations(range(len(z)), 2)
    return _mean([_dot(z[i], z[j]) for i, j in pairs if labels[i] == labels[j]])
