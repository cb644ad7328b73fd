"""Names of recipes: of one that is made for data, and of one that overrides let train something else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from zoo.data import DataConfig
from zoo.data.config import selection_words
from zoo.data.memory import Root
from zoo.data.sources import as_archive, data_name
from zoo.recipe.overrides import value_of
from zoo.recipe.recipe import Recipe
from zoo.release.schema import MAX_NAME

_CHANGED = "_changed"
_DECISIVE = {"hub": ("repo", "config", "label"), "parquet": ("label",), "memory": ("name",)}
"""What of a source's settings tells data apart; files may move, and a folder is named by `--data`."""


def words_and_name(config: DataConfig, root: Root, beginning: str) -> tuple[str, str]:
    """Name the training data in a sentence, and as the end of a recipe's name with that `beginning`."""
    plain = config.model_dump(mode="json")
    name = data_name(config.source, root)
    words = [name, *selection_words(plain["long_tail"], plain["subset"])]
    tags = [name, f"lt{config.long_tail.imbalance:g}" if config.long_tail else ""]
    if few := config.subset:
        tags.append(f"{few.per_class}shot" if few.per_class else f"{100 * (few.fraction or 0):g}pct")
    tag = re.sub(r"[^A-Za-z0-9]+", "_", "_".join(filter(None, tags))).strip("_") or "data"
    return ", ".join(words), f"{beginning}{tag}"[:MAX_NAME]


def renamed(recipe: Recipe, before: Recipe, overrides: Sequence[str]) -> Recipe:
    """Return a recipe as `NAME_changed` where overrides change what its name tells, and set no name.

    That is the data, the objective, its loss and feature transformation, the method and the teachers.

    Args:
        recipe: with the overrides.
        before: without them.
        overrides: `a.b=c`.
    """
    if value_of(overrides, "name") is not None or _told(recipe) == _told(before):
        return recipe
    end = _CHANGED if "." in recipe.name else f".{_CHANGED[1:]}"
    return recipe.model_copy(update={"name": recipe.name.removesuffix(end)[: MAX_NAME - len(end)] + end})


def _told(recipe: Recipe) -> list[Any]:
    """Return what the name of a recipe tells."""
    data, objective = recipe.data, recipe.objective
    source = as_archive(data.source)
    loss, distill = getattr(objective, "loss", None), getattr(objective, "distill", None)
    return [
        source.kind,
        *(getattr(source, key) for key in _DECISIVE.get(source.kind, ())),
        data.long_tail,
        data.subset,
        data.partial_labels,
        objective.name,
        getattr(loss, "name", loss),
        getattr(objective, "feature_transform", None) is not None,
        recipe.method and recipe.method.name,
        distill and distill.teachers,
    ]
