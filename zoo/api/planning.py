"""What a training will be: a recipe with every value, made or given, and the place of its images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zoo import hub
from zoo.data.any_data import Data, as_data, resolve
from zoo.data.memory import Root
from zoo.data.sources import as_archive
from zoo.errors import DataError, RecipeError
from zoo.evaluation.evaluate import own_data
from zoo.recipe import Recipe, templates
from zoo.recipe.overrides import Overrides, as_overrides, override_of, value_of
from zoo.release import Release
from zoo.release.schema import MAX_NAME


def plan_pretraining(
    recipe: Recipe | str | Path | None = None,
    *,
    data: Data = None,
    overrides: Overrides = (),
    init: str | Path | Release | None = None,
    arch: str | None = None,
    objective: str | None = None,
) -> tuple[Recipe, Root]:
    """Return the recipe of a training and the place of its data; the arguments are those of `pretrain`.

    Without a recipe it is that of `zoo.recipe.templates.pretraining`. Of other data than a recipe's own
    source, long tail and subset are taken. Where overrides or data change what a recipe's name tells and set
    no name, it is called NAME_changed.

    Raises:
        ZooError: for a recipe, start or data that are missing, cannot be found or do not fit.
    """
    overrides = as_overrides(overrides)
    if recipe is None:
        if data is None:
            raise DataError("pretrain: found no recipe and no data, expected one of them, e.g. --data DIR")
        config, root, _ = as_data(data)
        made = templates.pretraining(config, root, overrides, init=init, arch=arch, objective=objective)
        return made, root
    for key, value in {"init": init, "arch": arch, "objective": objective}.items():
        if value is not None:
            raise RecipeError(
                f'{key}: found "{value}" beside a recipe, which has its own; expected --set, e.g. '
                "init.release=NAME"
            )
    made = Recipe.load(recipe, overrides)
    given = resolve(data, made.data)
    if not given.is_own:
        plain = given.config.model_dump(mode="json")
        keys = ("source", "holdout", "long_tail", "subset")
        overrides = [*(override_of(f"data.{key}", plain.get(key)) for key in keys), *overrides]
        made = Recipe.load(recipe, overrides)
    return _renamed(made, recipe, overrides), given.root


def plan_finetuning(
    recipe: Recipe | str | Path | None = None,
    *,
    init: str | Path | Release,
    head: str | None = None,
    data: Data = None,
    overrides: Overrides = (),
) -> tuple[Recipe, Root]:
    """Return the recipe of a fine-tuning and the place of its data; the arguments are those of `finetune`.

    Without a recipe it is that of `zoo.recipe.templates.finetuning`; without data, on the release's own.

    Raises:
        ZooError: for a recipe, release or data that cannot be found or do not fit.
    """
    overrides = as_overrides(overrides)
    start = [override_of("init.release", hub.resolve(init).spelling)]
    start += [] if head is None else [override_of("init.head", head)]
    if recipe is not None:
        return plan_pretraining(recipe, data=data, overrides=[*overrides, *start])
    config, root, _ = own_data(hub.open(init), data)
    return templates.finetuning(init, config, root, [*overrides, *start]), root


def _renamed(made: Recipe, recipe: Recipe | str | Path, overrides: Sequence[str]) -> Recipe:
    """Return a recipe as `NAME_changed` where overrides change what its name tells, and set no name."""
    if not overrides or value_of(overrides, "name") is not None:
        return made
    try:
        before = Recipe.load(recipe)
    except RecipeError:  # whole only with its overrides: there is nothing to compare with
        return made
    if _told(made) == _told(before):
        return made
    end = "_changed" if "." in made.name else ".changed"
    return made.model_copy(update={"name": made.name.removesuffix(end)[: MAX_NAME - len(end)] + end})


def _told(recipe: Recipe) -> list[Any]:
    """Return what the name of a recipe tells: which data, which objective and loss, which method."""
    data, objective = recipe.data, recipe.objective
    source, loss = as_archive(data.source), getattr(objective, "loss", None)
    return [
        source.kind,  # files may move, and a folder is named by `--data`
        *(getattr(source, key, None) for key in ("repo", "config", "label", "name")),
        data.long_tail,
        data.subset,
        data.partial_labels,
        objective.name,
        getattr(loss, "name", loss),
        getattr(objective, "feature_transform", None) is None,
        getattr(objective, "distill", None),
        recipe.method and recipe.method.name,
    ]
