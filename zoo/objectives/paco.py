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
from zoo.objectives.base import Batch, DataInfo, Objective, Output
from zoo.objectives.momentum_contrast import (
    MomentumConfig,
    MomentumContrast,
    Pairs,
    QueueConfig,
    from_others,
    held,
    normalize,
    projection,
    transform,
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

    def __init__(self, encoder: nn.Module, config: CenterConfig, info: DataInfo) -> None:
        super().__init__()
        self.config = config
        self.classifier = nn.Linear(feature_dim(encoder), info.num_classes)
        self.temperature = Temperature(config.tau)
        prior = functional.log_prior(info.class_counts)
        self.register_buffer("log_prior", prior if config.rebalance else torch.zeros_like(prior))

    def forward(self, features: Tensor) -> Tensor:
        """Return the centers' logits `[B, C]` of features `[B, D_f]`, without the prior."""
        return full_logits(self.classifier, features)

    def loss(
        self,
        pairs: Pairs,
        labels: Tensor,
        center_logits: Tensor,
        tau: float | Tensor,
        others: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
        """Return `zoo.functional.paco` of the queries, as the recipe's section sets it."""
        config = self.config
        return functional.paco(
            pairs.q,
            pairs.k,
            labels,
            pairs.queue,
            pairs.queue_labels,
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

    def metrics(self, center_logits: Tensor, labels: Tensor, tau: float | Tensor) -> dict[str, Tensor]:
        """Return what every step records: the accuracy in percent, and a temperature that changes."""
        accuracy = 100 * (center_logits.detach().argmax(dim=1) == labels).float().mean()
        return {"train_accuracy": accuracy, **self.temperature.metrics(tau, accuracy.device)}


class _WithCenters(Objective):
    """What is released of PaCo and GPaCo beside the encoder."""

    learned: LearnedCenters

    def centers(self) -> Centers:
        """Return the centers learned so far."""
        classifier = self.learned.classifier
        return Centers(classifier.weight.detach(), classifier.bias.detach(), self.class_counts)


class PaCo(_WithCenters):
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
        labels = batch.labels
        features, pairs = self.contrast(self.encoder, batch.views)  # G(x), keys and queue
        ft = self.config.feature_transform
        transformed = transform(pairs, ft, self.epoch, labelled=True, ranks=self.ranks)
        logits = self.learned(features)  # c . F(x)
        tau = self.learned.temperature(self.progress)
        others = from_others(self.ranks, transformed.q, transformed.k, labels)
        loss = self.learned.loss(transformed, labels, logits, tau, others)
        metrics = self.learned.metrics(logits, labels, tau)
        more = held(pairs, transformed, classes=labels, others=others, tau=tau, center_logits=logits)
        return Output(loss, metrics, carry=pairs.k, held=more)

    @torch.no_grad()
    def update(self, batch: Batch, output: Output) -> None:
        """Move the key encoder, then enqueue this step's keys with their labels."""
        self.contrast.update(self.encoder, output.carry, batch.labels, self.progress)


class GPaCoConfig(CenterConfig):
    """Generalized parametric contrastive learning."""

    name: Literal["gpaco"]
    head_layers: Annotated[int, Field(ge=1)] = 3
    """Linear layers of the projection head, with ReLUs between them."""


class GPaCo(_WithCenters):
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
        labels, ft = batch.labels, self.config.feature_transform
        # one pass each, as the authors do: BatchNorm sees the two views' different statistics apart
        features = [self.encoder(view) for view in batch.views]
        q, k = (normalize(self.head(x)) for x in features)
        logits = [self.learned(x) for x in features]
        pairs = Pairs.of(q, k, self.queue)
        transformed = transform(pairs, ft, self.epoch, labelled=True, ranks=self.ranks)
        tau = self.learned.temperature(self.progress)
        others = from_others(self.ranks, transformed.q, transformed.k, labels)
        # the mean over the 2B anchors: A(i) is the same set in both halves
        swapped = transformed._replace(q=transformed.k, k=transformed.q)
        first = self.learned.loss(transformed, labels, logits[0], tau, others)
        second = self.learned.loss(swapped, labels, logits[1], tau, others)
        metrics = self.learned.metrics(logits[0], labels, tau)
        more = held(pairs, transformed, classes=labels, others=others, tau=tau, center_logits=logits[0])
        return Output(0.5 * (first + second), metrics, carry=k.detach(), held=more)

    @torch.no_grad()
    def update(self, batch: Batch, output: Output) -> None:
        """Enqueue the second view's projections with their labels."""
        self.queue.enqueue(output.carry, batch.labels)
