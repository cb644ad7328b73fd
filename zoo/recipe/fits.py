"""Combinations of a recipe's values that cannot work, refused before any data is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from zoo.objectives import OBJECTIVES, Classify, Objective
from zoo.recipe.methods import LDAMDRW, NearestCenter, balances
from zoo.recipe.sections import ON_GPU_ALONE

if TYPE_CHECKING:
    from zoo.recipe.recipe import Recipe


def problems(recipe: Recipe) -> Iterator[str]:
    """Yield what does not fit together in a recipe, each as `key: found, expected`."""
    yield from _of_objective(recipe)
    yield from _of_method(recipe)
    yield from _of_training(recipe)
    yield from _of_epochs(recipe)
    yield from _of_evaluation(recipe)


def _of_objective(recipe: Recipe) -> Iterator[str]:
    name, objective = recipe.objective.name, OBJECTIVES[recipe.objective.name]
    views, given = len(recipe.views.train), recipe.data.partial_labels
    if views != objective.num_views:
        yield f'views.train: found {views} view(s), objective "{name}" expects {objective.num_views}'
    if recipe.name.partition(".")[0] != recipe.backbone.arch:
        yield f'name: found "{recipe.name}", expected "{recipe.backbone.arch}.TAG"'
    if objective.from_candidates and given is None:
        yield f'data.partial_labels: found null with objective "{name}", expected candidate sets'
    if not objective.from_candidates and given is not None:
        who = ", ".join(each for each, known in OBJECTIVES.items() if known.from_candidates)
        yield (
            f'data.partial_labels: found {given.kind} with objective "{name}", expected null: only {who} '
            "learns from candidate sets"
        )
    if recipe.init is not None and recipe.init.head == "centers":
        if objective is not Classify:
            yield f'init.head: "centers" needs objective "classify", found "{name}"'
        if getattr(recipe.objective, "head", None) == "cosine":
            yield 'init.head: "centers" have a bias, objective.head "cosine" has none; use "fresh"'


def _of_method(recipe: Recipe) -> Iterator[str]:
    method, objective = recipe.method, recipe.objective
    if method is None:
        return
    if not isinstance(objective, Classify.Config):
        yield f'method: needs objective "classify", found "{objective.name}"'
        return
    decided = {
        "objective.loss": (objective.loss_name, "cross_entropy"),
        "objective.head": (objective.head, "linear"),
        "training.sampling": (recipe.training.sampling, "instance"),
    }
    for key, (found, expected) in decided.items():
        if found != expected:
            yield f'{key}: found "{found}", expected "{expected}": method "{method.name}" decides it'
    if isinstance(method, LDAMDRW):
        for key, off in {"mix": None, "label_smoothing": 0.0}.items():
            if getattr(objective, key) != off:
                yield f'objective.{key}: method "ldam_drw" has margins for one class; expected {off}'
        if objective.distill is not None:
            yield 'objective.distill: method "ldam_drw" has cosines that no teacher has; expected null'
    if isinstance(method, NearestCenter):
        if objective.distill is not None:
            yield f'objective.distill: method "{method.name}" trains nothing; expected null'
        if method.centers == "means" and method.similarity == "logit":
            yield 'method.similarity: "logit" is of learned centers; "means" need "cosine" or "euclidean"'


def _of_training(recipe: Recipe) -> Iterator[str]:
    training, schedule = recipe.training, recipe.schedule
    if training.precision in ON_GPU_ALONE and training.device == "cpu":
        yield f'training.precision: "{training.precision}" needs a GPU; expected "fp32" or "bf16" on the CPU'
    if training.batch_size % training.accumulate:
        yield (
            f"training.accumulate: found {training.accumulate}, expected a divisor of training.batch_size "
            f"({training.batch_size})"
        )
    if training.checkpoint_activations and training.compile is not None:
        yield (
            f'training.checkpoint_activations: true with training.compile: "{training.compile}", which '
            "decides itself what it keeps; expected one of them to be off"
        )
    at_once = training.batch_size // training.accumulate
    groups = getattr(recipe.objective, "key_groups", 1)
    if groups > 1 and 2 * groups > at_once:
        yield (
            f"objective.key_groups: found {groups}, expected at most {at_once // 2}: a group needs 2 of the "
            f"{at_once} keys that are encoded together"
        )
    if schedule.warmup_prefix and schedule.name != "cosine":
        yield f'schedule.warmup_prefix: found true with schedule "{schedule.name}", expected it with "cosine"'
    if (schedule.name == "multistep") != bool(schedule.milestones):
        yield (
            f'schedule.milestones: found {schedule.milestones} with schedule "{schedule.name}", expected '
            'some for "multistep" and none for others'
        )


def _of_epochs(recipe: Recipe) -> Iterator[str]:
    """Yield all that fewer epochs have no room for, and the changes that have, in one text."""
    schedule, epochs = recipe.schedule, recipe.training.epochs
    limit = f"training.epochs ({epochs})"
    found, mended = list[str](), list[str]()
    if schedule.warmup_epochs >= epochs:
        found.append(f"schedule.warmup_epochs: found {schedule.warmup_epochs}, expected fewer than {limit}")
        mended.append("schedule.warmup_epochs=0")
    late = [m for m in schedule.milestones if m >= epochs]
    if late:
        found.append(f"schedule.milestones: {late} never reached in {limit}")
        left = [m for m in schedule.milestones if m < epochs]
        mended += [] if left else ["schedule.name=constant"]
        mended.append(f"schedule.milestones=[{','.join(map(str, left))}]")
    ft = getattr(recipe.objective, "feature_transform", None)
    starts = {
        "objective.feature_transform.start_epoch": ft.start_epoch if ft else 0,
        "objective.prototype_start": getattr(recipe.objective, "prototype_start", 0),
    }
    for key, start in starts.items():
        if start >= epochs:
            found.append(f"{key}: {start} never reached in {limit}")
            mended.append(f"{key}=0")
    if found:
        yield f"{'; '.join(found)}; add {' '.join(f'--set {each}' for each in mended)}"


def _of_evaluation(recipe: Recipe) -> Iterator[str]:
    name, objective = recipe.objective.name, OBJECTIVES[recipe.objective.name]
    training, stopping = recipe.training, recipe.training.early_stopping
    has_centers = objective.centers is not Objective.centers
    if objective.from_candidates and stopping is not None:
        yield (
            f'training.early_stopping: judges by the true classes, which objective "{name}" does not know; '
            "expected null"
        )
    if objective.from_candidates and training.sampling != "instance":
        yield (
            f'training.sampling: found "{training.sampling}", expected "instance": objective "{name}" does '
            "not know the true classes"
        )
    if training.knn_every is not None and not objective.learns_without_labels(recipe.objective):
        instead = "; training.early_stopping looks at images that are put aside"
        yield (
            f'training.knn_every: asks for the labels of training images, which objective "{name}" learns '
            "from, so that the answer would say little; expected null"
            + (instead if has_centers and not objective.from_candidates else "")
        )
    if stopping is not None and not has_centers:
        yield (
            "training.early_stopping: looks at what a classifier makes of the validation part, and objective "
            f'"{name}" learns none; expected null'
        )
    if stopping is not None and stopping.metric == "loss":
        yield from _of_stopping_by_loss(recipe)
    for number, protocol in enumerate(recipe.evaluation):
        if protocol.protocol == "classifier" and not has_centers:
            yield (
                f'evaluation.{number}: protocol "classifier" needs class centers, which objective "{name}" '
                "does not learn"
            )


def _of_stopping_by_loss(recipe: Recipe) -> Iterator[str]:
    """Yield why training does not lower what early stopping calls the loss: it would keep the wrong state."""
    key, expected = "training.early_stopping.metric", 'expected "balanced_accuracy" or "accuracy"'
    if isinstance(recipe.method, LDAMDRW) or getattr(recipe.objective, "head", None) == "cosine":
        yield (
            f'{key}: "loss" of a linear classifier is not what ldam trains, which takes out the norm of the '
            f"features; {expected}"
        )
    elif recipe.objective.adds_prior or recipe.training.sampling != "instance" or balances(recipe.method):
        yield (
            f'{key}: "loss" counts images as they come, and this recipe trains a classifier for classes '
            f"alike; {expected}"
        )
