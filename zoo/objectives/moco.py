"""MoCo v1 and v2, with the optional feature transformation and the losses of the temperature paper."""

from __future__ import annotations

from typing import Annotated, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from zoo import functional
from zoo.config import Config, named_by
from zoo.modules import Temperature, TemperatureConfig
from zoo.objectives.base import Batch, DataInfo, Objective, Output
from zoo.objectives.momentum_contrast import MomentumConfig, MomentumContrast, Pairs, held, transform

Keep = Annotated[float, Field(gt=0, le=1)]
Weight = Annotated[float, Field(gt=0)]


class InfoNCE(Config):
    """Softmax of the positive among all negatives."""

    name: Literal["info_nce"] = "info_nce"


class HardContrastive(Config):
    """InfoNCE over each anchor's hardest negatives, the share `keep`."""

    name: Literal["hard_contrastive"]
    keep: Keep
    """Share of the negatives, those with the highest scores."""


class Simple(Config):
    """-s_ii + weight * (sum of the negatives' scores): no hardness, no temperature."""

    name: Literal["simple"]
    weight: Weight
    """lambda, of each negative's score."""


class HardSimple(Config):
    """The simple loss over each anchor's hardest negatives, the share `keep`."""

    name: Literal["hard_simple"]
    weight: Weight
    """lambda, of each negative's score."""
    keep: Keep
    """Share of the negatives, those with the highest scores."""


class MoCoConfig(MomentumConfig):
    """Momentum contrast.

    Defaults are v2's: two head layers, tau 0.2 (with blur among the views and a cosine schedule). v1: one
    head layer, tau 0.07.

    The papers' heads have no BatchNorm, but short schedules need it: without, the projections of a ReLU
    network all point one way at first, and leaving that takes thousands of steps.
    """

    name: Literal["moco"]
    tau: TemperatureConfig | None = 0.2
    """Temperature, by which similarities are divided; null for the simple losses, which have none."""
    loss: Annotated[
        InfoNCE | HardContrastive | Simple | HardSimple, Field(discriminator="name"), named_by("name")
    ] = InfoNCE()
    """InfoNCE, or one of the temperature paper (https://arxiv.org/abs/2012.09740)."""

    @model_validator(mode="after")
    def _temperature_where_there_is_one(self) -> Self:
        has_one = isinstance(self.loss, InfoNCE | HardContrastive)
        if has_one != (self.tau is not None):
            expected = "a temperature" if has_one else "null: this loss has no temperature"
            raise ValueError(f'tau: found {self.tau!r} with loss "{self.loss.name}", expected {expected}')
        return self


class MoCo(Objective):
    """Instance discrimination against a queue of momentum-encoded keys.

    Source: https://arxiv.org/abs/1911.05722 (v1), https://arxiv.org/abs/2003.04297 (v2); the other losses
    https://arxiv.org/abs/2012.09740.
    """

    Config = MoCoConfig
    num_views = 2

    def __init__(self, config: MoCoConfig, encoder: nn.Module, info: DataInfo) -> None:
        super().__init__(config, encoder, info)
        self.contrast = MomentumContrast(encoder, config)
        self.temperature = None if config.tau is None else Temperature(config.tau)

    @classmethod
    def learns_without_labels(cls, config: MoCoConfig) -> bool:
        """See `Objective.learns_without_labels`."""
        return True

    def forward(self, batch: Batch) -> Output:
        """Contrast the first view's queries with the second view's keys and the queue."""
        _, pairs = self.contrast(self.encoder, batch.views)
        ft = self.config.feature_transform
        transformed = transform(pairs, ft, self.epoch, labelled=False, ranks=self.ranks)
        metrics = dict[str, Tensor]()
        tau: float | Tensor = 1.0  # for the simple losses, which do not read it
        if self.temperature is not None:
            tau = self.temperature(self.progress)
            metrics = self.temperature.metrics(tau, pairs.q.device)
        loss = _loss(self.config.loss, transformed, tau)
        return Output(loss, metrics, carry=pairs.k, held=held(pairs, transformed))

    @torch.no_grad()
    def update(self, batch: Batch, output: Output) -> None:
        """Move the key encoder, then enqueue the original keys of this step."""
        self.contrast.update(self.encoder, output.carry, batch.labels, self.progress)


def _loss(
    config: InfoNCE | HardContrastive | Simple | HardSimple, pairs: Pairs, tau: float | Tensor
) -> Tensor:
    q, k, queue, _, valid = pairs
    match config:
        case InfoNCE():
            return functional.info_nce(q, k, queue, tau=tau, valid=valid)
        case HardContrastive():
            return functional.hard_contrastive(q, k, queue, tau=tau, keep=config.keep, valid=valid)
        case Simple():
            return functional.simple_contrastive(q, k, queue, weight=config.weight, valid=valid)
        case HardSimple():
            return functional.hard_simple(q, k, queue, weight=config.weight, keep=config.keep, valid=valid)
