"""PaCo and GPaCo: supervised contrast with learnable, rebalanced class centers.

GPaCo has no key encoder: both views are anchors and get gradients.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from zoo import functional
from zoo.backbones import feature_dim
from zoo.modules import LOWEST_TAU, Centers, KeyQueue, Temperature, TemperatureConfig, full_logits
from zoo.objectives import measures
from zoo.objectives.base import Batch, DataInfo, Objective, Output, needing_labels
from zoo.objectives.momentum_contrast import (
    Dictionary,
    MomentumConfig,
    MomentumContrast,
    Projected,
    QueueConfig,
    from_others,
    look_up,
    normalize,
    projection,
)


class CenterConfig(QueueConfig):
    """What PaCo and GPaCo have in common; defaults are those of ImageNet-LT."""

    queue_size: Annotated[int, Field(ge=1)] = 8192
    """K; need not be a multiple of the batch size."""
    tau: TemperatureConfig = 0.2
    """Temperature of the samples' scores."""
    alpha: Annotated[float, Field(ge=0)] = 0.05
    """Weight of each sample among the positives; 0 leaves the center alone."""
    beta: Annotated[float, Field(gt=0)] = 1.0
    """Weight of the own center among the positives."""
    gamma: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the samples in the softmax's denominator."""
    center_tau: Annotated[float, Field(ge=LOWEST_TAU)] = 1.0
    """Temperature of the centers' logits, prior included."""
    rebalance: bool = True
    """Add the log class prior to the centers' logits (Balanced Softmax); off: plain centers."""
    reduction: Literal["mean", "sum"] = "mean"
    """Over positives: the authors' code takes the mean, the paper writes the sum."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of beta that goes to the other classes' centers."""

    @property
    def adds_prior(self) -> bool:
        """See `ObjectiveConfig.adds_prior`."""
        return self.rebalance


class PaCoConfig(CenterConfig, MomentumConfig):
    """Parametric contrastive learning."""

    name: Literal["paco"]
    head_batchnorm: bool = True
    """BatchNorm before the head's ReLUs."""


class LearnedCenters(nn.Module):
    """One learnable center per class, and the loss that contrasts samples and centers together.

    The centers are the rows of a linear layer on the pooled features (not on the projection), so that
    encoder and centers together are a classifier; its logits carry no prior at test time.
    """

    log_prior: Tensor
    class_counts: Tensor

    def __init__(self, encoder: nn.Module, config: CenterConfig, info: DataInfo) -> None:
        super().__init__()
        self.config = config
        self.classifier = nn.Linear(feature_dim(encoder), info.num_classes)
        self.temperature = Temperature(config.tau)
        prior = functional.log_prior(info.class_counts)
        self.register_buffer("log_prior", prior if config.rebalance else torch.zeros_like(prior))
        self.register_buffer("class_counts", info.class_counts)

    def forward(self, features: Tensor) -> Tensor:
        """Return the centers' logits `[B, C]` of features `[B, D_f]`, without the prior."""
        return full_logits(self.classifier, features)

    def loss(
        self,
        found: Dictionary,
        labels: Tensor,
        center_logits: Tensor,
        tau: float | Tensor,
        others: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
        """Compute `zoo.functional.paco` of the queries in `found`; it has no center for an unknown label."""
        config = self.config
        with needing_labels(labels, config.name):
            return functional.paco(
                found.q,
                found.k,
                labels,
                found.queue,
                found.queue_labels,
                center_logits,
                self.log_prior,
                alpha=config.alpha,
                tau=tau,
                beta=config.beta,
                gamma=config.gamma,
                center_tau=config.center_tau,
                reduction=config.reduction,
                label_smoothing=config.label_smoothing,
                others=others,
            )

    @torch.no_grad()
    def probabilities(
        self,
        found: Dictionary,
        labels: Tensor,
        center_logits: Tensor,
        tau: float | Tensor,
        others: tuple[Tensor, Tensor] | None,
    ) -> dict[str, Tensor]:
        """Return the probabilities `[n]` of the first anchors by name, for a step that is looked at.

        Args:
            found: what enters the loss; this and the rest as `loss` has it.
            labels: classes `[N]`.
            center_logits: `[N, C]`.
            tau: temperature of the samples' scores.
            others: what other ranks have of the batch.
        """
        config = self.config
        chosen = functional.contrast_probabilities(
            found.q,
            found.k,
            labels,
            found.queue,
            found.queue_labels,
            (center_logits + self.log_prior) / config.center_tau,
            tau=tau,
            gamma=config.gamma,
            others=others,
            anchors=measures.ROWS,
        )
        optimum = None
        if config.gamma > 0:  # without samples in the denominator the loss has no minimum
            optimum = functional.paco_optimum(
                chosen.positives,
                alpha=config.alpha,
                beta=config.beta,
                gamma=config.gamma,
                label_smoothing=config.label_smoothing,
            )
        return measures.probabilities(chosen, optimum)

    @torch.no_grad()
    def metrics(self, center_logits: Tensor, labels: Tensor, tau: float | Tensor) -> dict[str, Tensor]:
        """Return what to record of the classifier."""
        accuracy = 100 * (center_logits.argmax(dim=1) == labels).float().mean()
        return {"train_accuracy": accuracy, **self.temperature.metrics(tau, accuracy.device)}

    def as_centers(self) -> Centers:
        """Return the centers learned so far."""
        return Centers(self.classifier.weight.detach(), self.classifier.bias.detach(), self.class_counts)


class PaCo(Objective):
    """MoCo with labels, whose softmax also holds one learnable center per class.

    Source: https://arxiv.org/abs/2107.12028.
    """

    Config = PaCoConfig
    num_views = 2

    def __init__(self, config: PaCoConfig, encoder: nn.Module, info: DataInfo) -> None:
        super().__init__(config, encoder, info)
        self.contrast = MomentumContrast(encoder, config)
        self.learned = LearnedCenters(encoder, config, info)

    def forward(self, batch: Batch) -> Output:
        """Contrast the first view with the second's keys, the batch itself, the queue and the centers."""
        pair = self.contrast(self.encoder, batch.views)
        observed = batch.labels if self.observing else None
        found, scores = self.contrast.look_up(pair, self.epoch, labelled=True, observed=observed)
        logits = self.learned(pair.features)
        tau = self.learned.temperature(self.progress)
        others = from_others(self.ranks, found.q, found.k, batch.labels)
        loss = self.learned.loss(found, batch.labels, logits, tau, others)
        metrics, seen = self.learned.metrics(logits, batch.labels, tau), None
        if self.observing:
            values = self.learned.probabilities(found, batch.labels, logits, tau, others)
            seen = measures.seen(batch.labels, (pair.q, pair.k), scores, values)
            metrics |= measures.centers(self.learned.classifier.weight, self.class_groups())
        return Output(loss, metrics, carry=pair.k, features=pair.features, seen=seen)

    @torch.no_grad()
    def update(self, batch: Batch, output: Output) -> None:
        """Move the key encoder, then enqueue this step's keys with their labels."""
        self.contrast.update(self.encoder, output.carry, batch.labels, self.progress)

    def center_parameter(self) -> Tensor:
        """See `Objective.center_parameter`."""
        return self.learned.classifier.weight

    def centers(self) -> Centers:
        """Return the centers learned so far."""
        return self.learned.as_centers()


class GPaCoConfig(CenterConfig):
    """Generalized parametric contrastive learning."""

    name: Literal["gpaco"]
    head_layers: Annotated[int, Field(ge=1)] = 3
    """Linear layers of the projection head, with ReLUs between them."""


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
