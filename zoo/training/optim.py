"""Optimizer and learning-rate schedule, both from timm, and an EMA of the weights."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import timm.optim
import torch
from timm.scheduler import CosineLRScheduler, MultiStepLRScheduler, StepLRScheduler
from timm.scheduler.scheduler import Scheduler
from torch import nn

from zoo import functional
from zoo.errors import RecipeError, did_you_mean
from zoo.modules import ema_tensors
from zoo.objectives import Objective
from zoo.recipe.sections import AverageSection, OptimizerSection, ScheduleSection

# optimizers with a fused kernel, which on a CPU is 2.4x as fast as a loop over parameters
FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)


def build_optimizer(objective: nn.Module, section: OptimizerSection) -> torch.optim.Optimizer:
    """Build timm's optimizer over the objective's trainable parameters; RecipeError if timm refuses.

    `layer_decay` multiplies the rate of the encoder's n-th last layer by `layer_decay`^n, that of heads by 1.
    """
    matcher = getattr(objective, "group_matcher", None)
    layered = section.layer_decay is not None
    if layered and (matcher is None or matcher() is None):
        found = f"optimizer.layer_decay: found {section.layer_decay}, expected null"
        raise RecipeError(f"{found}: timm does not say which layers the architecture has")
    if section.name not in (names := timm.optim.list_optimizers()):
        found = f'optimizer.name: found "{section.name}", expected one of timm\'s optimizers'
        raise RecipeError(f"{found}.{did_you_mean(section.name, names)}")
    try:
        kind = timm.optim.get_optimizer_class(section.name, bind_defaults=False)
        fused = isinstance(kind, type) and issubclass(kind, FUSED)
        fused = fused and not {"foreach", "fused", "differentiable", "dampening"} & {*section.args}
        return timm.optim.create_optimizer_v2(  # type: ignore[no-any-return]
            objective,
            opt=section.name,
            lr=section.lr,
            weight_decay=section.weight_decay,
            momentum=section.momentum,
            filter_bias_and_bn=not section.decay_norm_and_bias,
            layer_decay=section.layer_decay,
            param_group_fn=_decay_all if section.decay_norm_and_bias and not layered else None,
            **({"fused": True} if fused else {}),
            **section.args,
        )
    except Exception as error:  # some need other packages, a GPU, or arguments of their own
        found = f'optimizer: timm\'s "{section.name}" refuses args {section.args}'
        raise RecipeError(f"{found}: {error}") from None


def _decay_all(objective: nn.Module) -> list[dict[str, Any]]:
    """Group parameters so that only those exempt by name have no weight decay, as timm does since 1.0.27."""
    exempt: set[str] = getattr(objective, "no_weight_decay", set)()
    decaying, others = dict[str, Any](params=[]), dict[str, Any](params=[], weight_decay=0.0)
    for name, parameter in objective.named_parameters():
        if parameter.requires_grad:
            (others if name in exempt else decaying)["params"].append(parameter)
    return [group for group in (decaying, others) if group["params"]]


def build_schedule(
    optimizer: torch.optim.Optimizer, section: ScheduleSection, epochs: int, steps_per_epoch: int
) -> Scheduler:
    """Build timm's schedule, a pure function of the number of updates: call `step_update(step)`.

    Warm-up is part of `epochs`. A milestone takes effect at the first update after that many epochs.
    """
    common = {"warmup_t": section.warmup_epochs * steps_per_epoch, "warmup_lr_init": section.warmup_lr}
    common |= {"warmup_prefix": section.warmup_prefix, "t_in_epochs": False}  # timm's defaults differ
    begun = section.warmup_epochs if section.warmup_prefix else 0  # before timm starts to count updates
    if section.name == "cosine":
        length = (epochs - begun) * steps_per_epoch
        return CosineLRScheduler(optimizer, t_initial=length, lr_min=section.min_lr, **common)
    if section.name == "multistep":  # timm's milestone is one update earlier
        milestones = [(m - begun) * steps_per_epoch + 1 for m in section.milestones]
        return MultiStepLRScheduler(optimizer, decay_t=milestones, decay_rate=section.decay_rate, **common)
    return StepLRScheduler(optimizer, decay_t=1, decay_rate=1.0, **common)


class EMA:
    """An exponential moving average of the trained weights and BatchNorm's running statistics.

    As `timm.utils.ModelEmaV3` (`use_warmup` with its defaults, gamma 1 and power 2/3), which would also copy
    and average queue, key encoder, prototypes and counters. It starts from the objective's weights.
    """

    def __init__(self, objective: Objective, section: AverageSection, steps: int) -> None:
        self.updates, self._section, self._live = 0, section, ema_tensors(objective)
        self._mean = {name: tensor.detach().clone() for name, tensor in self._live.items()}
        start = math.prod(map(self.decay, range(2, min(steps, 100_000) + 1)))
        if steps > 1 and start > 0.5:
            found = f"an average that after all {steps} steps is {start:.1%} the weights after the first one"
            raise RecipeError(f"training.ema: found {found}, expected a lower decay, warmup or more epochs")

    def decay(self, update: int) -> float:
        """Return d of update n (from 1): mean <- d mean + (1 - d) weights; in warm-up <= 1 - n^(-2/3)."""
        limit = 1 - update ** (-2 / 3) if self._section.warmup else 1.0
        return 0.0 if update == 1 else min(self._section.decay, limit)

    def update(self) -> None:
        """Move the average toward the weights; the first update copies them."""
        self.updates += 1
        live = [tensor.detach() for tensor in self._live.values()]
        functional.ema_update([*self._mean.values()], live, self.decay(self.updates))

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the objective's weights and the average."""
        for name, live in self._live.items():
            own = live.clone()
            live.copy_(self._mean[name])
            self._mean[name].copy_(own)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Use the average as the objective's weights inside the block."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    def state(self) -> dict[str, Any]:
        """Return the state to save."""
        return {"updates": self.updates, "mean": self._mean}

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.updates = int(state["updates"])
        for name, mean in self._mean.items():
            mean.copy_(state["mean"][name])
