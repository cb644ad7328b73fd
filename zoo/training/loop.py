"""The one training loop."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from zoo.data import ImageDataset, TrainLoader
from zoo.errors import Interrupted, RecipeError, TrainingError
from zoo.objectives import Objective
from zoo.seeding import derive_seed
from zoo.training.optim import build_optimizer, build_schedule
from zoo.training.progress import show_progress
from zoo.training.recipe import Recipe
from zoo.training.run import Checkpoint, RunFolder
from zoo.training.signals import stop_on_signal

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Trained(NamedTuple):
    """What a finished run leaves in memory.

    Attributes:
        objective: with the trained encoder, on the training device.
        steps: updates done.
        images: training images seen, one per row of a batch.
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


def train(
    objective: Objective, dataset: ImageDataset, recipe: Recipe, run: RunFolder, *, resume: bool
) -> Trained:
    """Train `objective` on `dataset` as `recipe` says, keeping its state in `run`.

    Random numbers are a function of (seed, step), so a run that was stopped anywhere and resumed ends in
    the same weights, bit for bit on a CPU, as one that was not.

    Raises:
        Interrupted: after a SIGINT or SIGTERM, with the state saved.
        TrainingError: if the loss is not finite, or the run's folder cannot be used.
    """
    section = recipe.training
    device = pick_device(section.device)
    if section.precision == "fp16" and device.type == "cpu":
        raise RecipeError(
            'training.precision: "fp16" needs a GPU, and torch sees none here; use "fp32" or "bf16"'
        )
    layout = torch.channels_last if section.channels_last else torch.contiguous_format
    objective.to(device).to(memory_format=layout)  # type: ignore[call-overload]
    loader = TrainLoader(
        dataset,
        recipe.views,
        mean=recipe.data.mean,
        std=recipe.data.std,
        batch_size=section.batch_size,
        drop_last=section.drop_last,
        seed=section.seed,
        device=device,
        image_size=recipe.data.image_size,
        max_bad_images=recipe.data.max_bad_images,
    )
    total = section.epochs * loader.steps_per_epoch
    optimizer = build_optimizer(objective, recipe.optimizer)
    schedule = build_schedule(optimizer, recipe.schedule, section.epochs, loader.steps_per_epoch)
    scaler = torch.amp.GradScaler(device.type, enabled=section.precision == "fp16")

    start, earlier_seconds = 0, 0.0
    checkpoint = run.start(recipe, resume=resume)
    if checkpoint is not None:
        objective.load_state_dict(checkpoint.objective)
        optimizer.load_state_dict(checkpoint.optimizer)
        scaler.load_state_dict(checkpoint.scaler)
        start, earlier_seconds = checkpoint.step, checkpoint.seconds

    began = time.monotonic()

    def save(step: int) -> None:
        seconds = earlier_seconds + time.monotonic() - began
        state = (objective.state_dict(), optimizer.state_dict(), scaler.state_dict())
        run.save(Checkpoint(step, seconds, *state))

    def images_until(step: int) -> int:
        epochs, rest = divmod(step, loader.steps_per_epoch)
        per_epoch = loader.steps_per_epoch * section.batch_size if section.drop_last else len(dataset)
        return epochs * per_epoch + rest * section.batch_size

    autocast = (
        torch.autocast(device.type, dtype=_DTYPES[section.precision])
        if section.precision in _DTYPES
        else nullcontext()
    )
    parameters = [p for p in objective.parameters() if p.requires_grad]
    recent: list[dict[str, Tensor]] = []
    logged_at, logged_step = time.monotonic(), start
    objective.train()
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        stop_on_signal() as stop,
        show_progress(recipe.name, total, start) as report,
    ):
        for step, batch in enumerate(loader.stream(start, total), start):
            schedule.step_update(step)
            torch.manual_seed(derive_seed("step", section.seed, step))
            objective.epoch = step / loader.steps_per_epoch
            with autocast:
                output = objective(batch)
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(output.loss).backward()
            if section.clip_grad is not None:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(parameters, section.clip_grad)
            scaler.step(optimizer)
            scaler.update()
            objective.update(batch, output)
            recent.append({"loss": output.loss.detach(), **output.metrics})

            done = step + 1
            epoch_ends = done % loader.steps_per_epoch == 0
            due = epoch_ends and done // loader.steps_per_epoch % section.checkpoint_every == 0
            last = done == total or stop.name is not None
            if done % section.log_every == 0 or due or last:
                now = time.monotonic()
                means = _means(recent)
                recent.clear()
                lr = optimizer.param_groups[0]["lr"]
                speed = (images_until(done) - images_until(logged_step)) / max(now - logged_at, 1e-9)
                logged_at, logged_step = now, done
                if not math.isfinite(means["loss"]):
                    raise TrainingError(
                        f"loss became {means['loss']} by step {done} of {total} at learning rate {lr:g}; the last "
                        "checkpoint is intact. Lower optimizer.lr, lengthen schedule.warmup_epochs, set "
                        "training.clip_grad, or use precision fp32"
                    )
                epoch = done / loader.steps_per_epoch
                run.log({"step": done, "epoch": epoch, "lr": lr, "images_per_second": speed, **means})
                report(done, epoch=epoch, loss=means["loss"], lr=lr, images_per_second=speed)
            if due or last:
                save(done)
            if stop.name is not None and done < total:
                raise Interrupted(
                    f'stopped by {stop.name} after step {done} of {total}; the state is saved in "{run.path}". '
                    "Give the same command with --resume to go on"
                )
    seconds = earlier_seconds + time.monotonic() - began
    return Trained(objective, total, images_until(total), seconds, loader.bad_images)


def _means(rows: list[dict[str, Tensor]]) -> dict[str, float]:
    """Average each metric over the steps that had it, with one transfer to the host."""
    names = sorted({name for row in rows for name in row})
    means = [torch.stack([row[name].float() for row in rows if name in row]).nanmean() for name in names]
    return dict(zip(names, torch.stack(means).tolist(), strict=True))
