"""The one training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from zoo.data import ImageDataset, TrainLoader
from zoo.errors import Interrupted, RecipeError, TrainingError
from zoo.modules import has_batchnorm
from zoo.objectives import Objective
from zoo.training.acceleration import compiled, fastest_kernels
from zoo.training.meter import Meter
from zoo.training.progress import show_progress
from zoo.training.recipe import Recipe
from zoo.training.run import Checkpoint, RunFolder
from zoo.training.signals import stop_on_signal
from zoo.training.step import Stepper


class Trained(NamedTuple):
    """What a finished run leaves in memory.

    Attributes:
        objective: with the trained encoder, on the training device.
        steps: updates done.
        images: training images seen, repetitions counted.
        seconds: training time, interruptions left out.
        bad_images: names of files that could not be decoded.
    """

    objective: Objective
    steps: int
    images: int
    seconds: float
    bad_images: list[str]


def pick_device(wanted: str) -> torch.device:
    """Resolve the recipe's `training.device`.

    Raises:
        RecipeError: if a GPU is asked for and there is none.
    """
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise RecipeError('training.device: found "cuda", but torch sees no GPU here; use "auto" or "cpu"')
    return torch.device("cuda" if available and wanted != "cpu" else "cpu")


@contextmanager
def cpu_threads(count: int | None) -> Iterator[None]:
    """Let torch compute with `count` threads inside the block; None leaves its default."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def place(objective: Objective, recipe: Recipe, device: torch.device) -> None:
    """Move an objective to where and how the recipe trains it."""
    layout = torch.channels_last if recipe.training.channels_last else torch.contiguous_format
    objective.to(device).to(memory_format=layout).train()


def open_loader(dataset: ImageDataset, recipe: Recipe, device: torch.device) -> TrainLoader:
    """Prepare the recipe's training batches."""
    return TrainLoader(
        dataset,
        recipe.views,
        mean=recipe.data.mean,
        std=recipe.data.std,
        batch_size=recipe.training.batch_size,
        drop_last=recipe.training.drop_last,
        seed=recipe.training.seed,
        device=device,
        image_size=recipe.data.image_size,
        max_bad_images=recipe.data.max_bad_images,
    )


def require_batches(objective: Objective, images: int, recipe: Recipe) -> None:
    """Refuse a recipe by which BatchNorm would get a single image.

    Raises:
        RecipeError: naming the batch size.
    """
    section = recipe.training
    if not has_batchnorm(objective):
        return
    if section.batch_size == 1:
        raise RecipeError("training.batch_size: found 1, expected at least 2: BatchNorm needs two images")
    if not section.drop_last and images % section.batch_size == 1:
        raise RecipeError(
            f"training.batch_size: found {section.batch_size}, which leaves a last batch of 1 of the "
            f"{images} images, too few for BatchNorm; change it by one, or set training.drop_last: true"
        )


def train(
    objective: Objective, dataset: ImageDataset, recipe: Recipe, run: RunFolder, *, resume: bool
) -> Trained:
    """Train `objective` on `dataset` as `recipe` says, keeping its state in `run`.

    Views, order and every other random number are functions of (seed, step), so a run that was stopped
    anywhere and resumed ends in the same weights, bit for bit on a CPU, as one that was not.

    Raises:
        Interrupted: after a SIGINT or SIGTERM, with the state saved.
        TrainingError: if the loss is not finite, or the run's folder cannot be used.
    """
    section = recipe.training
    device = pick_device(section.device)
    place(objective, recipe, device)
    loader = open_loader(dataset, recipe, device)
    require_batches(objective, len(dataset), recipe)
    per_epoch = loader.steps_per_epoch
    total = section.epochs * per_epoch
    images = section.epochs * (per_epoch * section.batch_size if section.drop_last else len(dataset))
    stepper = Stepper(objective, recipe, per_epoch, device)

    start, earlier = 0, 0.0
    checkpoint = run.start(recipe, resume=resume)
    if checkpoint is not None:
        stepper.load_state(checkpoint.state)
        start, earlier = checkpoint.step, checkpoint.seconds

    began = time.monotonic()
    meter = Meter()
    with (
        fastest_kernels(device),
        compiled(objective, section.compile),
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        stop_on_signal() as stop,
        show_progress(recipe.name, total, start) as report,
    ):
        for step, batch in enumerate(loader.stream(start, total), start):
            output = stepper(step, batch)
            meter.add(output, len(batch.index))

            done = step + 1
            last = done == total or stop.signal is not None
            due = last or (done % per_epoch == 0 and done // per_epoch % section.checkpoint_every == 0)
            if due or done % section.log_every == 0:
                meter.close({"step": done, "epoch": done / per_epoch, "lr": stepper.lr})
                run.note_unreadable(loader.bad_images)
            for row in meter.rows(wait=due):
                _require_finite(row, total)
                run.log(row)
                report(row)
            if due:
                _require_finite_weights(stepper, done, total)
                run.save(Checkpoint(done, earlier + time.monotonic() - began, stepper.state()))
            if last and done < total:
                raise Interrupted(
                    f"stopped by {stop.signal} after step {done} of {total}; the state is saved in "
                    f'"{run.path}". Give the same command with --resume to go on'
                )
    return Trained(objective, total, images, earlier + time.monotonic() - began, loader.bad_images)


_ADVICE = (
    "the last checkpoint is from before. Lower optimizer.lr, lengthen schedule.warmup_epochs, set "
    "training.clip_grad, or use training.precision fp32"
)


def _require_finite(row: dict[str, float], total: int) -> None:
    if not math.isfinite(row["loss"]):
        raise TrainingError(
            f"the loss became {row['loss']} by step {row['step']} of {total} at learning rate "
            f"{row['lr']:g}; {_ADVICE}"
        )


def _require_finite_weights(stepper: Stepper, done: int, total: int) -> None:
    """Refuse to keep what the last update spoilt: its loss was that of the weights before it."""
    largest = float(torch.nn.utils.get_total_norm(stepper.parameters, norm_type=math.inf))
    if not math.isfinite(largest):
        raise TrainingError(
            f"a weight became {largest} by step {done} of {total} at learning rate {stepper.lr:g}; {_ADVICE}"
        )
