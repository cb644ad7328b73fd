"""One optimisation step and all the state it depends on."""

from typing import Any

import torch
from torch import nn
from torch.profiler import record_function
from torch.utils._pytree import tree_map

from zoo.data import Batch
from zoo.data.batches import derive_seed
from zoo.errors import RecipeError, TrainingError, few
from zoo.modules import running_statistics, synchronize_batchnorm
from zoo.modules.ranks import ALONE, Ranks
from zoo.objectives import Objective, Output
from zoo.objectives.base import checked
from zoo.recipe import Recipe
from zoo.training.distributed import data_parallel
from zoo.training.observe import Observation
from zoo.training.optim import EMA, build_optimizer, build_schedule
from zoo.training.precision import autocast

_RECORDED = ("loss", "lr", "step", "epoch", "images_per_second")  # the loop's own values in a row of metrics


class Stepper:
    """Forward, backward, optimizer step and update of an objective that is already on `device`.

    Several `ranks` take the step together, each with its rows of the batch; afterwards the whole state is the
    same on all of them. RecipeError for settings that timm or the device does not support.
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
        self.objective, self.ranks, self.section = objective, ranks, section
        self.steps_per_epoch, self.steps = steps_per_epoch, section.epochs * steps_per_epoch
        self.autocast = autocast(section.precision, device)
        objective.join(ranks)
        if section.sync_batchnorm and not ranks.alone:
            if device.type == "cpu":
                raise RecipeError("training.sync_batchnorm: found true on the CPU, expected false or a GPU")
            synchronize_batchnorm(objective)
        self.model = objective if ranks.alone else data_parallel(objective, device)
        self.statistics = running_statistics(objective)
        self.parameters = [p for p in objective.parameters() if p.requires_grad]
        self.optimizer = build_optimizer(objective, recipe.optimizer)
        self.schedule = build_schedule(self.optimizer, recipe.schedule, section.epochs, steps_per_epoch)
        self.ema = None if section.ema is None else EMA(objective, section.ema, self.steps)
        self.observation = Observation(objective, section.observe_every, ranks, self.steps)
        self.lr = 0.0  # of the last step, where `layer_decay` does not lower it
        self._replays = section.compile == "reduce-overhead" and device.type == "cuda"

    def __call__(self, step: int, batch: Batch) -> Output:
        """Do update number `step` (from 0) on this rank's rows, without waiting for the device."""
        self._prepare(step)
        with self.observation.watch(step) as observed:
            with record_function("forward"), self.autocast:
                output = checked(self.model(batch), self.objective)
            # on several ranks this also averages the gradients
            with record_function("backward"):
                output.loss.backward()  # type: ignore[no-untyped-call]
        # before clipping changes the gradients
        figures = self.observation.figures(batch, output, self.parameters) if observed else {}
        if taken := {*_RECORDED, *figures} & output.metrics.keys():
            raise TrainingError(f"metrics: zoo records {few(sorted(taken))} itself, expected other names")
        metrics = {**output.metrics, **figures}
        output = output._replace(loss=output.loss.detach(), metrics=metrics, observed=None)  # free the graph
        with record_function("optimizer"):
            if self.section.clip_grad is not None:
                nn.utils.clip_grad_norm_(self.parameters, self.section.clip_grad)
            self.optimizer.step()
        with record_function("update"):
            # key encoder and queue are updated from the new weights and all ranks' keys
            self.ranks.average_(self.statistics)
            whole = (batch, output) if self.ranks.alone else gather_rows(batch, output, self.ranks)
            self.objective.update(*whole)
        if self.ema is not None:
            with record_function("ema"):
                self.ema.update()
        return output

    def _prepare(self, step: int) -> None:
        """Set learning rate, seeds and schedules from the step number, so that a resumed run repeats them."""
        self.schedule.step_update(step)
        self.lr = max(float(group["lr"]) for group in self.optimizer.param_groups)
        seed = derive_seed("step", self.section.seed, step)
        if self.ranks.generator is not None:  # for draws over the whole batch; the default one is per rank
            self.ranks.generator.manual_seed(seed)
            seed = derive_seed("step", self.section.seed, step, self.ranks.rank)
        torch.manual_seed(seed)
        self.objective.epoch, self.objective.progress = step / self.steps_per_epoch, step / self.steps
        if self._replays:  # torch.compile's graphs may now overwrite their outputs of the previous step
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        self.optimizer.zero_grad(set_to_none=True)

    def state(self) -> dict[str, dict[str, Any]]:
        """Return the state to save, which does not depend on the number of ranks; the schedule has none."""
        state = {"objective": self.objective.state_dict(), "optimizer": self.optimizer.state_dict()}
        return state if self.ema is None else {**state, "average": self.ema.state()}

    def load_state(self, state: dict[str, dict[str, Any]]) -> None:
        """Restore what `state` returned, also on another device or with another number of ranks."""
        self.objective.load_state_dict(state["objective"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.ema is not None:
            self.ema.load_state(state["average"])
        self.observation.reset()


@torch.no_grad()
def gather_rows(batch: Batch, output: Output, ranks: Ranks) -> tuple[Batch, Output]:
    """Return what `Objective.update` needs from all ranks: labels, indices and the carried rows."""
    carry = tree_map(lambda own: None if own is None else ranks.gather(own), output.carry)
    return Batch((), ranks.gather(batch.labels), ranks.gather(batch.index)), output._replace(carry=carry)
