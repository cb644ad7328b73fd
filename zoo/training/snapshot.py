"""A training as it was at one of its checkpoints; its run is only read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zoo.data import ImageDataset
from zoo.data.batches import batches_per_epoch, images_seen
from zoo.errors import TrainingError, first_line
from zoo.objectives import Objective
from zoo.recipe import Recipe
from zoo.training.build import build_objective
from zoo.training.checkpoint import Checkpoint, step_of
from zoo.training.loop import Trained
from zoo.training.monitor import split_validation, stopping_facts
from zoo.training.run import RunFolder


def checkpoint_of(run: RunFolder, step: int | None = None) -> Checkpoint:
    """Read the checkpoint of a step, the newest when None; not that from before the first.

    Raises:
        TrainingError: if there is none, naming those that there are, or it cannot be read.
    """
    steps = sorted(found for file in run.checkpoints() if (found := step_of(file)))
    if not steps or step not in (None, *steps):
        there = ", ".join(map(str, steps)) or "none yet"
        raise TrainingError(
            f'step: found {step or "none"}, but "{run.path}" has checkpoints of the steps: {there}; the '
            "recipe's training.checkpoint_every says when they are written, keep_checkpoints how many stay"
        )
    checkpoint = run.load(step)
    assert checkpoint is not None
    return checkpoint


def objective_at(
    checkpoint: Checkpoint, recipe: Recipe, run: RunFolder, train_set: ImageDataset
) -> Objective:
    """Build a recipe's objective with the weights of a checkpoint: their moving average, if there is one.

    Where the training began, `recipe.init`, need not be there any more: a checkpoint has all weights.

    Raises:
        TrainingError: if the checkpoint is of another recipe.
    """
    objective = build_objective(recipe.model_copy(update={"init": None}), train_set)
    average: Mapping[str, Any] = checkpoint.state.get("average", {}).get("mean", {})
    try:
        objective.load_state_dict({**checkpoint.state["objective"], **average})
    except (RuntimeError, KeyError) as error:
        raise TrainingError(
            f'the checkpoint of step {checkpoint.step} in "{run.path}" does not fit its recipe: '
            f"{first_line(error)[:200]}"
        ) from None
    return objective


def trained_until(checkpoint: Checkpoint, recipe: Recipe, run: RunFolder, train_set: ImageDataset) -> Trained:
    """Return what a training would have left in memory, had it ended with one of its checkpoints.

    With early stopping its weights are the best ones until then, as at the end.

    Args:
        checkpoint: of the run.
        recipe: of the run.
        run: its folder; a process may be training in it meanwhile.
        train_set: all training images.

    Raises:
        TrainingError: if the run began on other images, if the training has ended with the checkpoint, or
            with early stopping for one from before the first evaluation.
    """
    run.check_images(train_set)
    section, (training, validation) = recipe.training, split_validation(train_set, recipe)
    size = len(training)
    per_epoch = batches_per_epoch(size, section.batch_size, drop_last=section.drop_last)
    stopping, patience = checkpoint.state.get("stopping", {}), section.early_stopping
    waited = stopping.get("waited", 0)
    if checkpoint.step >= section.epochs * per_epoch or (patience and waited >= patience.patience):
        raise TrainingError(
            f'the training in "{run.path}" has ended with step {checkpoint.step}: its release is what the '
            "same command with --resume writes, or has written; snapshots are of earlier checkpoints"
        )
    objective = objective_at(checkpoint, recipe, run, train_set)
    facts = None
    if patience is not None:
        if (best := stopping.get("best")) is None:
            raise TrainingError(
                f'the checkpoint of step {checkpoint.step} in "{run.path}" is from before the first '
                "evaluation of training.early_stopping; expected a later one"
            )
        objective.load_state_dict(best["weights"], strict=False)
        facts = stopping_facts(recipe, best, len(validation or ()), checkpoint.step, per_epoch)
    whole, rest = divmod(checkpoint.step, per_epoch)
    return Trained(
        objective,
        checkpoint.step,
        images_seen(checkpoint.step, size, section.batch_size, drop_last=section.drop_last),
        checkpoint.seconds,
        checkpoint.written,
        facts,
        epoch=round(checkpoint.step / per_epoch, 2) if rest else whole,
    )
