"""Optimizer and learning-rate schedule, both from timm, and the moving average of the weights (EMA)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import timm.optim
import torch
from timm.scheduler import CosineLRScheduler, MultiStepLRScheduler, StepLRScheduler
from timm.scheduler.scheduler import Scheduler
from torch import Tensor, nn

from zoo import functional
from zoo.errors import RecipeError, did_you_mean
from zoo.modules import APART
from zoo.objectives import Objective
from zoo.recipe.sections import AverageSection, OptimizerSection, ScheduleSection

FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
"""Optimizers with one kernel for all parameters, which takes the learning rate from the device."""


def build_optimizer(objective: nn.Module, section: OptimizerSection) -> torch.optim.Optimizer:
    """Build timm's optimizer over the objective's trainable parameters.

    With `layer_decay` timm's schedules multiply each group's rate by its `lr_scale`: 1 around the encoder,
    `layer_decay`^n for the encoder's n-th layer from its end (see `Objective.group_matcher`).

    Raises:
        RecipeError: for what timm refuses.
    """
    matcher = getattr(objective, "group_matcher", None)
    layered = section.layer_decay is not None
    if layered and (matcher is None or matcher() is None):
        raise RecipeError(
            f"optimizer.layer_decay: found {section.layer_decay}, but timm does not say which layers the "
            "architecture has (group_matcher); expected null"
        )
    names = timm.optim.list_optimizers()
    if section.name not in names:
        hint = did_you_mean(section.name, names)
        raise RecipeError(
            f'optimizer.name: found "{section.name}", expected one of timm\'s optimizers.{hint}'
        )
    kernels: dict[str, Any] = {}
    chosen = {"foreach", "fused", "differentiable", "dampening"} & {*section.args}
    try:
        kind = timm.optim.get_optimizer_class(section.name, bind_defaults=False)
        if isinstance(kind, type) and issubclass(kind, FUSED) and not chosen:
            # one pass over all parameters: 2.4x a loop on a CPU, one kernel on a GPU, which then also looks
            # whether GradScaler's gradients are finite, without a wait
            kernels = {"fused": True}
        optimizer: torch.optim.Optimizer = timm.optim.create_optimizer_v2(
            objective,
            opt=section.name,
            lr=section.lr,
            weight_decay=section.weight_decay,
            momentum=section.momentum,
            filter_bias_and_bn=not section.decay_norm_and_bias,
            layer_decay=section.layer_decay,
            param_group_fn=_decay_all if section.decay_norm_and_bias and not layered else None,
            **kernels,
            **section.args,
        )
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        raise RecipeError(
            f'optimizer.args: timm\'s "{section.name}" refuses {section.args}: {error}'
        ) from None
    return optimizer


def begin_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Give torch's SGD momentum buffers of zeros where it has none yet; its first update is the same.

    Its fused kernel allocates them in the first update. If GradScaler skips that one, whose gradients are not
    finite, uninitialised memory becomes momentum.
    """
    if not isinstance(optimizer, torch.optim.SGD):
        return
    for group in optimizer.param_groups:
        if group["momentum"] and not group["dampening"]:  # which changes the first update, and is never fused
            for parameter in group["params"]:
                optimizer.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))


def base_rate(optimizer: torch.optim.Optimizer) -> float:
    """Return the learning rate of the layers that `layer_decay` leaves alone: the largest of all groups."""
    return max(float(group["lr"]) for group in optimizer.param_groups)


def _decay_all(objective: nn.Module) -> list[dict[str, Any]]:
    """Group parameters so that weight decay covers norms and biases too, but not what is exempt by name."""
    trained = [(name, p) for name, p in objective.named_parameters() if p.requires_grad]
    exempt: set[str] = getattr(objective, "no_weight_decay", set)()
    groups: list[dict[str, Any]] = [
        {"params": [p for name, p in trained if name not in exempt]},
        {"params": [p for name, p in trained if name in exempt], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def build_schedule(
    optimizer: torch.optim.Optimizer, section: ScheduleSection, epochs: int, steps_per_epoch: int
) -> Scheduler:
    """Build timm's schedule, a pure function of the number of updates done: call `step_update(step)`.

    A warm-up is part of `epochs`, not added to it, also with `warmup_prefix`. A milestone m takes effect with
    the first update of the epoch after m whole ones (timm's own reading is one update earlier, hence + 1).
    """
    common = {
        "warmup_t": section.warmup_epochs * steps_per_epoch,
        "warmup_lr_init": section.warmup_lr,
        "warmup_prefix": section.warmup_prefix,  # true by default in timm's multistep schedule
        "t_in_epochs": False,
    }
    if section.name == "cosine":
        before = section.warmup_epochs if section.warmup_prefix else 0
        return CosineLRScheduler(
            optimizer,
            t_initial=(epochs - before) * steps_per_epoch,
            lr_min=section.min_lr,
            **common,
        )
    if section.name == "multistep":
        milestones = [m * steps_per_epoch + 1 for m in section.milestones]
        return MultiStepLRScheduler(optimizer, decay_t=milestones, decay_rate=section.decay_rate, **common)
    return StepLRScheduler(optimizer, decay_t=1, decay_rate=1.0, **common)


MOST_OF_THE_START = 0.5
"""Largest share of the final average that the weights after the first step may have."""


class EMA:
    """An exponential moving average of the trained weights and BatchNorm's running statistics.

    Queue, key encoder, prototypes and counters stay as they are in the training: timm's own `ModelEmaV3`
    would copy and average them as well. The average moves after every step, also after one whose gradients a
    loss scaler has thrown away, as in timm.

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
        it and 1 - n^(-2/3) in update n.
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
        """Replace the objective's weights by the average."""
        _copy(self._live, self._mean)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Replace the objective's weights by the average inside the block."""
        own = {name: tensor.detach().clone() for name, tensor in self._live.items()}
        self.apply()
        try:
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
