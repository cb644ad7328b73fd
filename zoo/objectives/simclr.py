"""SimCLR: InfoNCE whose negatives are the batch's other images."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from zoo import functional
from zoo.modules import Temperature, TemperatureConfig
from zoo.objectives.base import Batch, DataInfo, Objective, Output
from zoo.objectives.momentum_contrast import ProjectionConfig, detached, encode, normalize, projection


class SimCLRConfig(ProjectionConfig):
    """In-batch contrast."""

    name: Literal["simclr"]
    head_batchnorm: bool = True
    """BatchNorm before the head's ReLUs."""
    tau: TemperatureConfig = 0.1
    """Temperature of the scores: a number, a schedule, or learned."""


class SimCLR(Objective):
    """Instance discrimination within the batch, both views with gradient.

    Source: https://arxiv.org/abs/2002.05709.
    """

    Config = SimCLRConfig
    num_views = 2

    def __init__(self, config: SimCLRConfig, encoder: nn.Module, info: DataInfo) -> None:
        super().__init__(config, encoder, info)
        self.head = projection(encoder, config)
        self.temperature = Temperature(config.tau)

    @classmethod
    def learns_without_labels(cls, config: SimCLRConfig) -> bool:
        """See `Objective.learns_without_labels`."""
        return True

    def forward(self, batch: Batch) -> Output:
        """Contrast every view with the batch's 2B - 1 others."""
        a, b = (normalize(encode((self.encoder, self.head), view)) for view in batch.views)
        tau = self.temperature(self.progress)
        others: Tensor | None = None
        theirs: Tensor | None = None
        if not self.ranks.alone:
            of_a, theirs = self.ranks.others(torch.cat([a, b], dim=1)).chunk(2, dim=1)
            others = torch.cat([of_a, theirs])
        loss = functional.nt_xent(a, b, tau=tau, others=others)
        held = detached(q=a, k=b, other_keys=theirs)
        return Output(loss, self.temperature.metrics(tau, a.device), held=held)
