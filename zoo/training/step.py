"""One optimisation step, and all the state it depends on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from zoo.data import Batch
from zoo.errors import RecipeError
from zoo.modules import running_statistics, synchronize_batchnorm
from zoo.objectives import Objective, Output
from zoo.ranks import ALONE, Ranks
from zoo.recipe import Recipe
from zoo.recipe.sections import ON_GPU_ALONE
from zoo.seeding import derive_seed
from zoo.training.acceleration import checkpoint_activations, frozen_statistics
from zoo.training.accumulation import gathered, join, layouts, split
from zoo.training.average import Average
from zoo.training.observe import Observation
from zoo.training.optim import (
    as_parameters_lie,
    base_rate,
    begin_momentum,
    build_optimizer,
    build_schedule,
    with_own_kernels,
)
from zoo.training.parallel import Parallel, distributed

_AUTOCAST = {"fp32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}

Span = Callable[[str], AbstractContextManager[object]]
"""Opens a context around a named part of the step, for who wants to know how long it takes."""


class Stepper:
    """Forward, backward, optimizer step and update of one objective.

    Args:
        objective: already on `device`.
        recipe: optimiser, schedule and numerics.
        steps_per_epoch: batches in one pass over the data.
        device: of the training.
        span: is told when a part of the step begins and ends.
        ranks: that do the step together, each with its rows of the batch. After it every tensor of the state
            is the same on all of them.

    Raises:
        RecipeError: for an optimiser that timm refuses; for fp16, or `sync_batchnorm` over several ranks,
            without a GPU.
    """

    def __init__(
        self,
        objective: Objective,
        recipe: Recipe,
        steps_per_epoch: int,
        device: torch.device,
        span: Span = nullcontext,
        ranks: Ranks = ALONE,
    ) -> None:
        section = recipe.training
        if section.precision in ON_GPU_ALONE and device.type == "cpu":
            raise RecipeError(
                f'training.precision: "{section.precision}" needs a GPU, and torch sees none; use "fp32" or '
                '"bf16"'
            )
        if section.checkpoint_activations:
            checkpoint_activations(objective.encoder, recipe.backbone.arch)
        objective.join(ranks)
        if section.sync_batchnorm and not ranks.alone:
            if device.type == "cpu":
                raise RecipeError(
                    "training.sync_batchnorm: found true on several ranks without a GPU, expected false: "
                    "torch joins BatchNorm's statistics on GPUs alone"
                )
            synchronize_batchnorm(objective)
        self.objective = objective
        self.ranks = ranks
        self.parallel: Parallel = distributed(objective, ranks)
        self.statistics = running_statistics(objective)
        self.average = None if section.ema is None else Average(objective, section.ema)
        self.optimizer = build_optimizer(objective, recipe.optimizer)
        self.schedule = build_schedule(self.optimizer, recipe.schedule, section.epochs, steps_per_epoch)
        self.scaler = torch.amp.GradScaler(device.type, enabled=section.precision == "fp16")
        if self.scaler.is_enabled():
            begin_momentum(self.optimizer)
        self.parameters = [p for p in objective.parameters() if p.requires_grad]
        self.clip_grad = section.clip_grad
        self.accumulate = section.accumulate
        self.checkpointing = section.checkpoint_activations
        self.seed = section.seed
        self.steps_per_epoch = steps_per_epoch
        self.steps = section.epochs * steps_per_epoch
        dtype = _AUTOCAST[section.precision]
        self.autocast = torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)
        self.span = span
        self.lr = 0.0
        """Learning rate in the last step, of what `layer_decay` does not lower."""
        self.observation = Observation(objective, section.observe_every, ranks, self.steps)
        self._unit = torch.ones((), device=device)
        self._replays = section.compile == "reduce-overhead" and device.type == "cuda"

    def __call__(self, step: int, batch: Batch, total: int | None = None) -> Output:
        """Do update number `step` (from 0); nothing in it waits for the device.

        Args:
            step: its number.
            batch: this rank's rows.
            total: images of all ranks' rows together; None: there is one rank.
        """
        # rate, random numbers and schedules follow from the step's number: a resumed run repeats them
        self.schedule.step_update(step)
        self.lr = base_rate(self.optimizer)
        self._seed(step)
        self.objective.epoch, self.objective.progress = step / self.steps_per_epoch, step / self.steps
        if self._replays:  # what torch.compile's graphs returned in the step before may be overwritten now
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        self.optimizer.zero_grad(set_to_none=True)
        ranks, total = self.ranks, len(batch.index) if total is None else total
        rows = ranks.shares(total)
        places = layouts(rows, self.accumulate)
        parts = split(batch, len(places))
        shares = [len(part.index) / len(batch.index) for part in parts]
        # gradients become the mean over ranks, of which each has its rows
        of_rank = [] if ranks.alone else [ranks.size * len(batch.index) / total]
        outputs = []
        observed = self.observation.due(step)
        with self.observation.watching(observed):
            for part, share, counts in zip(parts, shares, places, strict=True):
                ranks.counts = counts
                weights = of_rank if len(parts) == 1 else [share, *of_rank]
                output = self._gradients(part, weights, last=part is parts[-1])
                if observed:
                    self.observation.take(part, output)
                outputs.append(output._replace(held=None))
        ranks.counts = rows
        output = join(outputs, shares)
        if observed:  # before clipping, which changes the gradients
            figures = self.observation.figures(self.parameters, total, self.scaler.scale(self._unit))
            output = output._replace(metrics={**output.metrics, **figures})
        with self.span("optimizer"):
            if self.clip_grad is not None:
                self.scaler.unscale_(self.optimizer)  # the limit is of the gradients themselves
                nn.utils.clip_grad_norm_(self.parameters, self.clip_grad)
            self.scaler.step(self.optimizer)
            self.scaler.update()
        with self.span("update"):
            # key encoder and queue follow the weights that the step has made, on all ranks' keys
            ranks.average_(self.statistics)
            self.objective.update(*gathered(batch, output, ranks))
        if self.average is not None:
            with self.span("ema"):
                self.average.update()
        return output

    def _seed(self, step: int) -> None:
        """Seed what ranks draw alike as one rank's generator, and what each draws for itself apart."""
        seed = derive_seed("step", self.seed, step)
        if self.ranks.generator is not None:
            self.ranks.generator.manual_seed(seed)
            seed = derive_seed("step", self.seed, step, self.ranks.rank)
        torch.manual_seed(seed)

    def _gradients(self, part: Batch, weights: Sequence[float], *, last: bool) -> Output:
        """Add one part's gradients, of its loss times `weights`, to those that are there."""
        with self.parallel.sending(last):
            with self.span("forward"), self.autocast:
                output: Output = self.parallel.forward(part)
            with self.span("backward"), frozen_statistics(self.objective.encoder, self.checkpointing):
                loss = output.loss
                for weight in weights:
                    loss = loss * weight
                self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        return output._replace(loss=output.loss.detach())

    def state(self) -> dict[str, dict[str, Any]]:
        """Return all state; the schedule has none, it follows from the step.

        It is the same for any number of ranks.
        """
        state = {
            "objective": self.objective.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }
        return state if self.average is None else {**state, "average": self.average.state()}

    def load_state(self, state: dict[str, dict[str, Any]]) -> None:
        """Restore what `state` returned, here, on another device or another number of ranks."""
        self.objective.load_state_dict(state["objective"])
        self.optimizer.load_state_dict(with_own_kernels(self.optimizer, state["optimizer"]))
        as_parameters_lie(self.optimizer)
        if self.scaler.is_enabled():
            begin_momentum(self.optimizer)
        self.scaler.load_state_dict(state["scaler"])
        if self.average is not None:
            self.average.load_state(state["average"])
        self.observation.forget()
