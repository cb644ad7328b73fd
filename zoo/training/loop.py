"""The one training loop."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch

from zoo.data import ImageDataset, TrainLoader
from zoo.data.batches import images_seen
from zoo.errors import Interrupted
from zoo.launch import handed_on
from zoo.objectives import Objective
from zoo.ranks import ALONE, Ranks
from zoo.recipe import Recipe
from zoo.training.acceleration import compiled, fastest_kernels
from zoo.training.checkpointing import Keeper
from zoo.training.failures import check_scale, in_row, in_weights, not_finite, out_of_memory_told
from zoo.training.meter import Meter
from zoo.training.neighbors import Neighbors, halves, open_neighbors
from zoo.training.prepare import open_loader, pick_device, place, require_batches
from zoo.training.progress import Report, show_progress
from zoo.training.run_folder import RunFolder
from zoo.training.signals import StopRequest, stop_on_signal
from zoo.training.step import Stepper
from zoo.training.stopping import Stopping, open_stopping
from zoo.training.validation import put_aside


class Trained(NamedTuple):
    """What a finished run leaves in memory.

    Attributes:
        objective: with the weights to release, on the training device: the last ones, their moving average,
            or the best state that early stopping has found.
        steps: updates done.
        images: training images seen, repetitions counted.
        seconds: training time, interruptions left out.
        ended: when, in seconds since 1970.
        bad_images: names of files that could not be decoded.
        stopping: facts about early stopping, for the release; None without.
        epoch: how many passes over the data these are, where the training is not at its end; else None.
    """

    objective: Objective
    steps: int
    images: int
    seconds: float
    ended: float
    bad_images: list[str]
    stopping: dict[str, Any] | None = None
    epoch: float | None = None


def train(
    objective: Objective,
    dataset: ImageDataset,
    recipe: Recipe,
    run: RunFolder,
    *,
    resume: bool,
    ranks: Ranks = ALONE,
) -> Trained:
    """Train `objective` on `dataset` as `recipe` says, keeping its state in `run`.

    `dataset` has all training images; with early stopping a part of them is put aside here, as
    `build_objective` does, and no batch has it.

    Views, order and every other random number are functions of (seed, step), so a run that was stopped
    anywhere and resumed ends in the same weights, bit for bit on a CPU, as one that was not.

    Raises:
        Interrupted: after a SIGINT, SIGTERM or SIGUSR1, with the state saved.
        TrainingError: if a loss or weight is not finite, if memory runs out, or if the run's folder is in use
            or cannot be written. Earlier checkpoints are kept.
    """
    section, parts = recipe.training, put_aside(dataset, recipe)
    neighbors = halves(parts.training, recipe)
    device, size = pick_device(section.device), len(parts.training)
    first = ranks.rank == 0
    with run.locked() if first else nullcontext():
        place(objective, recipe, device)
        loader = open_loader(parts.training, recipe, device, ranks)
        ranks.wait()  # one may decode long after the others
        require_batches(objective, size, recipe, ranks)
        stepper = Stepper(objective, recipe, loader.steps_per_epoch, device, ranks=ranks)
        stopping = open_stopping(parts.validation, recipe, stepper, device)
        looker = stopping or open_neighbors(neighbors, recipe, stepper, device)  # no recipe has both
        with (
            fastest_kernels(device, section.precision),
            compiled(objective, section.compile),
            torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
            Keeper(run, recipe, stepper, ranks, stopping) as keeper,
            stop_on_signal(once=ranks.alone and not handed_on()) as stop,
        ):
            loop = _Loop(recipe, loader, size, stepper, keeper, stop, looker)
            with out_of_memory_told(loop.where, keeper.kept):
                start = keeper.begin(resume=resume)
                if first:
                    run.keep_to(dataset)
                with show_progress(recipe.name, loop.total, start) if first else nullcontext(_silent) as show:
                    loop.go(start, show)
        if stopping is not None:
            stopping.apply()
        elif stepper.average is not None:
            stepper.average.apply()
    seconds, ended = keeper.ended(loop.done)
    return Trained(
        objective,
        loop.done,
        images_seen(loop.done, size, section.batch_size, drop_last=section.drop_last),
        seconds,
        ended,
        loader.bad_images,
        None if stopping is None else stopping.facts(loop.done),
    )


def _silent(_row: Mapping[str, float]) -> None:
    """Of several ranks the first one speaks."""


class _Loop:
    """A run under way. Every rank goes through the same steps and decides alike.

    Attributes:
        total: steps of the whole run.
        done: steps behind it.
    """

    def __init__(
        self,
        recipe: Recipe,
        loader: TrainLoader,
        dataset_size: int,
        stepper: Stepper,
        keeper: Keeper,
        stop: StopRequest,
        looker: Stopping | Neighbors | None,
    ) -> None:
        self.total, self.done = stepper.steps, 0
        self._section, self._loader, self._dataset_size = recipe.training, loader, dataset_size
        self._stepper, self._keeper, self._stop, self._looker = stepper, keeper, stop, looker
        self._ranks = keeper.ranks
        self._meter = Meter(self._ranks)
        self._trouble = ""  # what is not finite

    def images(self, step: int) -> int:
        """Return how many images the batch of a step has, on all ranks together."""
        place = step % self._loader.steps_per_epoch * self._section.batch_size
        return min(self._section.batch_size, self._dataset_size - place)

    def where(self) -> str:
        """Say which step is under way."""
        return f"in step {min(self.done + 1, self.total)} of {self.total}"

    def go(self, start: int, report: Report) -> None:
        """Do the steps from `start` on, until the end, a signal, or a number that is not finite."""
        section, keeper, per_epoch = self._section, self._keeper, self._loader.steps_per_epoch
        looker, self.done = self._looker, start
        if looker is not None and looker.over:
            return
        for step, batch in enumerate(self._loader.stream(start, self.total), start):
            total = self.images(step)
            self._meter.add(self._stepper(step, batch, total), len(batch.index), total)
            self.done = done = step + 1
            keeper.check()
            signal, trouble, late = self._ranks.vote(
                self._stop.number, int(bool(self._trouble)), int(keeper.late())
            )
            by_epoch = done % per_epoch == 0 and done // per_epoch % section.checkpoint_every == 0
            due = signal or late or by_epoch or done == self.total
            looks = looker is not None and looker.due(done)
            if due or looks or done % section.log_every == 0:
                self._close_row()
            self._take_rows(report, wait=bool(due or looks))
            if due or looks:
                check_scale(self._stepper, done, keeper.kept)
                self._trouble = self._trouble or in_weights(self._stepper, done)
                (trouble,) = self._ranks.vote(int(bool(self._trouble)))
            if trouble:  # on all ranks at once; what is saved is from before it
                raise not_finite(self._trouble, done, keeper.kept())
            over = looks and self._look(report)
            if due or over:
                self._save()
            if signal:
                self._stop.number = signal
                raise Interrupted(
                    f"stopped by {self._stop.signal} after step {done} of {self.total}; {keeper.kept(done)}. "
                    "Give the same command with --resume to go on"
                )
            if over:
                break
        keeper.wait()

    def _save(self) -> None:
        """Begin to write the state, and before it what was seen of the classes until here."""
        facts = {"step": self.done, "epoch": self.done / self._loader.steps_per_epoch}
        row = self._stepper.observation.class_row(facts)
        if row is not None:
            self._keeper.log_classes(row)
        self._keeper.save(self.done)

    def _look(self, report: Report) -> bool:
        """Look at what is not trained on, or by labels that are not; return whether training ends here."""
        assert self._looker is not None
        found = self._looker.look(self.done)
        row = {"step": self.done, "epoch": self.done / self._loader.steps_per_epoch, **found}
        self._keeper.log(row)
        report(row)
        self._meter = Meter(self._ranks)  # the next row's throughput is of training alone
        return self._looker.over

    def _close_row(self) -> None:
        facts = {
            "step": self.done,
            "epoch": self.done / self._loader.steps_per_epoch,
            "lr": self._stepper.lr,
        }
        self._meter.close(facts)
        self._note_unreadable()

    def _note_unreadable(self) -> None:
        """Let all ranks know what one of them could not read, so that they count and end alike."""
        loader = self._loader
        if not self._ranks.alone and any(self._ranks.vote(len(loader.unreadable))):
            found = self._ranks.texts(json.dumps(loader.unreadable))
            loader.note_unreadable([json.loads(text) for text in found])
        self._keeper.note_unreadable(loader.bad_images)

    def _take_rows(self, report: Report, *, wait: bool) -> None:
        """Log the rows whose values have arrived, up to one that is not finite."""
        for row in self._meter.rows(wait=wait):
            self._trouble = self._trouble or in_row(row)
            if not self._trouble:
                self._keeper.log(row)
                report(row)
