"""The one training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn

from zoo.data import ImageDataset, TrainLoader
from zoo.data.batches import images_seen
from zoo.errors import Interrupted, TrainingError, first_line
from zoo.launch import handed_on
from zoo.objectives import Objective
from zoo.ranks import ALONE, Ranks
from zoo.recipe import Recipe
from zoo.training.build import open_loader, require_batches
from zoo.training.checkpoint import Checkpoint
from zoo.training.logging import Metrics
from zoo.training.monitor import Monitor, split_validation, stopping_facts
from zoo.training.precision import compiled, fastest_kernels, pick_device, place
from zoo.training.progress import Report, show_first_step, show_progress
from zoo.training.run import RunFolder
from zoo.training.signals import StopRequest, stop_on_signal
from zoo.training.step import Stepper

LEAST_SCALE = 2.0**-14
"""Of the loss under float16, which begins at 2^16: 30 updates left out that it did not recover from.
(fairseq's is as small.)"""


class Trained(NamedTuple):
    """What a finished run leaves in memory.

    Attributes:
        objective: with the weights to release, on the training device: the last ones, their moving average,
            or the best state of early stopping.
        steps: updates done.
        images: training images seen, repetitions counted.
        seconds: training time, interruptions left out.
        ended: when, in seconds since 1970.
        stopping: facts about early stopping, for the release; None without.
        epoch: how many passes over the data these are, where the training is not at its end; else None.
    """

    objective: Objective
    steps: int
    images: int
    seconds: float
    ended: float
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

    `dataset` has all training images; with early stopping a part of them is held out here, as
    `build_objective` does, and no batch has it.

    Views, order and every other random number are functions of (seed, step), so a run that was stopped
    anywhere and resumed ends in the same weights, bit for bit on a CPU, as one that was not.

    Raises:
        Interrupted: after a SIGINT, SIGTERM, SIGHUP or SIGUSR1, with the state saved.
        TrainingError: if a loss or weight is not finite, if memory runs out, or if the run's folder is in use
            or cannot be written. Earlier checkpoints are kept.
    """
    section, (training, validation) = recipe.training, split_validation(dataset, recipe)
    device, size = pick_device(section.device), len(training)
    first = ranks.rank == 0
    with run.locked() if first else nullcontext():
        place(objective, recipe, device)
        loader = open_loader(training, recipe, device, ranks)
        ranks.barrier()  # one may decode long after the others
        require_batches(objective, size, recipe, ranks)
        stepper = Stepper(objective, recipe, loader.steps_per_epoch, device, ranks)
        monitor: Monitor | None = None
        if section.early_stopping is not None or section.knn_every is not None:
            monitor = Monitor(training, validation, recipe, stepper, device)
        with (
            fastest_kernels(device, section.precision),
            compiled(objective, section.compile),
            torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
            stop_on_signal(once=ranks.alone and not handed_on()) as stop,
        ):
            loop = _Loop(recipe, loader, size, stepper, run, stop, monitor)
            with _out_of_memory_is_one_line(loop):
                loop.begin(resume=resume)
                if first:
                    run.check_images(dataset, record=True)
                with show_progress(recipe.name, stepper.steps, loop.done) as report:
                    loop.run_steps(report)
        stopping = None
        if monitor is not None and monitor.best is not None:  # that of early stopping
            objective.load_state_dict(monitor.best["weights"], strict=False)
            stopping = stopping_facts(
                recipe, monitor.best, len(validation or ()), loop.done, stepper.steps_per_epoch
            )
        elif stepper.ema is not None:
            stepper.ema.apply()
    newest = loop.newest
    assert newest is not None
    return Trained(
        objective,
        loop.done,
        images_seen(loop.done, size, section.batch_size, drop_last=section.drop_last),
        newest.seconds,
        newest.written,
        stopping,
    )


class _Loop:
    """A run under way. Every rank goes through the same steps and decides alike.

    Attributes:
        done: steps behind it.
        newest: checkpoint that was written or read, without its state; None before there is one.
    """

    def __init__(
        self,
        recipe: Recipe,
        loader: TrainLoader,
        size: int,
        stepper: Stepper,
        run: RunFolder,
        stop: StopRequest,
        monitor: Monitor | None,
    ) -> None:
        self.done = 0
        self.newest: Checkpoint | None = None
        self._recipe, self._loader, self._size = recipe, loader, size
        self._stepper, self._run, self._stop, self._monitor = stepper, run, stop, monitor
        self._ranks, self._first = stepper.ranks, stepper.ranks.rank == 0
        self._metrics = Metrics(self._ranks)
        self._trouble = ""  # why the run cannot go on
        self._began = self._saved_at = time.monotonic()
        self._seconds_before = 0.0

    def begin(self, *, resume: bool) -> None:
        """Load the newest checkpoint, or write that of step 0.

        Raises:
            TrainingError: if the folder cannot be used.
        """
        run = self._run
        found = run.start(self._recipe, resume=resume) if self._first else None
        self._ranks.barrier()  # reading what is large takes its time
        (step,) = self._ranks.all_reduce_max(-1 if found is None else found.step)
        if step < 0:
            self._save()
            self._ranks.barrier()
            return
        checkpoint = found or run.load(step)
        assert checkpoint is not None
        try:
            self._stepper.load_state(checkpoint.state)
            if self._monitor is not None and "stopping" in checkpoint.state:
                self._monitor.load_state(checkpoint.state["stopping"])
        except (ValueError, KeyError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise
            raise TrainingError(
                f'the checkpoint of step {step} in "{run.path}" does not fit this recipe: {str(error)[:200]}'
            ) from None
        self.done, self._seconds_before = step, checkpoint.seconds
        self.newest = checkpoint._replace(state={})
        self._ranks.barrier()

    def run_steps(self, report: Report) -> None:
        """Do the steps that are left, until the end, a signal, or a number that is not finite."""
        section, per_epoch, total = self._recipe.training, self._stepper.steps_per_epoch, self._stepper.steps
        monitor = self._monitor
        if monitor is not None and monitor.over:
            return
        start, began = self.done, time.monotonic()
        for step, batch in enumerate(self._loader.stream(self.done, total), self.done):
            images = min(section.batch_size, self._size - step % per_epoch * section.batch_size)
            self._metrics.add(self._stepper(step, batch), images)
            self.done = done = step + 1
            if done == start + 1 and self._first:
                show_first_step(time.monotonic() - began, total - done)
            since, minutes = time.monotonic() - self._saved_at, section.checkpoint_minutes or math.inf
            signal, late, trouble = self._ranks.all_reduce_max(  # all ranks decide alike
                self._stop.number, int(since >= 60 * minutes), int(bool(self._trouble))
            )
            by_epoch = done % per_epoch == 0 and done // per_epoch % section.checkpoint_every == 0
            save = bool(signal or late or by_epoch or done == total)
            evaluate = monitor is not None and monitor.due(done)
            if save or evaluate or done % section.log_every == 0:
                self._close_row()
            self._take_rows(report, wait=save or evaluate)
            if save or evaluate:
                self._check_weights()
                (trouble,) = self._ranks.all_reduce_max(int(bool(self._trouble)))
            if trouble:  # on all ranks at once; what is saved is from before it
                found = self._trouble or f"another rank found a number that is nan or inf by step {done}"
                raise TrainingError(
                    f"{found}; {self.kept()}. Train with a smaller optimizer.lr or a longer "
                    "schedule.warmup_epochs in another --out, or go on with --resume and "
                    "--set training.precision=fp32"
                )
            if evaluate and monitor is not None:
                self._log({**self._facts(), **monitor.evaluate(done)}, report)
                self._metrics = Metrics(self._ranks)  # the next row's throughput is of training alone
            over = monitor is not None and monitor.over
            if save or over:
                self._save()
            if signal:
                self._stop.number = signal
                raise Interrupted(
                    f"stopped by {self._stop.signal} after step {done} of {total}; the state is saved in "
                    f'"{self._run.path}". Give the same command with --resume to go on'
                )
            if over:
                break

    def kept(self) -> str:
        """Say which state is on disk."""
        if self.newest is None:
            return "no state is saved yet"
        return f'the state after step {self.newest.step} is saved in "{self._run.path}"'

    def _facts(self) -> dict[str, float]:
        return {"step": self.done, "epoch": self.done / self._stepper.steps_per_epoch}

    def _save(self) -> None:
        """Write the state, and before it what was observed of the classes until here."""
        row = self._stepper.observation.class_row(self._facts())
        state = self._stepper.state()
        if self._recipe.training.early_stopping is not None and self._monitor is not None:
            state["stopping"] = self._monitor.state()
        seconds = self._seconds_before + time.monotonic() - self._began
        checkpoint = Checkpoint(self.done, seconds, state, time.time())
        if self._first:
            if row is not None:
                self._run.log_classes(row)
            self._run.save(checkpoint, keep=self._recipe.training.keep_checkpoints)
        self.newest, self._saved_at = checkpoint._replace(state={}), time.monotonic()

    def _close_row(self) -> None:
        self._metrics.close({**self._facts(), "lr": self._stepper.lr})

    def _log(self, row: Mapping[str, float], report: Report) -> None:
        if self._first:
            self._run.log(row)
        report(row)

    def _take_rows(self, report: Report, *, wait: bool) -> None:
        """Log the rows whose values have arrived, up to one that is not finite."""
        for row in self._metrics.rows(wait=wait):
            if not math.isfinite(row["loss"]) and not self._trouble:
                bad, rate = row["first_bad_step"], row["lr"]
                self._trouble = f"the loss became {row['loss']} in step {bad:g} at learning rate {rate:g}"
            if not self._trouble:
                self._log(row, report)

    def _check_weights(self) -> None:
        """Make sure that what is going to be saved is finite; waits for the device.

        The last update's loss was that of the weights before it. And a loss scaler leaves out an update whose
        gradients are not finite and halves its scale: with one that only falls nothing is learned.
        """
        parameters = [p.detach() for p in self._stepper.parameters]
        largest = float(nn.utils.get_total_norm(parameters, norm_type=math.inf))
        if not self._trouble and not math.isfinite(largest):
            self._trouble = f"a weight became {largest} by step {self.done}"
        scaler = self._stepper.scaler
        if not self._trouble and scaler.is_enabled() and scaler.get_scale() < LEAST_SCALE:
            self._trouble = (
                f"training.precision: fp16 has left out so many updates up to step {self.done} that its "
                f"scale of the loss fell from 65536 to {scaler.get_scale():g}"
            )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation of the GPU's or the host's memory failed."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # the CPU's allocator has no error class of its own
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


@contextmanager
def _out_of_memory_is_one_line(loop: _Loop) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise TrainingError(
            f"out of memory in step {loop.done + 1} ({first_line(error)[:160]}); {loop.kept()}. Give the "
            "same command with --resume and --set training.accumulate=2, "
            "training.checkpoint_activations=true or training.precision=bf16"
        ) from None
