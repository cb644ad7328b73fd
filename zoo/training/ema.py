"""An exponential moving average (EMA) of the weights, of which the training itself takes no notice.

Not timm's `ModelEmaV3`: it copies the whole module, and averages queue, teacher and key encoder as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from zoo import functional
from zoo.errors import RecipeError
from zoo.modules import APART
from zoo.objectives import Objective
from zoo.recipe.sections import AverageSection

MOST_OF_THE_START = 0.5
"""Share of the weights after the first step that the average may have at the end."""


class EMA:
    """The average of what gradients train, and of BatchNorm's running statistics beside it.

    The rest of the state is what it is in the training: constants, integer counters, and what has a rule of
    its own (queue, key encoder with its statistics, PiCO's prototypes and targets). Each update is one
    operation on all tensors together and reads nothing from the device. It is done after every step, also
    after one whose gradients a loss scaler has thrown away, as timm does.

    Args:
        objective: being trained; the average begins as its weights.
        section: the recipe's `training.ema`.
        steps: of the whole training.

    Attributes:
        updates: done so far.

    Raises:
        RecipeError: if the training is too short for the decay: its beginning would be released.

    Source: `timm.utils.ModelEmaV3` of timm 1.0 (`use_warmup` with its defaults, gamma 1 and power 2/3).
    """

    def __init__(self, objective: Objective, section: AverageSection, steps: int) -> None:
        self.updates = 0
        self._section = section
        self._live = averaged(objective)
        self._mean = {name: tensor.detach().clone() for name, tensor in self._live.items()}
        start = math.prod(self.decay(update) for update in range(2, min(steps, 100_000) + 1))
        if steps > 1 and start > MOST_OF_THE_START:
            raise RecipeError(
                f"training.ema: after all {steps} steps {start:.1%} of the average would still be the weights"
                f" after the first step; expected at most {MOST_OF_THE_START:.0%}: a decay lower than "
                f"{section.decay:g}, warmup: true, or more epochs"
            )

    def decay(self, update: int) -> float:
        """Return the share of the average that update number `update`, from 1, keeps.

        The first update copies the weights. From then on it is `section.decay`; with warm-up the smaller of
        it and 1 - n^(-2/3) in update n, so that a short training's average is not of its beginning.
        """
        if update <= 1:
            return 0.0
        limit = 1 - update ** (-2 / 3) if self._section.warmup else 1.0
        return min(self._section.decay, limit)

    def update(self) -> None:
        """Move the average toward the weights; waits for nothing."""
        self.updates += 1
        live = [tensor.detach() for tensor in self._live.values()]
        functional.ema_update([*self._mean.values()], live, self.decay(self.updates))

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
        """Go on from what `state` returned."""
        _copy(self._mean, state["mean"])
        self.updates = int(state["updates"])


def averaged(objective: Objective) -> dict[str, Tensor]:
    """Return by name what is averaged of an objective's state, the live tensors."""
    apart = tuple(f"{name}." for name, module in objective.named_modules() if isinstance(module, APART))
    trained = {name: p for name, p in objective.named_parameters() if p.requires_grad}
    statistics = {
        name: buffer
        for name, buffer in objective.named_buffers()
        if name.endswith(("running_mean", "running_var")) and not name.startswith(apart)
    }
    return {**trained, **statistics}


@torch.no_grad()
def _copy(to: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for name, tensor in to.items():
        tensor.copy_(values[name])
