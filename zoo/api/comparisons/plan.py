"""What a comparison compares: methods, seeds, the recipe that all share, and what is finished already."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from zoo import release as releases
from zoo.api.facts import origin_facts
from zoo.api.finetuning import plan_finetuning
from zoo.api.pretraining import as_recipe
from zoo.data.any_data import Data
from zoo.data.memory import Root
from zoo.errors import RecipeError, TrainingError, ZooError, did_you_mean
from zoo.release import Release
from zoo.release.format import holds_release
from zoo.training import Recipe
from zoo.training.changes import differences, is_same
from zoo.training.overrides import Overrides, as_overrides

METHODS: dict[str, dict[str, Any]] = {
    "cross_entropy": {"name": "cross_entropy"},
    "balanced_softmax": {"name": "balanced_softmax"},
    "logit_adjustment": {"name": "logit_adjustment"},
    "post_hoc_logit_adjustment": {"name": "post_hoc_logit_adjustment"},
    "class_balanced_sampling": {"name": "class_balanced_sampling"},
    "crt": {"name": "crt"},
    "tau_normalized": {"name": "tau_normalized"},
    "lws": {"name": "lws"},
    "ldam_drw": {"name": "ldam_drw"},
    "from_centers": {"name": "from_centers", "prior": False},
    "from_centers_prior": {"name": "from_centers", "prior": True},
    "nearest_center": {"name": "nearest_center", "centers": "learned", "similarity": "logit"},
    "nearest_mean": {"name": "nearest_center", "centers": "means", "similarity": "cosine"},
}
"""Values of the recipe's key `method` that a comparison has by default, by the names of its rows."""

_PLAIN = {
    "objective.loss": "cross_entropy",
    "objective.head": "linear",
    "training.sampling": "instance",
    "method": "null",
}
_DECIDED = {  # keys that no override may set: the comparison would set them again
    "method": "a comparison chooses the method; give --methods",
    "evaluation": "a comparison measures the protocol classifier",
    "training.seed": "a comparison has several; give --seeds",
    "init.head": "a comparison's methods choose the head",
}

_ADVICE = "Give what it began with, or choose another --out"


def checked_seeds(seeds: Sequence[int]) -> list[int]:
    """Return the seeds if each is one, and none is given twice."""
    found = list(seeds) if isinstance(seeds, Iterable) else [seeds]
    if (
        not found
        or not isinstance(seeds, Iterable)
        or any(type(seed) is not int or not 0 <= seed < 1 << 63 for seed in found)
        or len({*found}) < len(found)
    ):
        raise ZooError(f"seeds: found {seeds!r}, expected different whole numbers from 0 on, e.g. 0, 1, 2")
    return found


def base_recipe(
    recipe: Recipe | str | Path | None,
    init: str | Path | Release,
    data: Data,
    overrides: Overrides,
) -> tuple[Recipe, Root]:
    """Return what all methods have in common, and the place of the data."""
    where = "overrides:" if isinstance(overrides, Mapping) else "--set"
    overrides = as_overrides(overrides)
    if recipe is not None:
        recipe = as_recipe(recipe, ())
        if recipe.objective.name != "classify":
            raise ZooError(
                f'a comparison needs a recipe of objective "classify", found "{recipe.objective.name}" in '
                f"{recipe.name}"
            )
    for override in overrides:
        key = override.partition("=")[0].strip()
        decided = next((each for each in _DECIDED if f"{key}.".startswith(f"{each}.")), None)
        if decided:
            raise ZooError(f'{where} "{override}": {_DECIDED[decided]}')
    common = [*(f"{key}={value}" for key, value in _PLAIN.items()), *overrides]
    planned = plan_finetuning(recipe, init=init, head="fresh", data=data, overrides=common)
    return planned.recipe, planned.data


def chosen_methods(methods: Iterable[str | Mapping[str, Any]] | None) -> dict[str, dict[str, Any]]:
    """Return the methods by the names of their rows."""
    if methods is None:
        return METHODS
    if isinstance(methods, (str, Mapping)) or not isinstance(methods, Iterable):
        raise ZooError(f"methods: found {methods!r}, expected a list")
    chosen: dict[str, dict[str, Any]] = {}
    for method in methods:
        if isinstance(method, str):
            if method not in METHODS:
                raise ZooError(
                    f'methods: unknown method "{method}".{did_you_mean(method, METHODS)} '
                    f"Methods: {', '.join(METHODS)}"
                )
            name, value = method, METHODS[method]
        elif not isinstance(method, Mapping):
            raise ZooError(f"methods: found {method!r}, expected a name, or a value of the key method")
        else:
            value = dict(method)
            settings = [f"{key}_{value[key]}" for key in value if key != "name"]
            name = "-".join([str(value.get("name", "")), *settings])
        if name in chosen:
            raise ZooError(f'methods: "{name}" is given twice')
        chosen[name] = value
    if not chosen:
        raise ZooError(f"methods: found none, expected some of {', '.join(METHODS)}")
    return chosen


def with_methods(
    base: Recipe, methods: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, Recipe], dict[str, str]]:
    """Return the recipe of each method, and why the others do not fit the recipe that they share."""
    made, refused = dict[str, Recipe](), dict[str, str]()
    for name, method in methods.items():
        changes = [f"method={json.dumps(method)}", "evaluation=[{protocol: classifier}]"]
        try:
            made[name] = as_recipe(base, changes)
        except RecipeError as error:
            refused[name] = str(error).removeprefix(f"{base.name}: ")
    return made, refused


class Images(NamedTuple):
    """SHA-256 of the training and of the test images, as `ImageDataset.describe` has it.

    Attributes:
        train: of the training images.
        test: None where there are none, and nothing is measured on any.
    """

    train: str
    test: str | None


def require_same(folder: Path, recipe: Recipe, images: Images) -> None:
    """Make sure that the release in `folder`, if there is one, is of this recipe, start and data.

    Raises:
        TrainingError: naming what is different.
    """
    if not holds_release(folder):
        return
    made = releases.open(folder)
    if not is_same(dict(made.recipe), recipe):
        earlier = Recipe.load(folder / "recipe.yaml")
        changes = differences(earlier.model_dump(mode="json"), recipe.model_dump(mode="json"))
        found = "; ".join(f"{key} was {before!r}, is {now!r}" for key, before, now in changes)
        raise TrainingError(f'"{folder}" is finished, by another recipe: {found}. {_ADVICE}')
    measured, training = made.metrics["evaluations"], made.metrics["training"]
    weights = origin_facts(recipe)
    facts = {
        "training images": (made.config["zoo"]["dataset"]["sha256"], images.train),
        "test images": (measured[0]["test_set"]["sha256"] if measured else images.test, images.test),
        "weights to start from": (
            training.get("init_weights_sha256"),
            weights.get("init_weights_sha256"),
        ),
        "teachers": (
            training.get("teacher_sha256"),
            weights.get("teacher_sha256"),
        ),
    }
    for what, (before, now) in facts.items():
        if before != now:
            raise TrainingError(
                f'"{folder}" is finished, with other {what}: their sha256 was {_short(before)}, is '
                f"{_short(now)} {_ADVICE}"
            )


def _short(sha256: str | list[str] | None) -> str:
    """Return the beginning of a hash, or of each of several."""
    return ", ".join(f"{str(each)[:12]}..." for each in (sha256 if isinstance(sha256, list) else [sha256]))
