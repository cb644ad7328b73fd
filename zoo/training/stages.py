"""A recipe's `method` for long-tailed data: one or two plain trainings in a row, and a closing step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zoo import functional, hub
from zoo.config import parse
from zoo.data import ImageDataset
from zoo.errors import RecipeError, TrainingError
from zoo.modules import Centers
from zoo.objectives import Classify, Objective
from zoo.ranks import ALONE, Ranks
from zoo.recipe import Recipe
from zoo.recipe.methods import (
    LDAMDRW,
    BalancedSoftmax,
    ClassBalancedSampling,
    ClassifierRetraining,
    FromCenters,
    LearnableWeightScaling,
    LogitAdjustment,
    Method,
    NearestCenter,
    PostHocLogitAdjustment,
    TauNormalized,
)
from zoo.training.build import build_objective
from zoo.training.checkpoint import step_of
from zoo.training.loop import Trained, train
from zoo.training.run import RunFolder

Changes = dict[str, dict[str, Any]]
"""New values for keys of a recipe's sections."""
Features = Callable[[], tuple[Tensor, Tensor]]
"""Returns pooled features `[N, D_f]` of the training images, and their classes `[N]`."""

_STAGE = "A stage of a method for long-tailed data."


def what(recipe: Recipe) -> str:
    """Return what a stage trains, in a word."""
    return recipe.name.partition(".")[2]


def is_stage(recipe: Recipe) -> bool:
    """Whether that is the recipe of one of a method's trainings, which says nothing of the others."""
    return recipe.description == _STAGE


def stages(recipe: Recipe) -> list[Recipe]:
    """Return the plain recipes that are trained one after another; without a method, the recipe itself.

    `nearest_center` trains nothing. A second stage trains the classifier alone (Kang et al. 2020): without
    averaging, early stopping, mixing or teachers, which are for the encoder.
    """
    method = recipe.method
    if method is None:
        return [recipe]
    if isinstance(method, NearestCenter):
        return []
    first = _first(recipe, method)
    if not isinstance(method, ClassifierRetraining | LearnableWeightScaling):
        return [first]
    objective: dict[str, Any] = {"freeze_encoder": True, "mix": None, "distill": None}
    if isinstance(method, LearnableWeightScaling):
        objective |= {"head": "scaled", "head_std": None}
    optimizer = {
        "name": "momentum",
        "lr": method.lr,
        "weight_decay": method.weight_decay,
        "momentum": method.momentum,
        "decay_norm_and_bias": True,
        "layer_decay": None,
        "args": {},
    }
    changes: Changes = {
        "init": {"head": "fresh", "freeze": []},
        "objective": objective,
        "optimizer": optimizer,
        "schedule": {"name": "cosine", "warmup_epochs": 0, "min_lr": 0.0, "milestones": []},
        "training": {
            "epochs": method.epochs,
            "sampling": "class_balanced",
            "ema": None,
            "early_stopping": None,
        },
    }
    return [first, _plain(recipe, method.name, changes)]


def _first(recipe: Recipe, method: Method) -> Recipe:
    name, changes = "cross_entropy", Changes()
    if isinstance(method, FromCenters):
        changes["init"] = {"head": "centers"}
    if isinstance(method, BalancedSoftmax) or (isinstance(method, FromCenters) and method.prior):
        name, changes["objective"] = "balanced_softmax", {"loss": "balanced_softmax"}
    elif isinstance(method, LogitAdjustment):
        name, changes["objective"] = method.name, {"loss": method.model_dump()}
    elif isinstance(method, ClassBalancedSampling):
        name, changes["training"] = method.name, {"sampling": "class_balanced"}
    elif isinstance(method, LDAMDRW):
        loss = {**method.model_dump(), "name": "ldam"}
        name, changes["objective"] = method.name, {"loss": loss, "head": "cosine", "head_std": None}
    return _plain(recipe, name, changes)


def _plain(recipe: Recipe, name: str, changes: Mapping[str, Mapping[str, Any]]) -> Recipe:
    """Return the recipe of a stage of `recipe`, which measures nothing."""
    plain = recipe.model_dump(mode="json")
    for section, values in changes.items():
        if plain[section] is not None:  # without `init` there is no head to choose
            plain[section] |= values
    plain |= {
        "name": f"{recipe.backbone.arch}.{name}",
        "description": _STAGE,
        "method": None,
        "evaluation": [],
    }
    return parse(Recipe, plain, f"{recipe.name}: {name}")


def beginning(recipe: Recipe) -> Recipe:
    """Return the plain recipe of the objective that is trained first, or released as it is.

    Raises:
        RecipeError: if the method starts from a release and the recipe names none.
        TrainingError: if it starts from centers and the release has none.
    """
    method = recipe.method
    if not isinstance(method, FromCenters | NearestCenter):
        return stages(recipe)[0]
    if recipe.init is None:
        raise RecipeError(
            f'{recipe.name}: method "{method.name}" starts from a release, and init is null; expected '
            '"init: {release: NAME}", or "zoo finetune RECIPE --init NAME"'
        )
    means = isinstance(method, NearestCenter) and method.centers == "means"
    if not means and not hub.open(recipe.init.release).config["zoo"]["has_centers"]:
        raise TrainingError(
            f'method "{method.name}": init.release "{recipe.init.release}" has no learned centers; expected '
            "a release of an objective that learns them (bcl, classify, gpaco, paco, pico), or another method"
        )
    if isinstance(method, FromCenters):
        return stages(recipe)[0]
    return _plain(recipe, method.name, {"init": {"head": "fresh" if means else "centers"}})


