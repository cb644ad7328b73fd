"""A moving average of the weights, of which the training itself takes no notice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from zoo import functional
from zoo.modules import APART
from zoo.objectives import Objective
from zoo.recipe.sections import AverageSection

_STATISTICS = ("running_mean", "running_var")


class Average:
    """The average of what gradients train, and of BatchNorm's running statistics beside it.

    The rest of the state is what it is in the training: constants, integer counters, and what has a rule of
    its own (queue, key encoder with its statistics, PiCO's prototypes and targets). Each update is one
    operation on all tensors together and reads nothing from the device. It is done after every step, also
    after one whose gradients a loss scaler has thrown away, as timm does.

    The first update copies the weights. From then on the decay is `section.decay`; with warm-up the smaller
    of it and 1 - n^(-2/3) in update n, so that a short training's average is not of its beginning.

    Args:
        objective: being trained; the average begins as its weights.
        section: the recipe's `training.ema`.

    Attributes:
        updates: done so far.

    Source: `timm.utils.ModelEmaV3` of timm 1.0 (`use_warmup` with its defaults, gamma 1 and power 2/3).
    """

    def __init__(self, objective: Objective, section: AverageSection) -> None:
        self.updates = 0
        self._section = section
        self._live = averaged(objective)
        self._mean = {name: tensor.detach().clone() for name, tensor in self._live.items()}

    def decay(self, update: int) -> float:
        """Return the share of the average that update number `update`, from 1, keeps."""
        if update <= 1:
            return 0.0
        limit = 1 - update ** (-2 / 3) if self._section.warmup else 1.0
        return min(self._section.decay, limit)

    def update(self) -> None:
        """Move the average toward the weights; waits for nothing."""
        self.updates += 1
        live = [tensor.detach() for tensor in self._live.values()]
        functional.ema_update([*self._mean.values()], live, self.decay(self.updates))

    @torch.no_grad()
    def apply(self) -> None:
        """Put the average into the objective, in place of the weights."""
        _copy(self._live, self._mean)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the objective have the average as its weights inside the block, and its own again after it."""
        own = {name: tensor.detach().clone() for name, tensor in self._live.items()}
        try:
            self.apply()
            yield
        finally:
            _copy(self._live, own)

    def state(self) -> dict[str, Any]:
        """Return all that `load_state` needs."""
        return {"updates": self.updates, "mean": self._mean}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned.

        Raises:
            ValueError: for the average of another objective.
        """
        found = state["mean"]
        if {name: value.shape for name, value in found.items()} != {
            name: value.shape for name, value in self._mean.items()
        }:
            raise ValueError("the moving average is of other weights")
        _copy(self._mean, found)
        self.updates = int(state["updates"])


def averaged(objective: Objective) -> dict[str, Tensor]:
    """Return by name what is averaged of an objective's state, the live tensors."""
    apart = tuple(f"{name}." for name, module in objective.named_modules() if isinstance(module, APART))
    trained = {name: p for name, p in objective.named_parameters() if p.requires_grad}
    statistics = {
        name: buffer
        for name, buffer in objective.named_buffers()
        if name.rpartition(".")[2] in _STATISTICS and not name.startswith(apart)
    }
    return {**trained, **statistics}


@torch.no_grad()
def _copy(to: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for name, tensor in to.items():
        tensor.copy_(values[name])
