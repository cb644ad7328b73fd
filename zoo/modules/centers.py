"""Learned class centers: the product of PaCo and of every classifier."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import torch.nn.functional as F
from torch import Tensor

from zoo.errors import ZooError


class Nearest(NamedTuple):
    """The k nearest classes of N features, most probable first: softmax of the logits, and class `[N, k]`."""

    probability: Tensor
    index: Tensor  # type: ignore[assignment]  # shadows tuple.index, as in `Batch`


class _Tensors(NamedTuple):
    weight: Tensor
    bias: Tensor
    class_counts: Tensor
    prototypes: Tensor | None = None


class Centers(_Tensors):
    """One center per class: its logit for pooled features x `[D_f]` is `weight[c] . x + bias[c]`.

    Attributes:
        weight: centers `[C, D_f]`.
        bias: offsets `[C]`.
        class_counts: training images of each class `[C]`, int64; -1 where not known.
        prototypes: PiCO's, unit rows in the space of its projection `[C, D]`; None for other objectives.
        class_names: C of them, no member of the tuple; empty for centers that are in no release.
    """

    class_names: tuple[str, ...]

    def __new__(cls, *tensors: Any, class_names: Sequence[str] = (), **named: Any) -> Self:
        centers = super().__new__(cls, *tensors, **named)
        centers.class_names = tuple(class_names)
        return centers

    def _replace(self, /, **changes: Any) -> Self:
        """Return a copy with other members, `class_names` among them."""
        return type(self)(**{**self._asdict(), "class_names": self.class_names, **changes})

    def logits(self, features: Tensor) -> Tensor:
        """Return the logits `[N, C]` of pooled features `[N, D_f]`, without a class prior."""
        return F.linear(features, self.weight.to(features), self.bias.to(features))

    def nearest(self, features: Tensor, k: int = 5) -> Nearest:
        """Return the k most probable classes of pooled features `[N, D_f]`, at most C; ZooError for k < 1."""
        if k < 1:
            raise ZooError(f"k: found {k}, expected at least 1")
        probability = self.logits(features).softmax(dim=1)
        return Nearest(*probability.topk(min(k, len(self.weight)), dim=1))

    def similarity(self) -> Tensor:
        """Return the cosine similarity of every two centers `[C, C]`; the bias plays no part."""
        unit = F.normalize(self.weight, dim=1)
        return (unit @ unit.T).clamp(-1, 1)
