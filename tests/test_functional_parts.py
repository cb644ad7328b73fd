"""Losses of a part of the batch that is contrasted with the rest, as on several ranks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo import functional
from zoo.modules.ranks import Ranks
from zoo.objectives.base import share_of_weight


def test_losses_of_parts_that_see_each_other_have_the_mean_of_the_whole() -> None:
    """The other losses do so in tests/programs/steps.py."""
    g = torch.Generator().manual_seed(4)
    q, k = (F.normalize(torch.randn(9, 5, generator=g, dtype=torch.float64), dim=1) for _ in "qk")
    parts = [torch.arange(9) < 4, torch.arange(9) >= 4]
    losses = [functional.in_batch_info_nce(q[own], k[own], tau=0.3, others=k[~own]) for own in parts]
    whole = functional.in_batch_info_nce(q, k, tau=0.3)
    torch.testing.assert_close(losses[0] * 4 / 9 + losses[1] * 5 / 9, whole)


class Gathered(Ranks):
    """One of several ranks, where the labels of all are known."""

    alone = False  # type: ignore[assignment]

    def __init__(self, everyones: Tensor) -> None:
        super().__init__()
        self.everyones = everyones

    def gather(self, rows: Tensor) -> Tensor:
        return self.everyones


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
