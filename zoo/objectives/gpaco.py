"""GPaCo: PaCo without the key encoder; both views are anchors and get gradients."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal

import torch
from torch import Tensor, nn

from zoo.modules import Centers, KeyQueue
from zoo.objectives import measures
from zoo.objectives.base import Batch, DataInfo, Objective, Output
from zoo.objectives.momentum_contrast import Projected, from_others, is_on, look_up, normalize, projection
from zoo.objectives.paco import CenterConfig, LearnedCenters


class GPaCoConfig(CenterConfig):
    """Generalized parametric contrastive learning."""

    name: Literal["gpaco"]


class GPaCo(Objective):
    """Samples of both views and the queue are contrasted with each other and with the class centers.

    The queue holds the second view's own projections of earlier steps, without gradient. Authors' settings: a
    head of three layers without BatchNorm, and label smoothing.

    Source: https://arxiv.org/abs/2209.12400; GPaCo/LT/moco/builder.py in
    https://github.com/dvlab-research/Parametric-Contrastive-Learning.
    """

    Config = GPaCoConfig
    num_views = 2

    def __init__(self, config: GPaCoConfig, encoder: nn.Module, info: DataInfo) -> None:
        super().__init__(config, encoder, info)
        self.head = projection(encoder, config)
        self.queue = KeyQueue(config.queue_size, config.dim)
        self.learned = LearnedCenters(encoder, config, info)

    def forward(self, batch: Batch) -> Output:
        """Take each view's samples as anchors against the other view, its own batch, queue and centers."""
        # one pass each, as the authors do: BatchNorm sees the two views' different statistics apart
        features = [self.encoder(view) for view in batch.views]
        q, k = (normalize(self.head(x)) for x in features)
        logits = [self.learned(x) for x in features]
        pair = Projected(features[0], q, k)
        ft = self.config.feature_transform
        found, scores = look_up(
            pair,
            self.queue,
            ft,
            self.epoch,
            labelled=True,
            ranks=self.ranks,
            observed=batch.labels if self.observing else None,
        )
        others = from_others(self.ranks, found.q, found.k, batch.labels)
        # the mean over the 2B anchors: A(i) is the same set in both halves
        swapped = found._replace(q=found.k, k=found.q)
        tau = self.learned.temperature(self.progress)
        loss = 0.5 * (
            self.learned.loss(found, batch.labels, logits[0], tau, others)
            + self.learned.loss(swapped, batch.labels, logits[1], tau, others)
        )
        metrics, seen = self.learned.metrics(logits[0], batch.labels, tau), None
        if self.observing:
            values = self.learned.probabilities(found, batch.labels, logits[0], tau, others)
            seen = measures.seen(batch.labels, (q, k), scores, values)
            metrics |= measures.centers(self.learned.classifier.weight, self.class_groups())
        return Output(loss, metrics, carry=k.detach(), features=features[0], seen=seen)

    def constants(self) -> Hashable:
        """See `Objective.constants`."""
        tau = self.learned.temperature.constant(self.progress)
        return is_on(self.config.feature_transform, self.epoch), tau

    @torch.no_grad()
    def update(self, batch: Batch, output: Output) -> None:
        """Enqueue the second view's projections with their labels."""
        self.queue.enqueue(output.carry, batch.labels)

    def center_parameter(self) -> Tensor:
        """See `Objective.center_parameter`."""
        return self.learned.classifier.weight

    def centers(self) -> Centers:
        """Return the centers learned so far."""
        return self.learned.as_centers()
