"""Hyper-parameters shared by several objectives; some may be scheduled. Does not import torch."""

import math
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from zoo.config import Config

HeadLayers = Annotated[int, Field(ge=1, le=64, description="Linear layers of the projection head.")]
HeadHidden = Annotated[int, Field(ge=1, le=1 << 31, description="Width between the head's layers.")]
HeadBatchNorm = Annotated[bool, Field(description="BatchNorm before the head's ReLUs.")]
QueueSize = Annotated[int, Field(ge=1, le=1 << 40, description="K; any size.")]
# below 0.001, scores of +-1 exceed the range of float32's exponential
Tau = Annotated[float, Field(ge=1e-3, description="Temperature that the samples' scores are divided by.")]
"""A temperature of a softmax."""


class Scheduled(Config):
    """A value that moves from `start` to `end` over the training, linearly or along half a cosine."""

    kind: Literal["linear", "cosine"]
    """Shape of the schedule: linear, or half a cosine."""
    start: Annotated[float, Field(ge=0, le=1)]
    """Value at the first update."""
    end: Annotated[float, Field(ge=0, le=1)]
    """Value at the end of the training."""


def section_or_value(value: Any) -> str:
    """Return the tag for a key that accepts either, in angle brackets, which are omitted from error paths."""
    return "<section>" if isinstance(value, (dict, Config)) else "<value>"


MomentumSchedule = Annotated[
    Annotated[float, Field(ge=0, le=1), Tag("<value>")] | Annotated[Scheduled, Tag("<section>")],
    Discriminator(section_or_value),
]
"""A number in [0, 1], or a schedule between two, for momenta."""


def value_at(value: float | Scheduled, progress: float) -> float:
    """Return the value, scheduled or constant, after a share `progress` (0..1) of the training."""
    if not isinstance(value, Scheduled):
        return value
    if value.kind == "cosine":
        progress = (1 - math.cos(math.pi * progress)) / 2
    return value.start + (value.end - value.start) * progress
