"""One optimisation step, and all the state it depends on."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from zoo.data import Batch
from zoo.errors import RecipeError
from zoo.modules import running_statistics, synchronize_batchnorm
from zoo.objectives import Objective, Output
from zoo.ranks import ALONE, Ranks
from zoo.seeding import derive_seed
from zoo.training.acceleration import checkpoint_activations, frozen_statistics
from zoo.training.accumulation import gathered, join, layouts, split
from zoo.training.average import Average
from zoo.training.graph import GraphedStep
from zoo.training.observation import Observation
from zoo.training.optim import (
    as_parameters_lie,
    base_rate,
    begin_momentum,
    build_optimizer,
    build_schedule,
    with_own_kernels,
)
from zoo.training.parallel import Parallel, distributed, optimizer_with_shards, whole, with_shards
from zoo.training.recipe import Recipe
from zoo.training.sections import ON_GPU_ALONE

_AUTOCAST = {"fp32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}

Span = Callable[[str], AbstractContextManager[object]]
"""Opens a context around a named part of the step, for who wants to know how long it takes."""


def _weakly(advance: Callable[[Batch], Output]) -> Callable[[Batch], Output]:
    """Return the method without hold on its object: in a cycle, graphs would outlive the training."""
    method = weakref.WeakMethod(advance)

    def call(batch: Batch) -> Output:
        alive = method()
        assert alive is not None
        return alive(batch)

    return call


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
        RecipeError: for an optimiser that timm refuses, fp16 without a GPU, or a step that no graph can hold.
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
            synchronize_batchnorm(objective, ranks)
        self.objective = objective
        self.ranks = ranks
        self.parallel: Parallel = distributed(objective, ranks, shard=section.shard)
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
        self.watch: Callable[[Output], None] | None = None
        """Is given each step's output when its gradients are there; an error it raises leaves the weights
        as they were."""
        self.observation = Observation(objective, section.observe_every, ranks, self.steps)
        self._unit = torch.ones((), device=device)
        self._graphed: GraphedStep | None = None
        self._graphed_observed: GraphedStep | None = None
        self._device_lr: list[Tensor] = []
        self._total = 0  # images of the whole batch
        if section.cuda_graph and device.type == "cuda" and ranks.alone:
            self._graphed = GraphedStep(_weakly(self._update), objective, self.optimizer)
            self._graphed_observed = self._graphed if section.observe_every == 1 else self._graphed.beside()
            self._device_lr = [torch.zeros((), device=device) for _ in self.optimizer.param_groups]

    def __call__(self, step: int, batch: Batch, total: int | None = None) -> Output:
        """Do update number `step` (from 0). Random numbers are a function of (seed, step).

        Args:
            step: its number.
            batch: this rank's rows.
            total: images of all ranks' rows together; None: there is one rank.
        """
        self.schedule.step_update(step)
        self.lr = base_rate(self.optimizer)
        for group, rate in zip(self.optimizer.param_groups, self._device_lr, strict=False):
            group["lr"] = rate.fill_(group["lr"])  # a graph reads it where it was when it was captured
        self._seed(step)
        self._total = len(batch.index) if total is None else total
        self.objective.epoch = step / self.steps_per_epoch
        self.objective.progress = step / self.steps
        self.objective.observing = self.observation.due(step)
        graphed = self._graphed_observed if self.objective.observing else self._graphed
        whole_step = graphed or self._update
        if self.watch is not None and graphed is not None:
            whole_step = graphed.ordinary
        try:
            output = whole_step(batch)
        finally:
            self.objective.observing = False
        if self.average is not None:
            with self.span("ema"):  # its decay changes with every update: no part of a graph
                self.average.update()
        return output

    def _seed(self, step: int) -> None:
        """Seed what ranks draw alike as one rank's generator, and what each draws for itself apart."""
        seed = derive_seed("step", self.seed, step)
        if self.ranks.generator is not None:
            self.ranks.generator.manual_seed(seed)
            seed = derive_seed("step", self.seed, step, self.ranks.rank)
        torch.manual_seed(seed)

    def _update(self, batch: Batch) -> Output:
        """Do the device's part of a step; nothing in it waits for the device."""
        self.optimizer.zero_grad(set_to_none=True)
        ranks, rows = self.ranks, self.ranks.shares(self._total)
        places = layouts(rows, self.accumulate)
        parts = split(batch, len(places))
        shares = [len(part.index) / len(batch.index) for part in parts]
        # gradients become the mean over ranks, of which each has its rows
        of_rank = [] if ranks.alone else [ranks.size * len(batch.index) / self._total]
        outputs = []
        with self.observation.watching() as features:
            for part, share, counts in zip(parts, shares, places, strict=True):
                ranks.counts = counts
                weights = of_rank if len(parts) == 1 else [share, *of_rank]
                outputs.append(self._gradients(part, weights, last=part is parts[-1]))
        output = join(outputs, shares)
        ranks.counts = rows
        if self.watch is not None:
            self.watch(output)
        if self.objective.observing:
            seen = self.observation.take(
                self.parameters,
                features,
                [part.labels for part in parts],
                self._total,
                self.scaler.scale(self._unit),
            )
            measured = self.observation.measure(output.seen)
            output = output._replace(metrics={**output.metrics, **measured, **seen}, seen=None)
        with self.span("optimizer"):
            if self.clip_grad is not None:
                self.scaler.unscale_(self.optimizer)
                nn.utils.clip_grad_norm_(self.parameters, self.clip_grad)
            self.scaler.step(self.optimizer)
            self.scaler.update()
        with self.span("update"):
            ranks.average_(self.statistics)
            self.objective.update(*gathered(batch, output, ranks))
        return output

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

        It is the same for any number of ranks. All of them have to call this, since shards are gathered.
        """
        state = {
            "objective": whole(self.objective.state_dict()),
            "optimizer": whole(self.optimizer.state_dict()),
            "scaler": self.scaler.state_dict(),
        }
        return state if self.average is None else {**state, "average": whole(self.average.state())}

    def load_state(self, state: dict[str, dict[str, Any]]) -> None:
        """Restore what `state` returned, here, on another device or another number of ranks."""
        self.objective.load_state_dict(with_shards(self.objective.state_dict(), state["objective"]))
        optimizer = with_own_kernels(self.optimizer, state["optimizer"])
        self.optimizer.load_state_dict(optimizer_with_shards(self.optimizer, optimizer))
        as_parameters_lie(self.optimizer)
        if self.scaler.is_enabled():
            begin_momentum(self.optimizer)
        self.scaler.load_state_dict(state["scaler"])
        if self.average is not None:
            self.average.load_state(state["average"])
        self.observation.forget()
        for graphed in (self._graphed, self._graphed_observed):
            if graphed is not None:
                graphed.forget()  # the optimizer's state lies elsewhere now
