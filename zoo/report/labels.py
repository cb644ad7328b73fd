"""Short names for several trainings, by what their recipes differ in."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from zoo.recipe.overrides import COMPUTATION

_SEED = "training.seed"
_LONGEST, _MOST = 24, 3  # characters of a value, and keys, in a label
_ABSENT = "absent"  # a key that a recipe of an older version, or of another objective, does not have

Recipe = Mapping[str, Any]


class Label(NamedTuple):
    """How a training is called, and the group of those that differ from it in the seed alone."""

    name: str
    group: str


def short_labels(names: Sequence[str], recipes: Sequence[Recipe]) -> list[Label]:
    """Return a short label for each training, no two alike.

    Trainings of different names are called by these, without an architecture that all have; those of one name
    by the values in which their recipes differ, such as `tau 0.2` or `transform on`.

    Args:
        names: of the weights.
        recipes: plain; empty for a converted release.
    """
    same_arch = len({name.partition(".")[0] for name in names}) == 1 < len({*names})
    groups = []
    for name, recipe in zip(names, recipes, strict=True):
        alike = [other for each, other in zip(names, recipes, strict=True) if each == name]
        words = _words(alike)[alike.index(recipe)]
        shown = name.partition(".")[2] or name if same_arch else name
        called = [shown] if len({*names}) > 1 or not words else []
        groups.append(", ".join([*called, *words]))
    pairs = {*zip(groups, map(seed_of, recipes), strict=True)}
    several = Counter(group for group, _ in pairs)
    found = []
    for group, recipe in zip(groups, recipes, strict=True):
        seed = seed_of(recipe)
        found.append(f"{group}, seed {seed}" if several[group] > 1 and seed is not None else group)
    times, seen = Counter(found), Counter[str]()
    for place, name in enumerate(found):
        seen[name] += 1
        found[place] = f"{name} ({seen[name]})" if times[name] > 1 else name
    return [Label(name, group) for name, group in zip(found, groups, strict=True)]


def seed_of(recipe: Recipe) -> int | None:
    """Return the seed of a training; None where the recipe, of a converted release say, has none."""
    training = recipe.get("training")
    seed = training.get("seed") if isinstance(training, Mapping) else None
    return seed if isinstance(seed, int) else None


def differences(recipes: Sequence[Recipe]) -> dict[str, list[str]]:
    """Return the keys in which recipes differ, and the value of each recipe as text.

    A section that some have and others do not is "on" or "off"; how something was computed is left out.
    """
    return {
        key: [_text(value) for value in values]
        for key, values in _different(recipes, "").items()
        if key not in COMPUTATION and key != "description"
    }


def _different(values: Sequence[Any], path: str) -> dict[str, Sequence[Any]]:
    if all(value == values[0] for value in values):
        return {}
    sections = [value for value in values if isinstance(value, Mapping)]
    others = len(sections) < len(values)
    if not sections or (others and all(section == sections[0] for section in sections)):
        return {path: values}
    found: dict[str, Sequence[Any]] = {path: values} if others else {}
    for key in dict.fromkeys(key for section in sections for key in section):
        below = [value.get(key, _ABSENT) if isinstance(value, Mapping) else _ABSENT for value in values]
        found |= _different(below, f"{path}.{key}" if path else str(key))
    return found


def _words(recipes: Sequence[Recipe]) -> list[list[str]]:
    """Return the differing values of each recipe, or its number where these are too many to be said."""
    different = {key: values for key, values in differences(recipes).items() if key not in ("name", _SEED)}
    rows = [[values[i] for values in different.values()] for i in range(len(recipes))]
    if len(different) > _MOST or any(len(value) > _LONGEST for row in rows for value in row):
        unlike = [list(row) for row in dict.fromkeys(map(tuple, rows))]
        return [[f"#{unlike.index(row) + 1}"] for row in rows]
    last = Counter(key.rpartition(".")[2] for key in different)
    called = [
        leaf.replace("_", " ") if last[leaf := key.rpartition(".")[2]] == 1 else key for key in different
    ]
    return [[f"{key} {value}" for key, value in zip(called, row, strict=True)] for row in rows]


def _text(value: Any) -> str:
    if value is None:
        return "off"
    if isinstance(value, Mapping):
        return "on"
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, default=str)
