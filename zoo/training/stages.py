"""What a recipe's `method` stands for: one or two plain trainings, as recipes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zoo import release
from zoo.config import Config, parse
from zoo.errors import RecipeError, TrainingError
from zoo.recipe import Recipe
from zoo.recipe.methods import (
    LDAMDRW,
    BalancedSoftmax,
    ClassBalancedSampling,
    ClassifierRetraining,
    FromCenters,
    LearnableWeightScaling,
    LogitAdjustment,
    NearestCenter,
)

Changes = dict[str, dict[str, Any]]
"""New values for keys of a recipe's sections."""

_STAGE = "A stage of a method for long-tailed data."


def what(recipe: Recipe) -> str:
    """Return what a stage trains, in a word."""
    return recipe.name.partition(".")[2]


def stages(recipe: Recipe) -> list[Recipe]:
    """Return the plain recipes whose trainings, one after another, are the recipe's.

    Without a method that is the recipe itself; `nearest_center` trains nothing. The others' names and texts
    are set by what they do, so what two methods begin with is one recipe: `cross_entropy`,
    `post_hoc_logit_adjustment`, `tau_normalized`, `crt` and `lws` share their first stage.

    A second stage has no averaging, early stopping, mixing or teachers: they are for the encoder, which
    stands still.
    """
    method = recipe.method
    if method is None:
        return [recipe]
    if isinstance(method, NearestCenter):
        return []
    first = _first(recipe)
    if isinstance(method, ClassifierRetraining | LearnableWeightScaling):
        return [first, _second(recipe, method)]
    return [first]


def beginning(recipe: Recipe) -> Recipe:
    """Return the plain recipe of the objective that the first stage trains, or that is released as it is.

    Raises:
        RecipeError: if the method starts from a release and the recipe names none.
        TrainingError: if it starts from centers and the release has none.
    """
    method = recipe.method
    if isinstance(method, FromCenters | NearestCenter):
        _require_start(recipe, method)
    if isinstance(method, NearestCenter):
        return _plain(recipe, method.name, {"init": {"head": _head(method)}})
    return stages(recipe)[0]


def _head(method: FromCenters | NearestCenter) -> str:
    means = isinstance(method, NearestCenter) and method.centers == "means"
    return "fresh" if means else "centers"


def _require_start(recipe: Recipe, method: FromCenters | NearestCenter) -> None:
    if recipe.init is None:
        raise RecipeError(
            f'{recipe.name}: method "{method.name}" starts from a release, and init is null; expected '
            '"init: {release: NAME}", or "zoo finetune RECIPE --init NAME"'
        )
    if _head(method) == "fresh":
        return
    name = recipe.init.release
    if not release.open(name).config["zoo"]["has_centers"]:
        raise TrainingError(
            f'method "{method.name}": init.release "{name}" has no learned centers; expected a release of an '
            "objective that learns them (bcl, classify, gpaco, paco, pico), or another method"
        )


def _first(recipe: Recipe) -> Recipe:
    method = recipe.method
    assert method is not None
    name, changes = "cross_entropy", Changes()
    if _is_balanced_softmax(method):
        name, changes["objective"] = "balanced_softmax", {"loss": "balanced_softmax"}
    elif isinstance(method, LogitAdjustment):
        name, changes["objective"] = method.name, {"loss": method.model_dump()}
    elif isinstance(method, ClassBalancedSampling):
        name, changes["training"] = method.name, {"sampling": "class_balanced"}
    elif isinstance(method, LDAMDRW):
        loss = {**method.model_dump(), "name": "ldam"}
        name, changes["objective"] = method.name, {"loss": loss, "head": "cosine", "head_std": None}
    if isinstance(method, FromCenters):
        changes["init"] = {"head": _head(method)}
    return _plain(recipe, name, changes)


def _is_balanced_softmax(method: Config) -> bool:
    """Logit adjustment with tau = 1 is the same loss, so one training serves both."""
    if isinstance(method, FromCenters):
        return method.prior
    return isinstance(method, BalancedSoftmax) or (isinstance(method, LogitAdjustment) and method.tau == 1)


def _second(recipe: Recipe, method: ClassifierRetraining | LearnableWeightScaling) -> Recipe:
    """Return the training of the classifier alone (Kang et al. 2020): its optimizer is the method's."""
    objective: dict[str, Any] = {"freeze_encoder": True, "mix": None, "distill": None}
    if isinstance(method, LearnableWeightScaling):
        objective |= {"head": "scaled", "head_std": None}
    changes: Changes = {
        "init": {"head": "fresh", "freeze": []},
        "objective": objective,
        "optimizer": {
            "name": "momentum",
            "lr": method.lr,
            "weight_decay": method.weight_decay,
            "momentum": method.momentum,
            "decay_norm_and_bias": True,
            "layer_decay": None,
            "args": {},
        },
        "schedule": {"name": "cosine", "warmup_epochs": 0, "min_lr": 0.0, "milestones": []},
        "training": {
            "epochs": method.epochs,
            "sampling": "class_balanced",
            "ema": None,
            "early_stopping": None,
        },
    }
    return _plain(recipe, method.name, changes)


def is_stage(recipe: Recipe) -> bool:
    """Whether that is the recipe of one of a method's trainings, which says nothing of the others."""
    return recipe.description == _STAGE


def _plain(recipe: Recipe, name: str, changes: Mapping[str, Mapping[str, Any]]) -> Recipe:
    """Return the recipe of a part of `recipe`, which measures nothing."""
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
