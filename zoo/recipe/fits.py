"""Combinations of a recipe's values that cannot work, refused before any data is read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from zoo.objectives import OBJECTIVES, Classify, Objective
from zoo.recipe.methods import LDAMDRW, NearestCenter, balances
from zoo.recipe.sections import ON_GPU_ALONE

if TYPE_CHECKING:
    from zoo.recipe.recipe import Recipe

Row = tuple[object, str, Any, str]
"""A condition that is true where it cannot work, the key, the value found there, and what is expected."""


def problems(recipe: Recipe) -> list[str]:
    """Return what does not fit together in a recipe, each as `key: found, expected`."""
    rows = [*_rows(recipe), *_rows_of_method(recipe)]
    return [f"{key}: found {json.dumps(found)}, expected {text}" for bad, key, found, text in rows if bad]


def _rows(recipe: Recipe) -> list[Row]:
    section, training, schedule = recipe.objective, recipe.training, recipe.schedule
    kind, name, arch = OBJECTIVES[section.name], f'objective "{section.name}"', recipe.backbone.arch
    partial, views, epochs = recipe.data.partial_labels, len(recipe.views.train), training.epochs
    centers, cosine = recipe.init and recipe.init.head == "centers", getattr(section, "head", "") == "cosine"
    classless, candidates = kind.centers is Objective.centers, kind.from_candidates
    stop, sampling, knn = training.early_stopping, training.sampling, training.knn_every
    plain = sampling == "instance" and not (section.adds_prior or cosine or balances(recipe.method))
    plain = plain and not isinstance(recipe.method, LDAMDRW)  # the cross-entropy of images as they come
    batch, precision = training.batch_size, training.precision
    groups, most = getattr(section, "key_groups", 1), max(1, batch // 2)
    falls, name_of_schedule, device = schedule.milestones, schedule.name, training.device
    transform, late = getattr(section, "feature_transform", None), f"fewer than training.epochs ({epochs})"
    by_loss = stop and stop.metric == "loss"
    uneven, blind = (name_of_schedule == "multistep") != bool(falls), candidates or classless
    probes = [each.protocol for each in recipe.evaluation]
    starts = {
        "schedule.warmup_epochs": schedule.warmup_epochs,
        "schedule.milestones": max(falls, default=0),
        "objective.feature_transform.start_epoch": transform.start_epoch if transform else 0,
        "objective.prototype_start": getattr(section, "prototype_start", 0),
    }
    rows: list[Row] = [
        (views != kind.num_views, "views.train", views, f"{kind.num_views} view(s) for {name}"),
        (recipe.name.partition(".")[0] != arch, "name", recipe.name, f'"{arch}.TAG"'),
        (candidates and not partial, "data.partial_labels", None, f"candidate sets for {name}"),
        (partial and not candidates, "data.partial_labels", partial and partial.kind, f"null for {name}"),
        (centers and kind is not Classify, "init.head", "centers", f'"fresh" for {name}'),
        (centers and cosine, "init.head", "centers", '"fresh" with objective.head "cosine", without a bias'),
        (stop and blind, "training.early_stopping", "a section", f"null for {name}"),
        (by_loss and not plain, "training.early_stopping.metric", "loss", '"accuracy" with another loss'),
        (candidates and sampling != "instance", "training.sampling", sampling, f'"instance" for {name}'),
        (knn and not kind.without_labels, "training.knn_every", knn, f"null for {name}"),
        (groups > most, "objective.key_groups", groups, f"at most {most}, of two keys each"),
        (schedule.warmup_prefix and name_of_schedule != "cosine", "schedule.warmup_prefix", True, "false"),
        (uneven, "schedule.milestones", falls, 'some for "multistep" and none for other schedules'),
        (precision in ON_GPU_ALONE and device == "cpu", "training.precision", precision, '"fp32" or "bf16"'),
        *((start >= epochs, key, start, late) for key, start in starts.items()),
    ]
    for place, probe in enumerate(probes):
        bad, text = classless and probe == "classifier", f"another protocol for {name}"
        rows.append((bad, f"evaluation.{place}", probe, text))
    return rows


def _rows_of_method(recipe: Recipe) -> list[Row]:
    section, method, sampling = recipe.objective, recipe.method, recipe.training.sampling
    if method is None:
        return []
    if not isinstance(section, Classify.Config):
        return [(True, "method", method.name, f'null with objective "{section.name}"')]
    smooth, name, ldam = section.label_smoothing, f'method "{method.name}"', isinstance(method, LDAMDRW)
    nearest = isinstance(method, NearestCenter)
    means = isinstance(method, NearestCenter) and method.centers == "means" and method.similarity == "logit"
    return [
        (
            section.loss_name != "cross_entropy",
            "objective.loss",
            section.loss_name,
            f'"cross_entropy": {name} decides it',
        ),
        (section.head != "linear", "objective.head", section.head, f'"linear": {name} decides it'),
        (sampling != "instance", "training.sampling", sampling, f'"instance": {name} decides it'),
        (ldam and section.mix, "objective.mix", "a section", f"null for {name}"),
        (ldam and smooth > 0, "objective.label_smoothing", smooth, f"0 for {name}"),
        ((ldam or nearest) and section.distill, "objective.distill", "a section", f"null for {name}"),
        (means, "method.similarity", "logit", '"cosine" or "euclidean" with centers "means"'),
    ]
