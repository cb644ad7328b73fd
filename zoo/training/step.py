"""One optimisation step, and all the state it depends on."""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function
from torch.utils._pytree import tree_leaves, tree_map

from zoo.data import Batch
from zoo.errors import RecipeError
from zoo.modules import running_statistics, synchronize_batchnorm
from zoo.objectives import Objective, Output
from zoo.ranks import ALONE, Ranks
from zoo.recipe import Recipe
from zoo.seeding import derive_seed
from zoo.training.observe import Observation
from zoo.training.optim import EMA, base_rate, begin_momentum, build_optimizer, build_schedule
from zoo.training.precision import autocast_dtype, checkpoint_activations, frozen_statistics


class Stepper:
    """Forward, backward, optimizer step and update of one objective.

    Args:
        objective: already on `device`.
        recipe: optimizer, schedule and numerics.
        steps_per_epoch: batches in one pass over the data.
        device: of the training.
        ranks: that do the step together, each with its rows of the batch. After it every tensor of the state
            is the same on all of them.

    Attributes:
        lr: learning rate in the last step, of what `layer_decay` does not lower.

    Raises:
        RecipeError: for what timm, the device or the length of the training does not allow.
    """

    def __init__(
        self,
        objective: Objective,
        recipe: Recipe,
        steps_per_epoch: int,
        device: torch.device,
        ranks: Ranks = ALONE,
    ) -> None:
        section = recipe.training
        dtype = autocast_dtype(section.precision, device)
        self.autocast = torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)
        self.recomputed: nn.Module | None = None  # by the backward pass
        if section.checkpoint_activations:
            checkpoint_activations(objective.encoder, recipe.backbone.arch)
            self.recomputed = objective.encoder
        objective.join(ranks)
        if section.sync_batchnorm and not ranks.alone:
            if device.type == "cpu":
                raise RecipeError(
                    "training.sync_batchnorm: found true on several ranks without a GPU, expected false: "
                    "torch synchronises BatchNorm on GPUs alone"
                )
            synchronize_batchnorm(objective)
        self.objective, self.ranks = objective, ranks
        self.model = objective if ranks.alone else _replicated(objective, device)
        self.statistics = running_statistics(objective)
        self.parameters = [p for p in objective.parameters() if p.requires_grad]
        self.optimizer = build_optimizer(objective, recipe.optimizer)
        self.schedule = build_schedule(self.optimizer, recipe.schedule, section.epochs, steps_per_epoch)
        self.scaler = torch.amp.GradScaler(device.type, enabled=section.precision == "fp16")
        if self.scaler.is_enabled():
            begin_momentum(self.optimizer)
        self.section, self.steps_per_epoch = section, steps_per_epoch
        self.steps = section.epochs * steps_per_epoch
        self.ema = None if section.ema is None else EMA(objective, section.ema, self.steps)
        self.lr = 0.0
        self.observation = Observation(objective, section.observe_every, ranks, self.steps)
        self._unit = torch.ones((), device=device)
        self._replays = section.compile == "reduce-overhead" and device.type == "cuda"

    def __call__(self, step: int, batch: Batch) -> Output:
        """Do update number `step` (from 0) on this rank's rows; nothing in it waits for the device."""
        self._begin(step)
        objective, ranks, outputs = self.objective, self.ranks, list[Output]()
        parts = split(batch, self.section.accumulate)
        shares = [len(part.index) / len(batch.index) for part in parts]
        observed = self.observation.due(step)
        with self.observation.watching(observed):
            for part, share in zip(parts, shares, strict=True):
                ranks.counts = (len(part.index),) * ranks.size
                # DDP averages the gradients over the ranks, once, with the last part of the batch
                more = isinstance(self.model, DistributedDataParallel) and part is not parts[-1]
                with self.model.no_sync() if more else nullcontext():  # type: ignore[operator]
                    with record_function("forward"), self.autocast:
                        output: Output = self.model(part)
                    with record_function("backward"), frozen_statistics(self.recomputed):
                        loss = output.loss * share  # a part counts by its images
                        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
                if observed:
                    self.observation.take(part, output)
                outputs.append(output._replace(loss=output.loss.detach(), held=None))
        ranks.counts = (len(batch.index),) * ranks.size
        output = joined(outputs, shares)
        if observed:  # before clipping, which changes the gradients
            scale = self.scaler.scale(self._unit)
            figures = self.observation.figures(self.parameters, sum(ranks.counts), scale)
            output = output._replace(metrics={**output.metrics, **figures})
        with record_function("optimizer"):
            if self.section.clip_grad is not None:
                self.scaler.unscale_(self.optimizer)  # the limit is of the gradients themselves
                nn.utils.clip_grad_norm_(self.parameters, self.section.clip_grad)
            self.scaler.step(self.optimizer)
            self.scaler.update()
        with record_function("update"):
            # key encoder and queue follow the weights that the step has made, on all ranks' keys
            ranks.average_(self.statistics)
            objective.update(*gathered(batch, output, ranks))
        if self.ema is not None:
            with record_function("ema"):
                self.ema.update()
        return output

    def _begin(self, step: int) -> None:
        """Set rate, random numbers and schedules by the step's number: a resumed run repeats them."""
        self.schedule.step_update(step)
        self.lr = base_rate(self.optimizer)
        seed = derive_seed("step", self.section.seed, step)
        if (
            self.ranks.generator is not None
        ):  # for draws of the whole batch; the default one is the rank's own
            self.ranks.generator.manual_seed(seed)
            seed = derive_seed("step", self.section.seed, step, self.ranks.rank)
        torch.manual_seed(seed)
        self.objective.epoch, self.objective.progress = step / self.steps_per_epoch, step / self.steps
        if self._replays:  # what torch.compile's graphs returned in the step before may be overwritten now
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        self.optimizer.zero_grad(set_to_none=True)

    def state(self) -> dict[str, dict[str, Any]]:
        """Return all state, the same for any number of ranks; the schedule has none."""
        state = {
            "objective": self.objective.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }
        return state if self.ema is None else {**state, "average": self.ema.state()}

    def load_state(self, state: dict[str, dict[str, Any]]) -> None:
        """Restore what `state` returned, here, on another device or another number of ranks."""
        self.objective.load_state_dict(state["objective"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scaler.is_enabled():
            begin_momentum(self.optimizer)
        self.scaler.load_state_dict(state["scaler"])
        if self.ema is not None:
            self.ema.load_state(state["average"])
        self.observation.forget()


def split(batch: Batch, wanted: int) -> list[Batch]:
    """Cut a batch into parts as equal as can be, each of two images or more, for BatchNorm."""
    count = min(wanted, len(batch.index) // 2)
    if count <= 1:
        return [batch]
    views = [view.tensor_split(count) for view in batch.views]
    candidates = [None] * count if batch.candidates is None else batch.candidates.tensor_split(count)
    rest = zip(batch.labels.tensor_split(count), batch.index.tensor_split(count), candidates, strict=True)
    return [Batch(tuple(view[part] for view in views), *row) for part, row in enumerate(rest)]


def joined(outputs: list[Output], shares: list[float]) -> Output:
    """Join the outputs of a batch's parts, whose shares of its images are `shares`.

    Loss and metrics are weighted means, of metrics over the parts in which they are not NaN (a class, say, is
    not in all of them); rows to carry are in the order of the batch.
    """
    if len(outputs) == 1:
        return outputs[0]

    def mean(values: list[Tensor]) -> Tensor:
        # by numbers: a tensor of them would be copied from the host, which waits
        weighted = torch.stack([value * share for value, share in zip(values, shares, strict=True)])
        known = torch.stack([~value.isnan() * share for value, share in zip(values, shares, strict=True)])
        return weighted.nansum() / known.sum()

    def rows(first: Any, *others: Any) -> Any:
        return None if first is None else torch.cat([first, *others])

    losses = [output.loss * share for output, share in zip(outputs, shares, strict=True)]
    return Output(
        torch.stack(losses).sum(),
        {name: mean([output.metrics[name] for output in outputs]) for name in outputs[0].metrics},
        tree_map(rows, *(output.carry for output in outputs)),
    )


def gathered(batch: Batch, output: Output, ranks: Ranks) -> tuple[Batch, Output]:
    """Return what `Objective.update` needs of all ranks' rows: labels, places and what the step carries."""
    if ranks.alone:
        return batch, output
    carried = [tensor for tensor in tree_leaves(output.carry) if tensor is not None]
    labels, index, *rest = ranks.gather_rows([batch.labels, batch.index, *carried])
    everyones = iter(rest)
    carry = tree_map(lambda own: None if own is None else next(everyones), output.carry)
    return Batch((), labels, index), output._replace(carry=carry)


def _replicated(objective: Objective, device: torch.device) -> DistributedDataParallel:
    """Wrap the objective so that gradients are averaged over the ranks during the backward pass."""
    known = inspect.signature(DistributedDataParallel).parameters
    keep = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    return DistributedDataParallel(
        objective,
        **{keep: False},  # type: ignore[arg-type]  # buffers are equal already; torch has renamed it
        gradient_as_bucket_view=True,
        # without, buckets are filled anew after the first step, so that a resumed run would add in
        # another order than one that never stopped: a CPU's results are promised to be the same bits
        find_unused_parameters=device.type == "cpu",
    )
