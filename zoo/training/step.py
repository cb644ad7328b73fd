"""One optimisation step, and all the state it depends on."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from zoo.data import Batch
from zoo.errors import RecipeError
from zoo.objectives import Objective, Output
from zoo.seeding import derive_seed
from zoo.training.optim import build_optimizer, build_schedule
from zoo.training.recipe import Recipe

_AUTOCAST = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Stepper:
    """Forward, backward, optimizer step and update of one objective.

    Args:
        objective: already on `device`.
        recipe: optimiser, schedule and numerics.
        steps_per_epoch: batches in one pass over the data.
        device: of the training.

    Raises:
        RecipeError: for an optimiser that timm refuses, or fp16 without a GPU.
    """

    def __init__(
        self, objective: Objective, recipe: Recipe, steps_per_epoch: int, device: torch.device
    ) -> None:
        section = recipe.training
        if section.precision == "fp16" and device.type == "cpu":
            raise RecipeError(
                'training.precision: "fp16" needs a GPU, and torch sees none; use "fp32" or "bf16"'
            )
        self.objective = objective
        self.optimizer = build_optimizer(objective, recipe.optimizer)
        self.schedule = build_schedule(self.optimizer, recipe.schedule, section.epochs, steps_per_epoch)
        self.scaler = torch.amp.GradScaler(device.type, enabled=section.precision == "fp16")
        self.parameters = [p for p in objective.parameters() if p.requires_grad]
        self.clip_grad = section.clip_grad
        self.seed = section.seed
        self.steps_per_epoch = steps_per_epoch
        self.steps = section.epochs * steps_per_epoch
        dtype = _AUTOCAST[section.precision]
        self.autocast = torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)

    @property
    def lr(self) -> float:
        """Learning rate of the first parameter group."""
        return float(self.optimizer.param_groups[0]["lr"])

    def __call__(self, step: int, batch: Batch) -> Output:
        """Do update number `step` (from 0). Random numbers are a function of (seed, step)."""
        self.schedule.step_update(step)
        torch.manual_seed(derive_seed("step", self.seed, step))
        self.objective.epoch = step / self.steps_per_epoch
        self.objective.progress = step / self.steps
        with self.autocast:
            output: Output = self.objective(batch)
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(output.loss).backward()  # type: ignore[no-untyped-call]
        if self.clip_grad is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.parameters, self.clip_grad)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.objective.update(batch, output)
        return output

    def state(self) -> dict[str, dict[str, Any]]:
        """Return all state; the schedule has none, it follows from the step."""
        return {
            "objective": self.objective.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def load_state(self, state: dict[str, dict[str, Any]]) -> None:
        """Restore what `state` returned."""
        self.objective.load_state_dict(state["objective"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
