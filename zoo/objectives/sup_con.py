"""SupCon with MoCo's queue: supervised contrast without class centers."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal

import torch
from torch import nn

from zoo import functional
from zoo.modules import Temperature, TemperatureConfig
from zoo.objectives import measures
from zoo.objectives.base import Batch, DataInfo, Objective, Output
from zoo.objectives.contrast import MomentumConfig, MomentumContrast, from_others


class SupConConfig(MomentumConfig):
    """Supervised contrast; the baseline that PaCo starts from."""

    name: Literal["sup_con"]
    tau: TemperatureConfig
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
        pair = self.contrast(self.encoder, batch.views)
        observed = batch.labels if self.observing else None
        found, scores = self.contrast.look_up(pair, self.epoch, labelled=True, observed=observed)
        tau = self.temperature(self.progress)
        q, k, queue, queue_labels, _ = found
        others = from_others(self.ranks, q, k, batch.labels)
        loss = functional.sup_con(q, k, batch.labels, queue, queue_labels, tau=tau, others=others)
        seen = None
        if self.observing:
            probability, positives = functional.sup_con_probabilities(
                q, k, batch.labels, queue, queue_labels, tau=tau, others=others, anchors=measures.ROWS
            )
            values = {"pair_probability": probability, "pair_probability_optimum": 1 / positives}
            seen = measures.seen(batch.labels, (pair.q, pair.k), scores, values)
        metrics = self.temperature.metrics(tau, loss.device)
        return Output(loss, metrics, carry=pair.k, features=pair.features, seen=seen)

    def constants(self) -> Hashable:
        """See `Objective.constants`."""
        tau = self.temperature.constant(self.progress)
        return *self.contrast.constants(self.epoch, self.progress), tau

    @torch.no_grad()
    def update(self, batch: Batch, output: Output) -> None:
        """Move the key encoder, then enqueue this step's keys with their labels."""
        self.contrast.update(self.encoder, output.carry, batch.labels, self.progress)
