"""Combinations of a recipe's values that cannot work, refused before any data is read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from zoo.objectives import OBJECTIVES, Classify, Objective
from zoo.recipe.methods import LDAMDRW, Method, NearestCenter, balances
from zoo.recipe.sections import ON_GPU_ALONE

if TYPE_CHECKING:
    from zoo.recipe.recipe import Recipe

Row = tuple[str, Any, str]
"""A key, what was found at it, and what is expected."""


def problems(recipe: Recipe) -> list[str]:
    """Return what does not fit together in a recipe, each as `key: found, expected`."""
    rows = [*_of_objective(recipe), *_of_training(recipe), *_of_looks(recipe)]
    if recipe.method is not None:
        rows += _of_method(recipe, recipe.method)
    told = [f"{key}: found {json.dumps(found)}, expected {expected}" for key, found, expected in rows]
    return told + _of_epochs(recipe)


def _of_objective(recipe: Recipe) -> Iterator[Row]:
    name, kind, section = recipe.objective.name, OBJECTIVES[recipe.objective.name], recipe.objective
    partial, centers = recipe.data.partial_labels, recipe.init is not None and recipe.init.head == "centers"
    if len(recipe.views.train) != kind.num_views:
        yield "views.train", len(recipe.views.train), f'{kind.num_views} view(s) for objective "{name}"'
    if recipe.name.partition(".")[0] != recipe.backbone.arch:
        yield "name", recipe.name, f'"{recipe.backbone.arch}.TAG"'
    if kind.from_candidates and partial is None:
        yield "data.partial_labels", None, f'candidate sets for objective "{name}"'
    if partial is not None and not kind.from_candidates:
        yield "data.partial_labels", partial.kind, f'null: objective "{name}" learns from no candidate sets'
    if centers and kind is not Classify:
        yield "init.head", "centers", f'"fresh" for objective "{name}"'
    if centers and getattr(section, "head", None) == "cosine":
        yield "init.head", "centers", '"fresh" with objective.head "cosine", which has no bias'


def _of_method(recipe: Recipe, method: Method) -> Iterator[Row]:
    section, sampling, name = recipe.objective, recipe.training.sampling, f'method "{method.name}"'
    if not isinstance(section, Classify.Config):
        yield "method", method.name, f'null with objective "{section.name}"'
        return
    if section.loss_name != "cross_entropy":
        yield "objective.loss", section.loss_name, f'"cross_entropy": {name} decides it'
    if section.head != "linear":
        yield "objective.head", section.head, f'"linear": {name} decides it'
    if sampling != "instance":
        yield "training.sampling", sampling, f'"instance": {name} decides it'
    if isinstance(method, LDAMDRW) and section.mix is not None:
        yield "objective.mix", "a section", f"null: {name} has margins for one class"
    if isinstance(method, LDAMDRW) and section.label_smoothing > 0:
        yield "objective.label_smoothing", section.label_smoothing, f"0: {name} has margins for one class"
    if isinstance(method, LDAMDRW | NearestCenter) and section.distill is not None:
        yield "objective.distill", "a section", f"null: {name} learns from no teacher"
    if isinstance(method, NearestCenter) and method.centers == "means" and method.similarity == "logit":
        yield "method.similarity", "logit", '"cosine" or "euclidean" with centers "means"'


def _of_training(recipe: Recipe) -> Iterator[Row]:
    training, schedule, batch = recipe.training, recipe.schedule, recipe.training.batch_size
    groups = getattr(recipe.objective, "key_groups", 1)
    if training.precision in ON_GPU_ALONE and training.device == "cpu":
        yield "training.precision", training.precision, '"fp32" or "bf16" on the CPU'
    if groups > 1 and 2 * groups > batch:
        yield "objective.key_groups", groups, f"at most {batch // 2}, two of {batch} keys for each"
    if schedule.warmup_prefix and schedule.name != "cosine":
        yield "schedule.warmup_prefix", True, f'false with schedule "{schedule.name}"'
    if (schedule.name == "multistep") != bool(schedule.milestones):
        yield "schedule.milestones", schedule.milestones, 'some for "multistep" and none for other schedules'


def _of_looks(recipe: Recipe) -> Iterator[Row]:
    """Check what is measured, while training and after it, against what the objective knows."""
    name, kind, training = recipe.objective.name, OBJECTIVES[recipe.objective.name], recipe.training
    stopping, sampling, unknown = training.early_stopping, training.sampling, f'objective "{name}" knows no '
    has_centers = kind.centers is not Objective.centers
    if kind.from_candidates and stopping is not None:
        yield "training.early_stopping", "a section", f"null: {unknown}true classes"
    if kind.from_candidates and sampling != "instance":
        yield "training.sampling", sampling, f'"instance": {unknown}true classes'
    if training.knn_every is not None and not kind.learns_without_labels(recipe.objective):
        yield "training.knn_every", training.knn_every, f'null: objective "{name}" learns from those labels'
    if stopping is not None and not has_centers:
        yield "training.early_stopping", "a section", f"null: {unknown}classifier"
    # what is then trained is not the plain cross-entropy of images as they come
    another = isinstance(recipe.method, LDAMDRW) or getattr(recipe.objective, "head", None) == "cosine"
    another = another or recipe.objective.adds_prior or sampling != "instance" or balances(recipe.method)
    if stopping is not None and stopping.metric == "loss" and another:
        yield "training.early_stopping.metric", "loss", '"balanced_accuracy": another loss is trained'
    for place, protocol in enumerate(recipe.evaluation):
        if protocol.protocol == "classifier" and not has_centers:
            yield f"evaluation.{place}", "classifier", f"another protocol: {unknown}class centers"


def _of_epochs(recipe: Recipe) -> list[str]:
    """Return all that fewer epochs have no room for, and the changes that have, in one text."""
    schedule, epochs = recipe.schedule, recipe.training.epochs
    ft = getattr(recipe.objective, "feature_transform", None)
    starts = {
        "schedule.warmup_epochs": schedule.warmup_epochs,
        "objective.feature_transform.start_epoch": ft.start_epoch if ft else 0,
        "objective.prototype_start": getattr(recipe.objective, "prototype_start", 0),
        "schedule.milestones": max(schedule.milestones, default=0),
    }
    late = {key: start for key, start in starts.items() if start >= epochs}
    if not late:
        return []
    mended = [f"{key}=0" for key in late if key != "schedule.milestones"]
    if "schedule.milestones" in late:
        left = [m for m in schedule.milestones if m < epochs]
        mended += [] if left else ["schedule.name=constant"]
        mended.append(f"schedule.milestones=[{','.join(map(str, left))}]")
    told = [f"{key}: found {start}, expected fewer than training.epochs" for key, start in late.items()]
    return [f"{'; '.join(told)} ({epochs}); add {' '.join(f'--set {each}' for each in mended)}"]
