"""Hyper-parameters that change over a training: schedules, and temperatures that are learned."""

import math
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Discriminator, Field, Tag, model_validator
from torch import Tensor, nn

from zoo.config import Config

LOWEST_TAU = 1e-3
"""Below, scores of +-1 leave the range that float32's exponential can tell apart."""


class Scheduled(Config):
    """A value that goes from `start` to `end` over the whole training, straight or along half a cosine."""

    kind: Literal["linear", "cosine"]
    """The way from `start` to `end`: straight, or half a cosine."""
    start: Annotated[float, Field(ge=0)]
    """At the first update."""
    end: Annotated[float, Field(ge=0)]
    """At the end of the training."""


class Learned(Config):
    """A temperature that is trained with the weights, strictly between `min` and `max`."""

    kind: Literal["learned"]
    start: float
    """At the first update."""
    min: Annotated[float, Field(ge=LOWEST_TAU)]
    """Lower bound."""
    max: float
    """Upper bound."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.min < self.start < self.max:
            found = f"min {self.min:g}, start {self.start:g}, max {self.max:g}"
            raise ValueError(f"found {found}, expected min < start < max")
        return self


def _tag(value: Any) -> str:  # in angle brackets, which errors leave out of a key's path
    return "<section>" if isinstance(value, (dict, Config)) else "<number>"


_Section = Annotated[Scheduled, Tag("<section>")]
Share = Annotated[Annotated[float, Field(ge=0, le=1), Tag("<number>")] | _Section, Discriminator(_tag)]
"""A number in [0, 1] or a schedule between two: momenta."""

TemperatureConfig = Annotated[
    Annotated[float, Field(ge=LOWEST_TAU), Tag("<number>")]
    | Annotated[Annotated[Scheduled | Learned, Field(discriminator="kind")], Tag("<section>")],
    Discriminator(_tag),
]
"""A number, a schedule between two, or a learned temperature."""


def value_at(value: float | Scheduled, progress: float) -> float:
    """Return a value that may be scheduled, after a share `progress` (0..1) of the training."""
    if not isinstance(value, Scheduled):
        return value
    if value.kind == "cosine":
        progress = (1 - math.cos(math.pi * progress)) / 2
    return value.start + (value.end - value.start) * progress


class Temperature(nn.Module):
    """The softmax's temperature: fixed, scheduled, or learned as min (max / min)^sigmoid(x) with a free x."""

    def __init__(self, config: float | Scheduled | Learned) -> None:
        super().__init__()
        self.config = config
        if isinstance(config, Learned):
            share = math.log(config.start / config.min) / math.log(config.max / config.min)
            self.position = nn.Parameter(torch.tensor(math.log(share / (1 - share))))

    def forward(self, progress: float) -> float | Tensor:
        """Return tau after a share `progress` (0..1) of the training: a tensor `[]` when learned."""
        if not isinstance(self.config, Learned):
            return value_at(self.config, progress)
        tau: Tensor = self.config.min * (self.config.max / self.config.min) ** self.position.sigmoid()
        return tau

    def metrics(self, tau: float | Tensor, device: torch.device) -> dict[str, Tensor]:
        """Return what to record of `tau`, on the training's device: nothing where it never changes."""
        if isinstance(self.config, float):
            return {}
        return {"tau": tau.detach() if isinstance(tau, Tensor) else torch.full((), tau, device=device)}
