"""A training as it was at one of its checkpoints; its run is only read."""

from __future__ import annotations

from zoo.data import ImageDataset
from zoo.data.batches import batches_per_epoch
from zoo.errors import TrainingError
from zoo.recipe import Recipe
from zoo.training.build import build_objective
from zoo.training.checkpoint import Checkpoint
from zoo.training.facts import Trained, trained_at
from zoo.training.monitor import split_validation
from zoo.training.run import RunFolder


def checkpoint_of(run: RunFolder, step: int | None) -> Checkpoint:
    """Read the checkpoint of a step, the newest when None; TrainingError, naming others, if there is none."""
    steps = sorted(found for found in run.checkpoints() if found)
    if not steps or step not in (None, *steps):
        there = ", ".join(map(str, steps)) or "none yet"
        found = f"step: found {step or 'none'}"
        raise TrainingError(f'{found}, but "{run.path}" has checkpoints of the steps: {there}')
    checkpoint = run.load(step)
    assert checkpoint is not None
    return checkpoint


def trained_until(checkpoint: Checkpoint, recipe: Recipe, run: RunFolder, train_set: ImageDataset) -> Trained:
    """Return what a training would have left in memory, had it ended there; refuse other images."""
    run.check_images(train_set)
    section, size = recipe.training, len(split_validation(train_set, recipe)[0])
    per_epoch = batches_per_epoch(size, section.batch_size, drop_last=section.drop_last)
    step, patience = checkpoint.step, section.early_stopping
    stopping = checkpoint.state.get("stopping", {"waited": 0, "best": None})
    of = f'the checkpoint of step {step} in "{run.path}"'
    if step >= section.epochs * per_epoch or (patience and stopping["waited"] >= patience.patience):
        raise TrainingError(f"{of} is the end of the training; its release is what --resume writes")
    if patience and stopping["best"] is None:
        raise TrainingError(f"{of} is from before the first evaluation of training.early_stopping")
    # a checkpoint has all weights: where the training began need not be there any more
    objective = build_objective(recipe.model_copy(update={"init": None}), train_set)
    average = checkpoint.state.get("average", {}).get("mean", {})
    objective.load_state_dict({**checkpoint.state["objective"], **average})
    epoch = step // per_epoch if step % per_epoch == 0 else round(step / per_epoch, 2)
    trained = trained_at(checkpoint, recipe, run, objective, train_set, stopping["best"])
    return trained._replace(epoch=epoch)
