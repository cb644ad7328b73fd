"""A training's recipe with every value, made or given, and the place of its images."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from zoo.data.any_data import Data, as_data, resolve
from zoo.data.dataset import Root
from zoo.data.sources import as_archive
from zoo.errors import DataError, RecipeError
from zoo.recipe import templates
from zoo.recipe.overrides import Overrides, as_overrides, override_of, value_of
from zoo.recipe.recipe import Recipe
from zoo.release.schema import MAX_NAME


def plan_pretraining(
    recipe: Recipe | str | Path | None = None,
    *,
    data: Data = None,
    overrides: Overrides = (),
    init: templates.Start = None,
    arch: str | None = None,
    objective: str | None = None,
) -> tuple[Recipe, Root]:
    """Return the recipe of a training and the place of its data; the arguments are those of `pretrain`.

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
                f'{key}: found "{value}" beside a recipe, expected --set, e.g. init.release=NAME'
            )
    made = Recipe.load(recipe, overrides)
    given = resolve(data, made.data)
    if not given.is_own:
        plain = given.config.model_dump(mode="json")
        keys = ("source", "holdout", "long_tail", "subset")
        overrides = [*(override_of(f"data.{key}", plain.get(key)) for key in keys), *overrides]
        made = Recipe.load(recipe, overrides)
    if overrides and value_of(overrides, "name") is None:
        with suppress(RecipeError):  # complete only with its overrides: there is nothing to compare with
            if _named_parts(Recipe.load(recipe)) != _named_parts(made):
                end = "_changed" if "." in made.name else ".changed"
                name = made.name.removesuffix(end)[: MAX_NAME - len(end)] + end
                made = made.model_copy(update={"name": name})
    return made, given.root


def _named_parts(recipe: Recipe) -> list[Any]:
    """Return what the name of a recipe tells: data, though not where they are, objective and method."""
    data, source, objective = recipe.data, as_archive(recipe.data.source), recipe.objective
    place = [getattr(source, key, None) for key in ("kind", "repo", "config", "label", "name")]
    loss, method = getattr(objective, "loss", None), recipe.method and recipe.method.name
    transformed = getattr(objective, "feature_transform", None) is not None
    learned = [objective.name, getattr(loss, "name", loss), getattr(objective, "distill", None), transformed]
    return [*place, data.long_tail, data.subset, data.partial_labels, *learned, method]
