"""SimCLR: InfoNCE whose negatives are the batch's other images."""

from typing import Literal

import torch

from zoo import functional
from zoo.modules import TemperatureConfig
from zoo.objectives.base import Batch, Output
from zoo.objectives.momentum_contrast import ContrastiveObjective, ProjectionConfig, normalize, other_views


class SimCLRConfig(ProjectionConfig):
    """In-batch contrast."""

    name: Literal["simclr"]
    head_batchnorm: bool = True
    """BatchNorm before the head's ReLUs."""
    tau: TemperatureConfig = 0.1
    """Temperature of the scores: a number, a schedule, or learned."""


class SimCLR(ContrastiveObjective):
    """Instance discrimination within the batch, both views with gradient.
    Source: https://arxiv.org/abs/2002.05709.
    """

    Config = SimCLRConfig
    without_labels = True

    def forward(self, batch: Batch) -> Output:
        """Contrast every view with the batch's 2B - 1 others."""
        a, b = (normalize(self.head(self.encoder(view))) for view in batch.views)
        tau = self.temperature(self.progress)
        of_a, of_b = other_views(self.ranks, a, b)
        others = None if of_a is None or of_b is None else torch.cat([of_a, of_b])
        loss = functional.in_batch_info_nce(a, b, tau=tau, both_views=True, others=others)
        metrics = self.temperature.metrics(tau, a.device)
        return Output(loss, metrics, held={"q": a, "k": b, "other_keys": of_b})
