"""SupCon with MoCo's queue: supervised contrast without class centers."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from zoo import functional
from zoo.modules import Temperature, TemperatureConfig
from zoo.objectives.base import Batch, DataInfo, Objective, Output
from zoo.objectives.momentum_contrast import MomentumConfig, MomentumContrast, from_others, held, transform


class SupConConfig(MomentumConfig):
    """Supervised contrast; the baseline that PaCo starts from."""

    name: Literal["sup_con"]
    tau: TemperatureConfig = 0.1
    """Temperature of the scores: a number, a schedule, or learned."""


class SupCon(Objective):
    """All images of the anchor's class in the batch and the queue are positives.

    Source: https://arxiv.org/abs/2004.11362, equation 2; with a queue in https://arxiv.org/abs/2107.12028,
    section 3.1.
    """

    Config = SupConConfig
    num_views = 2

    def __init__(self, config: SupConConfig, encoder: nn.Module, info: DataInfo) -> None:
        super().__init__(config, encoder, info)
        self.contrast = MomentumContrast(encoder, config)
        self.temperature = Temperature(config.tau)

    def forward(self, batch: Batch) -> Output:
        """Contrast the first view with the second's keys, the batch itself and the queue."""
        labels = batch.labels
        _, pairs = self.contrast(self.encoder, batch.views)
        ft = self.config.feature_transform
        transformed = transform(pairs, ft, self.epoch, labelled=True, ranks=self.ranks)
        tau = self.temperature(self.progress)
        q, k, queue, queue_labels, _ = transformed
        others = from_others(self.ranks, q, k, labels)
        loss = functional.sup_con(q, k, labels, queue, queue_labels, tau=tau, others=others)
        if others is not None:
            loss = loss * share_of_labelled(labels, others[1])
        metrics = self.temperature.metrics(tau, loss.device)
        more = held(pairs, transformed, classes=labels, others=others, tau=tau)
        return Output(loss, metrics, carry=pairs.k, held=more)

    @torch.no_grad()
    def update(self, batch: Batch, output: Output) -> None:
        """Move the key encoder, then enqueue this step's keys with their labels."""
        self.contrast.update(self.encoder, output.carry, batch.labels, self.progress)


def share_of_labelled(own: Tensor, others: Tensor) -> Tensor:
    """Return the share of this rank's images that have a label, over that of all ranks' `[]`.

    The loss is a mean over this rank's labelled images; what the ranks' means are averaged to, weighted by
    their images, has to be one over all. Both views of the others' images are in `others` `[M]`.
    """
    labelled = (own >= 0).double()
    everyones = torch.cat([labelled.repeat(2), (others >= 0).double()])
    return (labelled.mean() / everyones.mean().clamp(min=torch.finfo(torch.double).tiny)).float()
