"""Losses of a part of the batch that is contrasted with the rest, as on several ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from zoo import functional
from zoo.objectives.base import share_of_weight
from zoo.ranks import Ranks


def of_rows(name: str, q: Tensor, k: Tensor, logits: Tensor, rows: Tensor) -> Tensor:
    """A loss of some of the batch's rows, to which the rest comes from other ranks."""
    generator = torch.Generator().manual_seed(3)
    labels, queue_labels = torch.arange(len(q)) % 3, torch.arange(7) % 4 - 1
    queue = F.normalize(torch.randn(7, q.shape[1], generator=generator, dtype=q.dtype), dim=1)
    theirs = torch.cat([q[~rows], k[~rows]]), labels[~rows].repeat(2)
    queued = dict(queue=queue, queue_labels=queue_labels, tau=0.3, others=theirs)
    own = q[rows], k[rows]
    if name == "sup_con":
        return functional.sup_con(*own, labels[rows], **queued)
    if name == "paco":
        prior = torch.tensor([-1.0, -2.0, -0.5], dtype=q.dtype)
        centers = dict(center_logits=logits[rows], log_prior=prior, alpha=0.4)
        return functional.paco(*own, labels[rows], **queued, **centers)
    if name == "nt_xent":
        return functional.in_batch_info_nce(*own, tau=0.3, both_views=True, others=theirs[0])
    if name == "in_batch_info_nce":
        return functional.in_batch_info_nce(*own, tau=0.3, others=k[~rows])
    prototypes = F.normalize(logits[:3].repeat(1, 2)[:, : q.shape[1]], dim=1)
    return functional.balanced_contrast(*own, labels[rows], prototypes, tau=0.3, others=theirs)


@pytest.mark.parametrize("name", ["sup_con", "paco", "nt_xent", "in_batch_info_nce", "balanced_contrast"])
def test_losses_of_parts_that_see_each_other_have_the_mean_and_gradients_of_the_whole(name: str) -> None:
    generator = torch.Generator().manual_seed(4)
    leaves = [
        torch.randn(9, width, generator=generator, dtype=torch.float64).requires_grad_()
        for width in (5, 5, 3)
    ]
    q, k, logits = F.normalize(leaves[0], dim=1), F.normalize(leaves[1], dim=1), leaves[2]
    parts = [torch.arange(9) < 4, torch.arange(9) >= 4]
    loss = sum(part.sum() / 9 * of_rows(name, q, k, logits, part) for part in parts)
    whole = of_rows(name, q, k, logits, torch.ones(9, dtype=torch.bool))
    torch.testing.assert_close(loss, whole)
    used = leaves if name in ("paco", "balanced_contrast") else leaves[:2]
    for a, b in zip(
        torch.autograd.grad(loss, used, retain_graph=True), torch.autograd.grad(whole, used), strict=True
    ):
        torch.testing.assert_close(a, b)


class Gathered(Ranks):
    """One of several ranks, where the labels of all are known."""

    alone = False  # type: ignore[assignment]

    def __init__(self, everyones: Tensor) -> None:
        super().__init__()
        self.everyones = everyones

    def gather_rows(self, tensors: object) -> list[Tensor]:
        return [self.everyones]


def test_sup_con_of_ranks_with_unequal_labels_is_the_mean_over_all_labelled_images() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, queue = (
        F.normalize(torch.randn(n, 5, generator=generator, dtype=torch.float64), dim=1) for n in (8, 8, 6)
    )
    labels, queue_labels = torch.tensor([0, 1, -1, -1, 0, -1, -1, 1]), torch.tensor([0, 1, 2, -1, 0, 1])
    ranks = Gathered((labels >= 0).double())
    total = torch.zeros((), dtype=torch.float64)
    for rank in (slice(0, 3), slice(3, 8)):
        rest = [i for i in range(8) if not rank.start <= i < rank.stop]
        others = torch.cat([q[rest], k[rest]]), labels[rest].repeat(2)
        own = functional.sup_con(q[rank], k[rank], labels[rank], queue, queue_labels, tau=0.3, others=others)
        weight = share_of_weight(labels[rank] >= 0, ranks)
        total += own * weight * len(labels[rank]) / 8  # as the loop weighs ranks: by their images
    whole = functional.sup_con(q, k, labels, queue, queue_labels, tau=0.3)
    torch.testing.assert_close(total, whole, rtol=1e-6, atol=0)  # the weight is float32


@pytest.mark.parametrize(
    "loss",
    [
        lambda q, k, queue: functional.info_nce(q, k, queue, tau=0.1),
        lambda q, k, queue: functional.in_batch_info_nce(q, k, tau=0.1, others=queue),
        lambda q, k, queue: functional.simple_contrastive(q, k, queue, weight=0.1),
        lambda q, k, queue: functional.hard_contrastive(q, k, queue, tau=0.1, keep=0.5),
        lambda q, k, queue: functional.sup_con(
            q, k, torch.arange(4) % 2, queue, torch.arange(6) % 3, tau=0.1, others=(queue, torch.arange(6))
        ),
        lambda q, k, queue: functional.margin_contrastive(q, k, torch.arange(4) > 1, margin=1.0),
    ],
)
def test_arguments_of_different_precision_meet_in_the_highest(
    loss: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, queue = (F.normalize(torch.randn(n, 5, generator=generator), dim=1) for n in (4, 4, 6))
    expected = loss(q.double(), k.double(), queue.double())
    assert expected.dtype == torch.float64
    for mixed in ((q.double(), k, queue), (q, k.double(), queue), (q.double(), k.double(), queue)):
        torch.testing.assert_close(loss(*mixed), expected, rtol=1e-12, atol=0)
