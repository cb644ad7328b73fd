"""MoCo v1 and v2, with the optional feature transformation and the losses of the temperature paper."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from zoo import functional
from zoo.config import Config, named_by
from zoo.modules import Tau
from zoo.objectives.base import Batch, Output
from zoo.objectives.momentum_contrast import MomentumConfig, WithKeyEncoder

Keep = Annotated[float, Field(gt=0, le=1, description="Share of the negatives with the highest scores.")]
Weight = Annotated[float, Field(gt=0, description="lambda, of each negative's score.")]


class InfoNCE(Config):
    """Softmax of the positive among all negatives."""

    name: Literal["info_nce"] = "info_nce"


class HardContrastive(Config):
    """InfoNCE over each anchor's hardest negatives."""

    name: Literal["hard_contrastive"]
    keep: Keep


class Simple(Config):
    """-s_ii + weight * (sum of the negatives' scores): no hardness, no temperature."""

    name: Literal["simple"]
    weight: Weight


class HardSimple(Config):
    """The simple loss over each anchor's hardest negatives."""

    name: Literal["hard_simple"]
    weight: Weight
    keep: Keep


class MoCoConfig(MomentumConfig):
    """Momentum contrast; defaults are v2's: two head layers, tau 0.2. v1: one head layer, tau 0.07.

    The papers' heads have no BatchNorm, but short schedules need it: without, the projections of a ReLU
    network all point one way at first, and leaving that takes thousands of steps.
    """

    name: Literal["moco"]
    tau: Tau | None = 0.2
    """Temperature, by which scores are divided; null for the simple losses, which have none."""
    loss: Annotated[
        InfoNCE | HardContrastive | Simple | HardSimple, Field(discriminator="name"), named_by("name")
    ] = InfoNCE()
    """InfoNCE, or one of the temperature paper (https://arxiv.org/abs/2012.09740)."""

    @model_validator(mode="after")
    def _temperature_fits(self) -> Self:
        needed = isinstance(self.loss, InfoNCE | HardContrastive)
        if needed != (self.tau is not None):
            expected = "a temperature" if needed else "null"
            raise ValueError(f'tau: found {self.tau!r} with loss "{self.loss.name}", expected {expected}')
        return self


class MoCo(WithKeyEncoder):
    """Instance discrimination against a queue of momentum-encoded keys.
    Source: https://arxiv.org/abs/1911.05722 (v1), https://arxiv.org/abs/2003.04297 (v2); the other losses
    https://arxiv.org/abs/2012.09740.
    """

    Config = MoCoConfig
    without_labels = True

    def forward(self, batch: Batch) -> Output:
        """Contrast the first view's queries with the second view's keys and the queue."""
        tau = self.config.tau
        _, pairs = self.encode(batch.views)
        q, k, queue, _, valid = after_ft = self.apply_ft(pairs, labelled=False)
        match self.config.loss:
            case InfoNCE():
                loss = functional.info_nce(q, k, queue, tau=tau, valid=valid)
            case HardContrastive(keep=keep):
                loss = functional.hard_contrastive(q, k, queue, tau=tau, keep=keep, valid=valid)
            case Simple(weight=weight):
                loss = functional.simple_contrastive(q, k, queue, weight=weight, valid=valid)
            case HardSimple(weight=weight, keep=keep):
                loss = functional.hard_simple(q, k, queue, weight=weight, keep=keep, valid=valid)
        return Output(loss, {}, carry=pairs.k, held=pairs.held(after_ft))
