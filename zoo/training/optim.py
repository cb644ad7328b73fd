"""Optimiser and learning-rate schedule, both from timm."""

from __future__ import annotations

from typing import Any

import timm.optim
import torch
from timm.scheduler import CosineLRScheduler, MultiStepLRScheduler, StepLRScheduler
from timm.scheduler.scheduler import Scheduler
from torch import Tensor, nn

from zoo.errors import RecipeError, did_you_mean
from zoo.recipe.sections import OptimizerSection, ScheduleSection

FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
"""Optimizers with one kernel for all parameters, which takes the learning rate from the device."""


def build_optimizer(objective: nn.Module, section: OptimizerSection) -> torch.optim.Optimizer:
    """Build timm's optimizer over the objective's trainable parameters.

    With `layer_decay`, each group has the factor `lr_scale` of its layer, which timm's schedules multiply the
    rate by: 1 for the head and all else around the encoder, `layer_decay`^n for the encoder's n-th layer from
    its end. Layers are timm's own: see `Objective.group_matcher`.

    Raises:
        RecipeError: for a name that timm lacks, `args` that it refuses, or `layer_decay` for an encoder that
            timm does not divide into layers.
    """
    matcher = getattr(objective, "group_matcher", None)
    if section.layer_decay is not None and (matcher is None or matcher() is None):
        raise RecipeError(
            f"optimizer.layer_decay: found {section.layer_decay}, but timm does not say which layers the "
            "architecture has (group_matcher); expected null"
        )
    layered = section.layer_decay is not None
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
    if getattr(optimizer, "is_second_order", False):
        raise RecipeError(
            f'optimizer.name: "{section.name}" needs second derivatives, which the loop does not compute'
        )
    return optimizer


def begin_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Give torch's SGD its momentum buffers now, zeros, where it has none yet; its first update is the same.

    Its fused kernel makes them in the first update, and where GradScaler has that one left out, since
    gradients were not finite, what was in memory before becomes momentum.
    """
    if not isinstance(optimizer, torch.optim.SGD):
        return
    for group in optimizer.param_groups:
        if group["momentum"] and not group["dampening"]:  # which changes the first update, and is never fused
            for parameter in group["params"]:
                optimizer.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))


def match_memory_format(optimizer: torch.optim.Optimizer) -> None:
    """Give optimizer state that has a parameter's shape the memory format of its parameter.

    Fused kernels walk both in the order of memory, so momentum written under another `channels_last` would
    meet other weights than its own, without a message; torch keeps the layout that was saved.
    """
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if not isinstance(value, Tensor) or value.shape != parameter.shape:
                continue
            if value.stride() != parameter.stride():
                state[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


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
