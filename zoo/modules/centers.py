"""Learned class centers, the result of PaCo and of every classifier."""

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from zoo.errors import ZooError


class Centers(NamedTuple):
    """One center per class: its logit for pooled features x `[D_f]` is `weight[c] . x + bias[c]`.

    Attributes:
        weight: centers `[C, D_f]`.
        bias: offsets `[C]`.
        class_counts: training images of each class `[C]`, int64; -1: unknown.
        prototypes: PiCO's prototypes `[C, D]`, unit rows in projection space; None for other objectives.
        class_names: the C class names; empty for centers outside a release.
    """

    weight: Tensor
    bias: Tensor
    class_counts: Tensor
    prototypes: Tensor | None = None
    class_names: tuple[str, ...] = ()

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that are not None, by name."""
        return {name: each for name, each in self._asdict().items() if isinstance(each, Tensor)}

    def logits(self, features: Tensor) -> Tensor:
        """Return the logits `[N, C]` of pooled features `[N, D_f]`, without a class prior."""
        return F.linear(features, self.weight.to(features), self.bias.to(features))

    def nearest(self, features: Tensor, k: int = 5) -> tuple[Tensor, Tensor]:
        """Return probability and index of the k most probable classes `[N, k]`; ZooError for k < 1.

        Probabilities are the softmax of the logits of pooled features `[N, D_f]`; k is at most C.
        """
        if k < 1:
            raise ZooError(f"k: found {k}, expected at least 1")
        probability, index = self.logits(features).softmax(dim=1).topk(min(k, len(self.weight)), dim=1)
        return probability, index

    def similarity(self) -> Tensor:
        """Return the cosine similarities of all pairs of centers `[C, C]`, ignoring the bias."""
        unit = F.normalize(self.weight, dim=1)
        return (unit @ unit.T).clamp(-1, 1)
