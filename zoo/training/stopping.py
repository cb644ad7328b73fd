"""Early stopping: which state of a training is released, and when there is no point in going on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zoo.data import ImageDataset
from zoo.modules import APART, KeyQueue
from zoo.objectives import Objective
from zoo.recipe import Recipe
from zoo.recipe.sections import EarlyStoppingSection
from zoo.training.looks import is_due
from zoo.training.step import Stepper
from zoo.training.validation import Validation


class Best(NamedTuple):
    """The best state so far.

    Attributes:
        step: after which it was there.
        value: of the recipe's metric.
        weights: all of the objective's state but queue and key encoder, on the host.
    """

    step: int
    value: float
    weights: dict[str, Tensor]


class Stopping:
    """Looks at the validation part from time to time, and keeps the best state: of equals the earlier.

    What is looked at and kept is what would be released: the moving average of the weights if there is one;
    a classifier that a method changes afterwards, before that.
    All ranks look together and decide alike.

    Args:
        section: the recipe's `training.early_stopping`.
        validation: measures.
        stepper: has the live state.

    Attributes:
        best: so far; None before the first look.
        waited: looks without a better one since then.
    """

    def __init__(self, section: EarlyStoppingSection, validation: Validation, stepper: Stepper) -> None:
        self.best: Best | None = None
        self.waited = 0
        self._section, self._validation, self._stepper = section, validation, stepper

    def due(self, done: int) -> bool:
        """Whether to look after `done` steps: every so many epochs, and at the end."""
        return is_due(self._section.every, done, self._stepper)

    @property
    def over(self) -> bool:
        """Whether training ends here."""
        return self.waited >= self._section.patience

    def look(self, done: int) -> dict[str, float]:
        """Measure the state after `done` steps and keep it if it is the best; return what to record."""
        objective, average = self._stepper.objective, self._stepper.average
        with nullcontext() if average is None else average.applied():
            found = self._validation.measure(objective)
            value = found[self._section.metric]
            if self.best is None or self._score(value) > self._score(self.best.value):
                weights = {name: value.cpu().clone() for name, value in _released(objective).items()}
                self.best, self.waited = Best(done, value, weights), 0
            else:
                self.waited += 1
        return {f"validation_{name}": value for name, value in found.items()}

    def _score(self, value: float) -> float:
        """Return what is larger for the better of two; nothing is worse than nan."""
        if math.isnan(value):
            return -math.inf
        return -value if self._section.metric == "loss" else value

    def apply(self) -> None:
        """Put the best state into the objective."""
        assert self.best is not None  # there is a look at the end
        self._stepper.objective.load_state_dict(self.best.weights, strict=False)

    def facts(self, done: int) -> dict[str, Any]:
        """Return what the release says about it; `done` steps were behind when training ended."""
        assert self.best is not None
        return stopping_facts(
            self._section, self.best, self._validation.images, done, self._stepper.steps_per_epoch
        )

    def state(self) -> dict[str, Any]:
        """Return all that `load_state` needs."""
        return {"best": None if self.best is None else self.best._asdict(), "waited": self.waited}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned.

        Raises:
            ValueError: for the best state of another objective.
        """
        best = None if state["best"] is None else Best(**state["best"])
        if best is not None and _shapes(best.weights) != _shapes(_released(self._stepper.objective)):
            raise ValueError("its best state is of other weights")
        self.best = best
        self.waited = int(state["waited"])


def stopping_facts(
    section: EarlyStoppingSection, best: Best, images: int, done: int, steps_per_epoch: int
) -> dict[str, Any]:
    """Return what a release says about early stopping.

    Args:
        section: the recipe's `training.early_stopping`.
        best: the state that is released.
        images: of the validation part.
        done: steps that were behind when training ended.
        steps_per_epoch: batches in one pass over the data.
    """
    return {
        "validation_fraction": section.validation_fraction,
        "validation_images": images,
        "metric": section.metric,
        "best_value": round(best.value, 4) if math.isfinite(best.value) else None,
        "best_epoch": best.step // steps_per_epoch,
        "stopped_at_epoch": done // steps_per_epoch,
        "chosen_on": "the validation part, put aside from the training images",
    }


def open_stopping(
    validation: ImageDataset | None, recipe: Recipe, stepper: Stepper, device: torch.device
) -> Stopping | None:
    """Return what stops a training as its recipe says; None where it says nothing.

    Args:
        validation: the images put aside.
        recipe: being followed.
        stepper: has the live state.
        device: of the training.
    """
    section = recipe.training.early_stopping
    if section is None or validation is None:
        return None
    return Stopping(section, Validation(validation, recipe, device, stepper.ranks), stepper)


def _released(objective: Objective) -> dict[str, Tensor]:
    """Return the state that a release is made of, without the bulk of it: queue, key encoder, teachers."""
    others = tuple(
        f"{name}." for name, module in objective.named_modules() if isinstance(module, (*APART, KeyQueue))
    )
    return {name: value for name, value in objective.state_dict().items() if not name.startswith(others)}


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}
