"""What a table of results has of a release: which training it is, and what was measured on it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from zoo import catalog
from zoo.config import parse
from zoo.data.cifar import as_archive
from zoo.data.words import data_words
from zoo.errors import RecipeError, ReleaseError
from zoo.evaluation.results.rows import RunResult
from zoo.release import Release, format
from zoo.release.card.metadata import split_words
from zoo.release.origins import START, TEACHERS
from zoo.training import Recipe
from zoo.training.changes import ALLOWED, decisive, differences

_DECIDE = frozenset(f"training.{key}" for key in ("precision", "accumulate", "release_dtype"))
_SAME = (ALLOWED - _DECIDE) | {"training.seed", "data.source.download"}
"""Keys in which runs of a row may differ: the seed, and how it is computed where that moves no figure."""

_NEEDED = ("epochs", "seconds", "images_per_second", "hardware", "precision", "seed", "date", "versions")
_TITLES = {
    "bcl": "BCL",
    "balanced_softmax": "Balanced Softmax",
    "class_balanced_sampling": "class-balanced sampling",
    "cross_entropy": "cross-entropy",
    "crt": "cRT",
    "from_centers": "from the centers",
    "gpaco": "GPaCo",
    "ldam": "LDAM",
    "ldam_drw": "LDAM-DRW",
    "lws": "LWS",
    "margin": "margin loss",
    "moco": "MoCo",
    "moco_v3": "MoCo v3",
    "nearest_center": "nearest center",
    "paco": "PaCo",
    "pico": "PiCO",
    "post_hoc_logit_adjustment": "post-hoc logit adjustment",
    "simclr": "SimCLR",
    "sup_con": "SupCon",
    "tau_normalized": "tau-normalised",
}


def run_result(release: Release, place: str) -> RunResult:
    """Return a release's entry in a table of results.

    Args:
        release: of a training of this project.
        place: how its folder is called.

    Raises:
        ReleaseError: for one whose training is not recorded, e.g. a converted one, or whose recipe is not the
            recorded one.
    """
    training, config = release.metrics["training"], release.config["zoo"]
    plain = release.recipe
    absent = [key for key in _NEEDED if training.get(key) is None]
    if "converted" in plain or absent:
        what = "it was converted, not trained here" if "converted" in plain else f"it has no {absent[0]}"
        raise ReleaseError(f"{release.path}: {what}; a table of results needs the record of a training")
    if format.sha256(release.path / format.RECIPE) != config["recipe_sha256"]:
        raise ReleaseError(f"{release.path}: {format.RECIPE} is not the one that config.json records")
    plain = _whole(plain)
    data = config["dataset"]
    tail = data.get("long_tail") or {}
    own = [
        each
        for each in release.metrics["evaluations"]
        if each["data"] == data_words(data) and each["split"] == "test"
    ]
    counts = data.get("class_counts") or {}
    if data.get("num_classes") == 0:  # images without classes
        counts = {"largest": 0, "smallest": 0}
    entry = {
        "name": release.name,
        "seed": training["seed"],
        "method": _method(release.name, plain),
        "architecture": release.config["architecture"],
        "changed": _changed(release.name, plain),
        "group": group_of(plain, training, format.snapshot_of(training)),
        "data": data_words(data),
        "train_sha256": data.get("sha256"),
        "train_images": data.get("num_images"),
        "classes": data.get("num_classes"),
        "largest": counts.get("largest"),
        "smallest": counts.get("smallest"),
        "profile": tail.get("profile"),
        "imbalance": tail.get("imbalance"),
        "epochs": training["epochs"],
        "counted": _counted(training),
        "evaluations": [_evaluated(each) for each in own],
        "seconds": training["seconds"],
        "images_per_second": training["images_per_second"],
        "hardware": training["hardware"],
        "precision": training["precision"],
        "versions": training["versions"],
        "date": training["date"],
        "noted": [*_began(plain), *_noted(training), *_seen(own)],
        "recipe_sha256": config["recipe_sha256"],
        "weights_sha256": config["weights_sha256"],
        "place": place,
    }
    return parse(RunResult, entry, str(release.path), ReleaseError)


def _whole(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe with every key: one of an earlier version lacks those that came since.

    CIFAR's parquet files are CIFAR, as recipes say now: which images of it is for the hash of the images.
    """
    try:
        recipe = parse(Recipe, dict(plain), "recipe")
    except RecipeError:  # of another version
        return dict(plain)
    whole = recipe.model_dump(mode="json")
    whole["data"]["source"] = as_archive(recipe.data.source).model_dump(mode="json")
    return whole


