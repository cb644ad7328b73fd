"""What a recipe's `method` for long-tailed data stands for: one or two plain trainings, one after another.

Each is resumable, and shared where methods begin alike.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from zoo import hub
from zoo.config import Config, parse
from zoo.data import ImageDataset
from zoo.errors import RecipeError, TrainingError
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
    NearestCenter,
)
from zoo.recipe.overrides import COMPUTATION
from zoo.release.provenance import teacher_sha256
from zoo.training.build import build_objective
from zoo.training.changes import decisive
from zoo.training.checkpoint import step_of
from zoo.training.loop import Trained, train
from zoo.training.run import RunFolder
from zoo.training.teachers import teachers_of

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
    if not hub.open(name).config["zoo"]["has_centers"]:
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


class Stage(NamedTuple):
    """A finished stage: its recipe, the folder of its run, and what the loop left in memory."""

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
    at: Path | None = None,
    begun: list[RunFolder] | None = None,
) -> list[Stage]:
    """Train the stages of a recipe, each from what the one before it has learned.

    Without a method there is one, with its state in `run`. Those of a method lie in folders of `run`, or of
    `at`, that are named by all that decides their result: so they are continued, or taken as they are when
    they are finished, whatever method they were trained for.

    Args:
        objective: of `beginning(recipe)`.
        dataset: the training images.
        recipe: with or without a method.
        run: where state is kept.
        resume: go on with what is in `run`.
        ranks: the processes that train together.
        at: where to look for stages, and train them, instead of `run`.
        begun: gets the folder of each stage when it begins.

    Returns:
        The finished stages. None for `nearest_center`.

    Raises:
        Interrupted: as `train` does; the state of the stage is saved.
        TrainingError: if `run` holds a run and `resume` is off, or that of another recipe.
    """
    if recipe.method is None:
        return [Stage(recipe, run, train(objective, dataset, recipe, run, resume=resume, ranks=ranks))]
    planned, digest = list[tuple[Recipe, RunFolder]](), ""
    for stage in stages(recipe):
        digest = _digest(stage, dataset, digest)
        planned.append((stage, RunFolder((at or run.path) / f"{what(stage)}-{digest}")))
    if ranks.rank == 0:
        run.claim(recipe, [folder for _, folder in planned], resume=resume)
    done: list[Stage] = []
    for stage, folder in planned:
        if begun is not None:
            begun.append(folder)
        if done:
            objective = _following(stage, dataset, done[-1].trained.objective)
        done.append(Stage(stage, folder, train(objective, dataset, stage, folder, resume=True, ranks=ranks)))
    return done


def _following(recipe: Recipe, dataset: ImageDataset, before: Objective) -> Objective:
    """Build a second stage's objective: with the first's encoder, and its classifier where that is scaled."""
    objective = build_objective(recipe, dataset)
    assert isinstance(objective, Classify) and isinstance(before, Classify)
    objective.encoder.load_state_dict(before.encoder.state_dict())
    if objective.config.head == "scaled":
        objective.start_from(before.centers())
    return objective


def _digest(recipe: Recipe, dataset: ImageDataset, before: str) -> str:
    """Name a stage by all that decides its result: recipe, images, first weights, and the stage before it."""
    start = [] if recipe.init is None else _weights(recipe.init.release)
    start += [teacher_sha256(hub.open(name).config) for name in teachers_of(recipe)]
    facts = [
        decisive(recipe.model_dump(mode="json"), COMPUTATION),
        dataset.describe()["sha256"],
        start,
        before,
    ]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


def _weights(name: str) -> list[str | None]:
    """Return the hashes of a release's weights and centers: a folder may be trained anew."""
    zoo = hub.open(name).config["zoo"]
    return [zoo["weights_sha256"], zoo["centers_sha256"]]


def together(objective: Objective, stages: Sequence[Stage]) -> Trained:
    """Return what all stages leave as one training's result; `objective` is the last one's."""
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
    return _as_one(runs, [run.rows() for run in runs])


def class_rows_of(runs: Sequence[RunFolder]) -> list[dict[str, Any]]:
    """Return what was recorded of the classes in all stages as one run's."""
    return _as_one(runs, [run.class_rows() for run in runs])


def _as_one(runs: Sequence[RunFolder], rows_of_each: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    joined, steps, epochs = list[dict[str, Any]](), 0, 0.0
    for run, rows in zip(runs, rows_of_each, strict=True):
        joined += [
            {**row, "step": row["step"] + steps, "epoch": row.get("epoch", 0) + epochs} for row in rows
        ]
        length = _length(run)
        steps, epochs = steps + length[0], epochs + length[1]
    return joined


def _length(run: RunFolder) -> tuple[int, float]:
    """Return how many steps and epochs a run has behind it, by what it has recorded and saved."""
    last = max(run.rows(), key=lambda row: row["step"], default={"step": 0})
    newest = next(iter(run.checkpoints()), None)
    steps: int = max(last["step"], (0 if newest is None else step_of(newest)) or 0)
    return steps, last.get("epoch", 0) * steps / max(last["step"], 1)
