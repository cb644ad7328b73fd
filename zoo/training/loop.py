"""The one training loop."""

import math
import signal
import time
from collections.abc import Iterable, Mapping
from contextlib import closing, nullcontext

import torch
from torch import nn

from zoo.backbones import keeping_memory
from zoo.data import Batch, ImageDataset
from zoo.errors import Interrupted, TrainingError, first_line
from zoo.modules.ranks import ALONE, Ranks
from zoo.objectives import Objective
from zoo.recipe import Recipe
from zoo.training.build import open_loader, require_batches
from zoo.training.checkpoint import Checkpoint
from zoo.training.facts import Trained, trained_at
from zoo.training.logging import Metrics
from zoo.training.monitor import Monitor, split_validation, start_from_means
from zoo.training.precision import compiled, float32_products, pick_device, place
from zoo.training.progress import Report, show_first_step, show_progress
from zoo.training.run import RunFolder
from zoo.training.signals import stop_on_signal
from zoo.training.step import Stepper


def train(
    objective: Objective,
    dataset: ImageDataset,
    recipe: Recipe,
    run: RunFolder,
    *,
    resume: bool,
    ranks: Ranks = ALONE,
) -> Trained:
    """Train `objective` on `dataset` according to `recipe`, and keep the state in `run`.

    `dataset` has all training images; early stopping holds out a part of them here. Views, order and all
    other random numbers are functions of (seed, step), so that a run which was stopped anywhere and resumed
    ends with the same weights as an uninterrupted one, bit for bit on a CPU.

    Interrupted after a SIGINT, SIGTERM, SIGHUP or SIGUSR1, with the state saved; TrainingError if a loss or
    weight is not finite, memory runs out, or the folder cannot be used.
    """
    section, (training, validation) = recipe.training, split_validation(dataset, recipe)
    device = pick_device(section.device)
    with run.locked() if ranks.rank == 0 else nullcontext(), keeping_memory():
        place(objective, recipe, device)
        loader = open_loader(training, recipe, device, ranks)
        ranks.barrier()  # decoding may take one rank much longer than the others
        require_batches(objective, len(training), recipe, ranks)
        stepper = Stepper(objective, recipe, loader.steps_per_epoch, device, ranks)
        loop = _Loop(recipe, run, stepper)
        if section.early_stopping is not None or section.knn_every is not None:
            loop.monitor = Monitor(training, validation, recipe, stepper)
        loop.restore(training, resume=resume)
        with (
            float32_products(section.precision, fastest=True),
            compiled(objective, section.compile),
            torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
            stop_on_signal() as stop,
        ):
            if ranks.rank == 0:
                run.check_images(dataset, record=True)
            try:
                stream = closing(loader.stream(loop.done, stepper.steps))  # or errors keep the workers
                with show_progress(recipe.name, stepper.steps, loop.done) as report, stream as batches:
                    loop.run_steps(batches, stop, report)
            except (RuntimeError, MemoryError) as error:
                full = isinstance(error, torch.OutOfMemoryError | MemoryError)
                if not (full or "DataLoader worker (" in str(error)):  # was killed
                    raise
                found = f"out of memory in step {loop.done + 1} ({first_line(error)[:160]}); {loop.kept()}"
                raise TrainingError(f"{found}; expected e.g. a smaller training.batch_size") from None
    best = None if loop.monitor is None else loop.monitor.best
    if best is None and stepper.ema is not None:
        stepper.ema.swap()
    return trained_at(loop.newest, recipe, run, objective, dataset, best)


