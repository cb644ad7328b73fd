"""PaCo: supervised contrast with learnable, rebalanced class centers."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from zoo import functional
from zoo.backbones import feature_dim
from zoo.modules import Centers, KeyQueue, MomentumEncoder, projection_head
from zoo.objectives.base import Batch, DataInfo, Objective, ObjectiveConfig, Output


class PaCoConfig(ObjectiveConfig):
    """Parametric contrastive learning."""

    name: Literal["paco"]
    dim: Annotated[int, Field(ge=1)]
    """D, size of the projection."""
    head_layers: Annotated[int, Field(ge=1)]
    head_hidden: Annotated[int, Field(ge=1)]
    head_batchnorm: bool
    queue_size: Annotated[int, Field(ge=1)]
    tau: Annotated[float, Field(gt=0)]
    """Temperature of the samples' scores."""
    alpha: Annotated[float, Field(ge=0)]
    """Weight of each sample among the positives; 0 leaves the center alone."""
    beta: Annotated[float, Field(gt=0)]
    """Weight of the own center among the positives."""
    gamma: Annotated[float, Field(ge=0)]
    """Weight of the samples in the softmax's denominator."""
    center_tau: Annotated[float, Field(gt=0)]
    rebalance: bool
    """Add the log class prior to the centers' logits (Balanced Softmax); off: plain centers."""
    reduction: Literal["mean", "sum"]
    """Over positives: the authors' code takes the mean, the paper writes the sum."""
    momentum: Annotated[float, Field(ge=0, le=1)]
    key_groups: Annotated[int, Field(ge=1)]
    """Groups of keys with BatchNorm statistics of their own; 1: off, as in the authors' runs on one GPU."""


class PaCo(Objective):
    """MoCo with labels, whose softmax also holds one learnable center per class.

    The centers are the rows of a linear layer on the pooled features (not on the projection), so that
    encoder and centers together are a classifier; its logits carry no prior at test time.

    Source: https://arxiv.org/abs/2107.12028.
    """

    Config = PaCoConfig
    num_views = 2

    log_prior: Tensor
    class_counts: Tensor

    def __init__(self, config: PaCoConfig, encoder: nn.Module, info: DataInfo) -> None:
        super().__init__(config, encoder, info)
        features = feature_dim(encoder)
        self.head = projection_head(
            features,
            config.dim,
            layers=config.head_layers,
            hidden=config.head_hidden,
            batchnorm=config.head_batchnorm,
        )
        self.classifier = nn.Linear(features, info.num_classes)
        self.teacher = MomentumEncoder(nn.Sequential(encoder, self.head), key_groups=config.key_groups)
        self.queue = KeyQueue(config.queue_size, config.dim)
        prior = functional.log_prior(info.class_counts)
        self.register_buffer("log_prior", prior if config.rebalance else torch.zeros_like(prior))
        self.register_buffer("class_counts", info.class_counts)

    def forward(self, batch: Batch) -> Output:
        """Contrast the first view with the second's keys, the batch itself, the queue and the centers."""
        features = self.encoder(batch.views[0])
        q = F.normalize(self.head(features).float(), dim=1)
        k = F.normalize(self.teacher(batch.views[1]).float(), dim=1)
        center_logits = self.classifier(features).float()
        config = self.config
        loss = functional.paco(
            q,
            k,
            batch.labels,
            self.queue.keys,
            self.queue.labels,
            center_logits,
            self.log_prior,
            alpha=config.alpha,
            tau=config.tau,
            beta=config.beta,
            gamma=config.gamma,
            center_tau=config.center_tau,
            reduction=config.reduction,
        )
        with torch.no_grad():
            metrics = {
                "positive_score": (q * k).sum(dim=1).mean(),
                "train_accuracy": 100 * (center_logits.argmax(dim=1) == batch.labels).float().mean(),
            }
        return Output(loss, metrics, carry=k)

    @torch.no_grad()
    def update(self, batch: Batch, output: Output) -> None:
        """Move the key encoder, then enqueue this step's keys with their labels."""
        self.teacher.update(nn.Sequential(self.encoder, self.head), self.config.momentum)
        self.queue.enqueue(output.carry, batch.labels)

    def centers(self) -> Centers:
        """Return the centers learned so far."""
        return Centers(self.classifier.weight.detach(), self.classifier.bias.detach(), self.class_counts)
