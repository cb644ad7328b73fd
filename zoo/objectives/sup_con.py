"""SupCon with MoCo's queue: supervised contrast without class centers."""

from typing import Literal

from zoo import functional
from zoo.modules import TemperatureConfig
from zoo.objectives.base import Batch, Output, share_of_weight
from zoo.objectives.momentum_contrast import MomentumConfig, MomentumObjective, from_others, held


class SupConConfig(MomentumConfig):
    """Supervised contrast; the baseline that PaCo starts from."""

    name: Literal["sup_con"]
    tau: TemperatureConfig = 0.1
    """Temperature of the scores: a number, a schedule, or learned."""


class SupCon(MomentumObjective):
    """All images of the anchor's class in the batch and the queue are positives.
    Source: https://arxiv.org/abs/2004.11362, equation 2; with a queue in https://arxiv.org/abs/2107.12028,
    section 3.1.
    """

    Config = SupConConfig

    def forward(self, batch: Batch) -> Output:
        """Contrast the first view with the second's keys, the batch itself and the queue."""
        labels, tau = batch.labels, self.temperature(self.progress)
        _, pairs = self.encode(batch.views)
        mixed = self.apply_ft(pairs, labelled=True)
        q, k, queue, queue_labels, _ = mixed
        others = from_others(self.ranks, q, k, labels)
        loss = functional.sup_con(q, k, labels, queue, queue_labels, tau=tau, others=others)
        loss = loss * share_of_weight(labels >= 0, self.ranks)  # a mean over labelled images
        more = held(pairs, mixed, classes=labels, others=others, tau=tau)
        return Output(loss, self.temperature.metrics(tau, loss.device), carry=pairs.k, held=more)