def _method(name: str, recipe: Mapping[str, Any]) -> str:
    """Name what was trained, as papers do."""
    objective, method = recipe["objective"], recipe.get("method")
    kind = str(objective["name"])
    if kind == "classify":  # named by its loss, or by what decides the loss
        loss = objective["loss"]
        kind = str(method["name"]) if method else str(loss if isinstance(loss, str) else loss["name"])
    title = _TITLES.get(kind, kind.replace("_", " "))
    # tables have this baseline twice: with crops and flips, and in the setting of what it is compared with
    if kind == "cross_entropy" and any(op.get("op") == "auto_augment" for op in recipe["views"]["train"][0]):
        title += " + AutoAugment"
    if kind == "moco":
        version = re.search(r"\.moco_(v\d)(?:_|$)", name)
        loss = str((objective.get("loss") or {}).get("name", "info_nce"))
        title += f" {version[1]}" if version else ""
        title += "" if loss == "info_nce" else f", {loss.replace('_', ' ')} loss"
    title += " + teachers" if objective.get("distill") else ""
    return title + (" + FT" if objective.get("feature_transform") else "")


def _changed(name: str, recipe: Mapping[str, Any]) -> dict[str, list[Any]] | None:
    """Return in what a run differs from the shipped recipe of its name, but for how it is computed."""
    if name not in catalog.list_recipes():
        return None
    found = differences(_shipped(name), dict(recipe))
    return {key: [before, now] for key, before, now in found if key not in _SAME}


@cache
def _shipped(name: str) -> dict[str, Any]:
    return _whole(Recipe.load(name).model_dump(mode="json"))


def group_of(
    recipe: Mapping[str, Any], weights: Mapping[str, Any] | None = None, snapshot: str | None = None
) -> str:
    """Hash all in a recipe that decides what is computed, but for the seed.

    Args:
        recipe: plain.
        weights: SHA-256 of those that it starts from and learns from, where that is recorded; see
            `origin_facts`.
        snapshot: how far the training was that has not ended.
    """
    recipe = _whole(recipe)
    decides = decisive(recipe, _SAME)
    # what the weights are, and not where they lay
    for key, recorded in ((START, "init_weights_sha256"), (TEACHERS, "teacher_sha256")):
        if weights is not None and weights.get(recorded) is not None:
            decides[key] = weights[recorded]
    if snapshot is not None:
        decides["snapshot"] = snapshot
    text = json.dumps(decides, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _counted(training: Mapping[str, Any]) -> str:
    stopping, reached = training.get("early_stopping"), format.snapshot_of(training)
    if reached is not None:
        return f"a snapshot after {reached}"
    if not isinstance(stopping, Mapping):
        return "last epoch"
    metric = str(stopping.get("metric")).replace("_", " ")
    return (
        f"early stopping chose the epoch by the {metric} of {stopping.get('validation_images')} images put "
        "aside from the training set"
    )


def _evaluated(entry: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {
        name: value
        for name, value in entry["metrics"].items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    return {
        "protocol": entry["protocol"],
        "settings": entry.get("settings") or {},
        "test_sha256": (entry.get("test_set") or {}).get("sha256"),
        "metrics": numbers,
    }


def _seen(evaluations: Iterable[Mapping[str, Any]]) -> dict[str, None]:
    """Return, once each, what the test images of evaluations have too much or too little of."""
    return dict.fromkeys(
        f"{entry['protocol']}: {split_words(entry)}"
        for entry in evaluations
        if split_words(entry) != entry["split"]
    )


def _began(recipe: Mapping[str, Any]) -> list[str]:
    """Return what a training began with beside its images: a row has the epochs and time of itself alone."""
    began = format.began_with(recipe)
    return [f"its training {began}, whose epochs and time are not counted here"] if began else []


def _noted(training: Mapping[str, Any]) -> list[str]:
    """Return what was out of the ordinary in a training."""
    found = []
    if training.get("changed_on_resume"):
        found.append(f"changed while it ran: {training['changed_on_resume']}")
    if training.get("unreadable_images"):
        found.append(f"{training['unreadable_images']} unreadable images")
    return found
