"""Slow references in float64, written from the equations with loops over anchors, positives and negatives.

Nothing here imports the code under test.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a.double() * b.double()).sum()


def info_nce(q: Tensor, k: Tensor, queue: Tensor, tau: float) -> Tensor:
    """Mean over i of -log e^{q_i.k_i/tau} / (e^{q_i.k_i/tau} + sum_z e^{q_i.z/tau})."""
    losses = []
    for i in range(len(q)):
        positive = (_dot(q[i], k[i]) / tau).exp()
        total = positive + sum((_dot(q[i], z) / tau).exp() for z in queue)
        losses.append(-(positive / total).log())
    return torch.stack(losses).mean()


def _contrasts(
    i: int, q: Tensor, k: Tensor, labels: Tensor, queue: Tensor, queue_labels: Tensor
) -> list[tuple[Tensor, int]]:
    """A(i): (vector, label) of both views and the queue, without the anchor and without empty slots."""
    members = [(q[j], int(labels[j])) for j in range(len(q)) if j != i]
    members += [(k[j], int(labels[j])) for j in range(len(k))]
    members += [(queue[j], int(queue_labels[j])) for j in range(len(queue)) if queue_labels[j] >= 0]
    return members


def sup_con(q: Tensor, k: Tensor, labels: Tensor, queue: Tensor, queue_labels: Tensor, tau: float) -> Tensor:
    """Mean over anchors of the mean over positives of -log softmax over A(i)."""
    losses = []
    for i in range(len(q)):
        members = _contrasts(i, q, k, labels, queue, queue_labels)
        total = sum((_dot(q[i], z) / tau).exp() for z, _ in members)
        terms = [-((_dot(q[i], z) / tau).exp() / total).log() for z, y in members if y == int(labels[i])]
        losses.append(sum(terms) / len(terms))
    return torch.stack(losses).mean()


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
    tau: float,
    beta: float,
    gamma: float,
    center_tau: float,
    reduction: str,
) -> Tensor:
    """Equation 10 of the paper; "mean" divides each anchor by its positives' total weight."""
    losses = []
    for i in range(len(q)):
        y = int(labels[i])
        members = _contrasts(i, q, k, labels, queue, queue_labels)
        centers = [
            (center_logits[i, c].double().exp() * prior[c]) ** (1 / center_tau) for c in range(len(prior))
        ]
        total = sum(centers) + gamma * sum((_dot(q[i], z) / tau).exp() for z, _ in members)
        loss, weight = -beta * (centers[y] / total).log(), beta
        for z, label in members:
            if label == y:
                loss = loss - alpha * ((_dot(q[i], z) / tau).exp() / total).log()
                weight += alpha
        losses.append(loss / weight if reduction == "mean" else loss)
    return torch.stack(losses).mean()


def simple(q: Tensor, k: Tensor, queue: Tensor, weight: float, keep: float) -> Tensor:
    """Mean over i of -s_ii + weight * sum over the hardest negatives of s_ij."""
    losses = []
    for i in range(len(q)):
        scores = hardest([_dot(q[i], z) for z in queue], keep)
        losses.append(-_dot(q[i], k[i]) + weight * sum(scores))
    return torch.stack(losses).mean()


def hard_info_nce(q: Tensor, k: Tensor, queue: Tensor, tau: float, keep: float) -> Tensor:
    """InfoNCE over each anchor's hardest negatives."""
    losses = []
    for i in range(len(q)):
        scores = hardest([_dot(q[i], z) for z in queue], keep)
        positive = (_dot(q[i], k[i]) / tau).exp()
        losses.append(-(positive / (positive + sum((s / tau).exp() for s in scores))).log())
    return torch.stack(losses).mean()


def hardest(scores: list[Tensor], keep: float) -> list[Tensor]:
    """Those not below the (1 - keep) quantile, with linear interpolation between order statistics."""
    ordered = sorted(s.item() for s in scores)
    position = (1 - keep) * (len(ordered) - 1)
    low, high = math.floor(position), math.ceil(position)
    threshold = ordered[low] + (position - low) * (ordered[high] - ordered[low])
    return [s for s in scores if s.item() >= threshold - 1e-12]


def margin(a: Tensor, b: Tensor, same: Tensor, m: float, squared: bool) -> Tensor:
    """Hadsell's pair loss, or the note's with the margin on the squared distance."""
    losses = []
    for i in range(len(a)):
        d = _dot(a[i] - b[i], a[i] - b[i]).sqrt()
        if same[i]:
            losses.append(0.5 * d**2)
        elif squared:
            losses.append(0.5 * (m - d**2).clamp(min=0))
        else:
            losses.append(0.5 * (m - d).clamp(min=0) ** 2)
    return torch.stack(losses).mean()
