"""What may change in a recipe while a run goes on: how it is computed, never what.

One allowed key is not quite so: with another `training.accumulate`, BatchNorm and losses that contrast within
the batch see larger or smaller parts of it. It is what a run that is out of memory can be continued with; the
change is recorded in the release as every other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from zoo.config import leaves
from zoo.errors import TrainingError
from zoo.recipe import Recipe
from zoo.recipe.overrides import COMPUTATION


def decisive(recipe: Mapping[str, Any], without: Collection[str]) -> dict[str, Any]:
    """Return by key what of a plain recipe tells a training from others, to be hashed.

    Args:
        recipe: with every key.
        without: keys, or sections, that make no difference.
    """
    sections = tuple(f"{key}." for key in without)
    return {key: value for key, value in leaves(recipe) if not f"{key}.".startswith(sections)}


class Change(NamedTuple):
    """A key of the recipe that has another value from some step on."""

    key: str
    before: Any
    now: Any


def allowed_changes(earlier: Recipe, now: Recipe, folder: str) -> list[Change]:
    """Return in what two recipes of one run differ.

    Raises:
        TrainingError: naming each difference with which it would be another training.
    """
    changes = differences(earlier.model_dump(mode="json"), now.model_dump(mode="json"))
    others = [change for change in changes if change.key not in COMPUTATION]
    if len(others) == 1 and others[0].key == "name":
        (name,) = others
        raise TrainingError(
            f'"{folder}" holds a run of "{name.before}", which differs from "{name.now}" in its name alone; '
            f"continue it with --set name={name.before}"
        )
    if others:
        raise TrainingError(
            f'"{folder}" holds a run of another recipe, which cannot be continued with this one: '
            + "; ".join(f"{key} was {before!r}, is {now!r}" for key, before, now in others)
            + ". With --resume only how it is computed may change (e.g. training.accumulate or precision); "
            "begin other trainings in another --out"
        )
    return changes


def is_same(earlier: dict[str, Any], now: Recipe) -> bool:
    """Whether a plain recipe and `now` are one but for the description, which is no part of what a run is."""
    return all(change.key == "description" for change in differences(earlier, now.model_dump(mode="json")))


def differences(earlier: Any, now: Any, path: str = "") -> list[Change]:
    """List the keys in which two plain recipes differ."""
    if isinstance(earlier, dict) and isinstance(now, dict):
        keys = [*earlier, *(k for k in now if k not in earlier)]
        return [
            change
            for k in keys
            for change in differences(earlier.get(k), now.get(k), f"{path}.{k}" if path else k)
        ]
    views = path.startswith("views.") and isinstance(earlier, list) and isinstance(now, list)
    if views and len(earlier) == len(now):  # one value of one operation is not told as two lists of views
        return [
            change
            for number, pair in enumerate(zip(earlier, now, strict=True))
            for change in differences(*pair, f"{path}.{number}")
        ]
    return [] if earlier == now else [Change(path, earlier, now)]