class Stage(NamedTuple):
    """A finished stage: its recipe, the folder of its run, and the result of its training."""

    recipe: Recipe
    run: RunFolder
    trained: Trained

    @property
    def name(self) -> str:
        """What it trains, in a word."""
        return what(self.recipe)

    @property
    def epochs(self) -> float:
        """How long it took; early stopping may have ended it, or nothing yet."""
        epoch, stopping = self.trained.epoch, self.trained.stopping
        if epoch is not None:
            return epoch
        return self.recipe.training.epochs if stopping is None else int(stopping["stopped_at_epoch"])


def train_stages(
    objective: Objective,
    dataset: ImageDataset,
    recipe: Recipe,
    run: RunFolder,
    *,
    resume: bool,
    ranks: Ranks = ALONE,
    begun: list[RunFolder] | None = None,
) -> list[Stage]:
    """Train the stages of a recipe, each from what the one before it has learned.

    Without a method there is one, with its state in `run`; those of a method lie in `stage-1` and `stage-2`
    in it, and are resumed, or taken as they are when they are finished.

    Args:
        objective: of `beginning(recipe)`.
        dataset: the training images.
        recipe: with or without a method.
        run: where state is kept.
        resume: go on with what is in `run`.
        ranks: the processes that train together.
        begun: gets the folder of each stage when it begins.

    Returns:
        The finished stages. None for `nearest_center`.

    Raises:
        Interrupted: as `train` does; the state of the stage is saved.
        TrainingError: if `run` holds a run and `resume` is off, or that of another recipe.
    """
    if recipe.method is None:
        return [Stage(recipe, run, train(objective, dataset, recipe, run, resume=resume, ranks=ranks))]
    if ranks.rank == 0:
        run.claim(recipe, resume=resume)
    done: list[Stage] = []
    for number, stage in enumerate(stages(recipe), 1):
        folder = run.stage(number)
        if begun is not None:
            begun.append(folder)
        if done:  # with the encoder of the first, and its classifier where that is scaled
            before, objective = objective, build_objective(stage, dataset)
            assert isinstance(objective, Classify) and isinstance(before, Classify)
            objective.encoder.load_state_dict(before.encoder.state_dict())
            if objective.config.head == "scaled":
                objective.start_from(before.centers())
        done.append(Stage(stage, folder, train(objective, dataset, stage, folder, resume=True, ranks=ranks)))
    return done


def close(method: Method, learned: Centers, train: Features) -> Centers:
    """Return the classifier of a method, linear in the pooled features.

    A class without training images is never predicted, unless learned centers are taken as they are: what
    they were learned of may have had some.

    Args:
        method: the recipe's.
        learned: the classifier that the last stage, or `init`, has left.
        train: called only where features are needed.
    """
    weight, bias, counts = learned.weight, learned.bias, learned.class_counts
    absent = counts == 0
    if isinstance(method, TauNormalized):
        weight, bias = functional.tau_normalize(weight, tau=method.tau), torch.zeros_like(bias)
    elif isinstance(method, PostHocLogitAdjustment):
        bias = functional.post_hoc_adjusted(bias, counts, tau=method.tau)
    elif isinstance(method, LDAMDRW):
        # over the usual norm of features: logits come near those of the cosines that it was trained by
        weight = weight / train()[0].norm(dim=1).mean().to(weight)
    elif isinstance(method, NearestCenter):
        if method.centers == "means":
            features, labels = train()
            weight = functional.class_means(features, labels, len(weight)).to(weight)
        else:
            absent = torch.zeros_like(absent)
        weight, bias = functional.nearest_center(weight, bias, method.similarity)
    weight, bias = functional.mask_classes(weight, bias, absent)
    return learned._replace(weight=weight, bias=bias)


def together(objective: Objective, stages: Sequence[Stage]) -> Trained:
    """Return the results of all stages as one training's of `objective`, the last one's."""
    return Trained(
        objective,
        sum(stage.trained.steps for stage in stages),
        sum(stage.trained.images for stage in stages),
        sum(stage.trained.seconds for stage in stages),
        max((stage.trained.ended for stage in stages), default=time.time()),  # a method may train nothing
        next((stage.trained.stopping for stage in stages if stage.trained.stopping), None),
        stages[-1].trained.epoch if stages else None,
    )


def rows_of(runs: Sequence[RunFolder]) -> list[dict[str, Any]]:
    """Return the metrics of all stages as one run's: steps and epochs go on counting."""
    return _joined(runs, [run.rows() for run in runs])


def class_rows_of(runs: Sequence[RunFolder]) -> list[dict[str, Any]]:
    """Return what was recorded of the classes in all stages as one run's."""
    return _joined(runs, [run.class_rows() for run in runs])


def _joined(runs: Sequence[RunFolder], rows_of_each: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    joined, steps, epochs = list[dict[str, Any]](), 0, 0.0
    for run, rows in zip(runs, rows_of_each, strict=True):
        joined += [{**row, "step": row["step"] + steps, "epoch": row["epoch"] + epochs} for row in rows]
        saved = next(iter(run.checkpoints()), None)  # the last step of a finished stage is saved
        if saved is not None and (recorded := run.rows()):
            length, last = step_of(saved) or 0, recorded[-1]
            steps, epochs = steps + length, epochs + last["epoch"] * length / last["step"]
    return joined
