"""A training as it was at one of its checkpoints; its run is read and not touched."""

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
from zoo.training.monitor import Best, split_validation, stopping_facts
from zoo.training.run import RunFolder


def checkpoint_of(run: RunFolder, step: int | None = None) -> Checkpoint:
    """Read the checkpoint of a step, the newest when None; not that from before the first.

    Raises:
        TrainingError: if there is none, naming those that there are, or it cannot be read.
    """
    steps = sorted(found for file in run.checkpoints() if (found := step_of(file)))  # 0: nothing is learned
    if step is not None and step not in steps:
        there = ", ".join(map(str, steps)) if steps else "none"
        raise TrainingError(
            f'step: found {step}, but "{run.path}" has checkpoints of other steps: {there}; the recipe\'s '
            "training.checkpoint_every says when they are written, keep_checkpoints how many are kept"
        )
    checkpoint = run.load(step)
    if checkpoint is None or checkpoint.step == 0:
        if steps:
            raise TrainingError(
                f'"{run.path}": no checkpoint of a trained state can be read; there are: {steps}'
            )
        raise TrainingError(f'"{run.path}" has no checkpoint of a trained state yet')
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
    average = checkpoint.state.get("average", {}).get("mean", {})
    _fill(objective, {**checkpoint.state["objective"], **average}, checkpoint, run)
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
        TrainingError: if the checkpoint is of another recipe, or the run began on other images; if the
            training has ended with it; with early stopping also for one from before the first look.
    """
    run.check_images(train_set)
    section, parts = recipe.training, split_validation(train_set, recipe)
    size = len(parts.training)
    per_epoch = batches_per_epoch(size, section.batch_size, drop_last=section.drop_last)
    waited, patience = checkpoint.state.get("stopping", {}).get("waited", 0), section.early_stopping
    if checkpoint.step >= section.epochs * per_epoch or (patience and waited >= patience.patience):
        others = sorted(found for file in run.checkpoints()[1:] if (found := step_of(file)))
        raise TrainingError(
            f'the training in "{run.path}" has ended with step {checkpoint.step}: its release is what the '
            "same command with --resume writes, or has written; snapshots are of earlier checkpoints: "
            f"{', '.join(map(str, others)) or 'none is kept'}"
        )
    objective = objective_at(checkpoint, recipe, run, train_set)
    stopping = None
    if section.early_stopping is not None:
        best = _best(checkpoint, run)
        _fill(objective, {**objective.state_dict(), **best.weights}, checkpoint, run)
        held = 0 if parts.validation is None else len(parts.validation)
        stopping = stopping_facts(section.early_stopping, best, held, checkpoint.step, per_epoch)
    return Trained(
        objective,
        checkpoint.step,
        images_seen(checkpoint.step, size, section.batch_size, drop_last=section.drop_last),
        checkpoint.seconds,
        checkpoint.written,
        stopping,
        epoch=epochs_of(checkpoint.step, per_epoch),
    )


def epochs_of(step: int, steps_per_epoch: int) -> float:
    """Return how many epochs so many steps are: a whole number where they end one, else two decimals."""
    whole, rest = divmod(step, steps_per_epoch)
    return round(step / steps_per_epoch, 2) if rest else whole


def _best(checkpoint: Checkpoint, run: RunFolder) -> Best:
    best = checkpoint.state.get("stopping", {}).get("best")
    if best is None:
        raise TrainingError(
            f'the checkpoint of step {checkpoint.step} in "{run.path}" is from before the first look at the '
            "validation part (training.early_stopping); expected a later one"
        )
    return Best(**best)


def _fill(objective: Objective, state: Mapping[str, Any], checkpoint: Checkpoint, run: RunFolder) -> None:
    try:
        objective.load_state_dict(state)
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TrainingError(
            f'the checkpoint of step {checkpoint.step} in "{run.path}" does not fit its recipe: '
            f"{first_line(error)[:200]}"
        ) from None