class _Loop:
    """The state of a running training. All ranks take the same steps and make the same decisions."""

    newest: Checkpoint  # the last one written or read, without its state
    monitor: Monitor | None = None

    def __init__(self, recipe: Recipe, run: RunFolder, stepper: Stepper) -> None:
        self.done = 0  # steps
        self._recipe, self._section, self._run, self._stepper = recipe, recipe.training, run, stepper
        self._ranks, self._first = stepper.ranks, stepper.ranks.rank == 0
        self._metrics = Metrics(stepper.ranks)
        self._trouble = ""  # why the run cannot continue
        self._began = self._saved_at = time.monotonic()
        self._seconds_before = 0.0

    def restore(self, images: ImageDataset, *, resume: bool) -> None:
        """Load the newest checkpoint, or write one at step 0, which shows early if the disk is too full.

        The class means of `images` are computed only when a training begins.
        """
        found = self._run.start(self._recipe, resume=resume) if self._first else None
        self._ranks.barrier()  # reading a large checkpoint takes a while
        (step,) = self._ranks.all_reduce_max(-1 if found is None else found.step)
        if step < 0:
            if self._recipe.init is not None and self._recipe.init.head == "means":
                start_from_means(self._stepper.objective, images, self._recipe, self._ranks)
            self._save()
        else:
            checkpoint = found or self._run.load(step)
            assert checkpoint is not None
            self._stepper.load_state(checkpoint.state)
            if self.monitor is not None and "stopping" in checkpoint.state:
                self.monitor.load_state(checkpoint.state["stopping"])
            self.done, self._seconds_before = step, checkpoint.seconds
            self.newest = checkpoint._replace(state={})
        self._ranks.barrier()

    def run_steps(self, batches: Iterable[Batch], stop: list[int], report: Report) -> None:
        """Do the remaining steps, until the end, a signal, or a loss or weight that is not finite."""
        section, stepper, monitor = self._section, self._stepper, self.monitor
        per_epoch, start, began = stepper.steps_per_epoch, self.done, time.monotonic()
        over = monitor is not None and monitor.should_stop
        for step, batch in enumerate(batches if not over else (), start):
            self._metrics.add(stepper(step, batch), len(batch.index) * self._ranks.size)
            self.done = done = step + 1
            if step == start and self._first:
                show_first_step(time.monotonic() - began, stepper.steps - done)

            # reduced on the hosts, so that all ranks act alike without waiting for a device
            due = time.monotonic() - self._saved_at >= 60 * (section.checkpoint_minutes or math.inf)
            caught, late, bad = self._ranks.all_reduce_max(max(stop, default=0), due, bool(self._trouble))
            by_epoch = done % per_epoch == 0 and done // per_epoch % section.checkpoint_every == 0
            save = bool(caught or late or by_epoch or done == stepper.steps)
            evaluate = monitor is not None and monitor.due(done)
            wait = save or evaluate  # for the device

            if wait or done % section.log_every == 0:
                self._metrics.close({**self._facts(), "lr": stepper.lr})
            self._log_rows(report, wait=wait)
            # losses are means over the ranks and weights are equal, so all ranks reach the same verdict
            if bad or (wait and not self._is_finite()):
                found = f"{self._trouble or 'another rank has a loss that is not finite'}; {self.kept()}"
                raise TrainingError(f"{found}; expected e.g. a smaller optimizer.lr, in another --out")
            if evaluate and monitor is not None:
                self._log({**self._facts(), **monitor.evaluate(done)}, report)
                over, self._metrics = monitor.should_stop, Metrics(self._ranks)  # restarts its clock
            if save or over:
                self._save()
            if caught:
                stopped = f"stopped by {signal.Signals(caught).name} after step {done} of {stepper.steps}"
                raise Interrupted(f"{stopped}; {self.kept()}. Use --resume to go on")
            if over:
                break

    def kept(self) -> str:
        """Describe which state is on disk."""
        return f'the state after step {self.newest.step} is saved in "{self._run.path}"'

    def _facts(self) -> dict[str, float]:
        return {"step": self.done, "epoch": self.done / self._stepper.steps_per_epoch}

    def _save(self) -> None:
        """Write a checkpoint, and before it the per-class observations since the last one."""
        row, state = self._stepper.observation.class_row(self._facts()), self._stepper.state()
        if self._section.early_stopping is not None and self.monitor is not None:
            state["stopping"] = self.monitor.state()
        seconds = self._seconds_before + time.monotonic() - self._began
        checkpoint = Checkpoint(self.done, seconds, state, time.time())
        if self._first:
            if row is not None:
                self._run.append(self._run.classes_file, row)
            self._run.save(checkpoint, keep=self._section.keep_checkpoints)
        self.newest, self._saved_at = checkpoint._replace(state={}), time.monotonic()

    def _log(self, row: Mapping[str, float], report: Report) -> None:
        if self._first:
            self._run.log(row)
        report(row)

    def _log_rows(self, report: Report, *, wait: bool) -> None:
        """Log the rows whose values have arrived, up to the first with a loss that is not finite."""
        for row in self._metrics.rows(wait=wait):
            if not self._trouble and not math.isfinite(row["loss"]):
                self._trouble = f"the loss became {row['loss']} by step {row['step']} at lr {row['lr']:g}"
            if not self._trouble:
                self._log(row, report)

    def _is_finite(self) -> bool:
        """Whether losses and weights are finite; the last loss belongs to the weights before the update."""
        parameters = [p.detach() for p in self._stepper.parameters]
        largest = float(nn.utils.get_total_norm(parameters, norm_type=math.inf))
        if not self._trouble and not math.isfinite(largest):
            self._trouble = f"a weight became {largest} by step {self.done}"
        return not self._trouble
