"""Learned class centers: the product of PaCo and of every classifier."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Centers(NamedTuple):
    """One center per class, in the space of the backbone's pooled features.

    The logit of class c for features x `[D_f]` is `weight[c] . x + bias[c]`.

    Attributes:
        weight: centers `[C, D_f]`.
        bias: offsets `[C]`.
        class_counts: training images of each class `[C]`, int64.
        prototypes: PiCO's, unit rows in the space of its projection `[C, D]`; None for other objectives.
    """

    weight: Tensor
    bias: Tensor
    class_counts: Tensor
    prototypes: Tensor | None = None
