"""Short names for several trainings: by what their recipes differ in."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from zoo.config import leaves
from zoo.training.changes import ALLOWED

SEED = "training.seed"
_LONGEST = 24  # characters of a value in a label; a longer one is shortened or numbered
_NAME = re.compile(r"[\w./@-]+")
_BETWEEN_WORDS = re.compile(r"([._/@-])")
_MOST = 3  # differing keys in a label; with more it is the name and the folder's
_ABSENT = "absent"  # a key that a recipe of an older version, or of another objective, does not have

Recipe = Mapping[str, Any]


class Difference(NamedTuple):
    """A key in which recipes differ.

    Attributes:
        key: e.g. `objective.tau`.
        values: of each recipe; `"absent"` where it has no such key.
    """

    key: str
    values: tuple[Any, ...]

    def texts(self) -> list[str]:
        """Return each value as text, as YAML has it; where there is nothing but one section, on or off."""
        sections = [value for value in self.values if isinstance(value, Mapping)]
        if sections and all(each == sections[0] for each in sections) and None in self.values:
            return [{True: "on", False: "off"}[value is not None] for value in self.values]
        return [_text(value) for value in self.values]


def differences(recipes: Sequence[Recipe]) -> list[Difference]:
    """Return in what recipes differ, but for how they are computed (`zoo.training.changes.ALLOWED`)."""
    return [each for each in _differences(recipes, "") if each.key not in ALLOWED]


def _differences(values: Sequence[Any], path: str) -> list[Difference]:
    if all(value == values[0] for value in values):
        return []
    if not all(isinstance(value, Mapping) for value in values):
        return [Difference(path, tuple(values))]
    keys = dict.fromkeys(key for value in values for key in value)
    found: list[Difference] = []
    for key in keys:
        below = f"{path}.{key}" if path else str(key)
        found += _differences([value.get(key, _ABSENT) for value in values], below)
    return found


def labels(names: Sequence[str], recipes: Sequence[Recipe], folders: Sequence[Path]) -> list[str]:
    """Return a short label for each of several trainings, no two alike.

    That of its group, and the seed where there are several; of seeds of one recipe the seed alone. Equal
    trainings are told apart by their folders.
    """
    of_groups = groups(names, recipes, folders)
    seeds = [seed_of(recipe) for recipe in recipes]
    alone = len(set(of_groups)) == 1 and len(set(seeds)) == len(seeds)
    found = []
    for group, name, seed in zip(of_groups, names, seeds, strict=True):
        several = len({other for each, other in zip(names, seeds, strict=True) if each == name}) > 1
        said = several and seed is not None
        found.append(", ".join([*([] if said and alone else [group]), *([f"seed {seed}"] if said else [])]))
    return _told_apart(found, folders)


def groups(names: Sequence[str], recipes: Sequence[Recipe], folders: Sequence[Path]) -> list[str]:
    """Return for each training the label of its group: those whose recipes differ in the seed alone.

    Groups of different weights' names are called by these; groups of one name by the values in which their
    recipes differ, such as `tau 0.2`, or by their folder where that would be long.
    """
    merged: dict[str, int] = {}
    plain = [json.dumps(_seedless(recipe), sort_keys=True, default=str) for recipe in recipes]
    keys = [f"{name} {text}" for name, text in zip(names, plain, strict=True)]
    first = [merged.setdefault(key, i) for i, key in enumerate(keys)]
    chosen = sorted(set(first))
    around = [_around([folder for folder, i in zip(folders, first, strict=True) if i == j]) for j in chosen]
    found = _of_groups([names[i] for i in chosen], [recipes[i] for i in chosen], around)
    return [found[chosen.index(i)] for i in first]


def seed_of(recipe: Recipe) -> int | None:
    """Return the seed of a training; None where the recipe, of a converted release say, has none."""
    training = recipe.get("training")
    seed = training.get("seed") if isinstance(training, Mapping) else None
    return seed if isinstance(seed, int) else None


def _around(folders: Sequence[Path]) -> Path:
    """Return the folder that all lie in; of a single one itself."""
    return Path(os.path.commonpath([folder.absolute() for folder in folders]))


def _seedless(recipe: Recipe) -> dict[str, Any]:
    """Return the leaves of a recipe that decide what is computed, without the seed."""
    return {key: value for key, value in leaves(recipe) if key != SEED and key not in ALLOWED}


def _of_groups(names: Sequence[str], recipes: Sequence[Recipe], folders: Sequence[Path]) -> list[str]:
    found = [""] * len(names)
    short = dict(zip(names, _short_names(names), strict=True))
    for name, tag in short.items():
        members = [i for i, each in enumerate(names) if each == name]
        words = _words([recipes[i] for i in members]) if len(members) > 1 else [""]
        if not any(words) and len(words) > 1:  # too many to be said
            words = _tails([folders[i] for i in members])
        for i, text in zip(members, words, strict=True):
            named = len(short) > 1 or not text
            found[i] = ", ".join(filter(None, [tag if named else "", text]))
    return _told_apart(found, folders)


def _told_apart(texts: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """Add to equal texts in what their folders differ, or a number."""
    found = list(texts)
    for text in set(texts):
        members = [i for i, each in enumerate(texts) if each == text]
        if len(members) > 1:
            for i, tail in zip(members, _tails([folders[i] for i in members]), strict=True):
                found[i] = f"{text}, {tail}" if tail else text
    counts, seen = Counter(found), Counter[str]()
    for i, text in enumerate(found):
        seen[text] += 1
        if counts[text] > 1:
            found[i] = f"{text} ({seen[text]})"
    return found


def _words(recipes: Sequence[Recipe]) -> list[str]:
    """Return the differing values of each recipe, or '' for all where there are too many."""
    different = [each for each in differences(recipes) if each.key not in ("name", SEED)]
    if len(different) > _MOST:
        return [""] * len(recipes)
    last = Counter(each.key.rpartition(".")[2] for each in different)
    parts: list[list[str]] = []
    for each in different:
        leaf = each.key.rpartition(".")[2]
        words = leaf.replace("_", " ") if last[leaf] < 2 else each.key
        if each.key == "init.release":
            words = "from"  # "release X" would be the training's own
        parts.append([f"{words} {text}" for text in _brief(each.texts())])
    return [", ".join(texts) for texts in zip(*parts, strict=True)] if parts else [""] * len(recipes)


def _brief(texts: Sequence[str]) -> list[str]:
    """Say of values too long for a label in what words they differ, or number them, equal ones alike."""
    if max(map(len, texts)) <= _LONGEST:
        return list(texts)
    short = _differing(texts) if all(map(_NAME.fullmatch, texts)) else [""]
    if all(short) and max(map(len, short)) <= _LONGEST:
        return short
    order = list(dict.fromkeys(texts))
    return [f"#{order.index(text) + 1}" for text in texts]


def _differing(texts: Sequence[str]) -> list[str]:
    """Return the middle of each name, without the words that all begin or end with."""
    words = [_BETWEEN_WORDS.split(text) for text in texts]
    start, end = _shared(words)
    return ["".join(each[start : len(each) - end]).strip("._/@-") for each in words]


def _short_names(names: Sequence[str]) -> list[str]:
    """Leave out the architecture where all have the same."""
    different = set(names)
    archs = {name.partition(".")[0] for name in different}
    tags = {name.partition(".")[2] for name in different}
    if len(different) > 1 and len(archs) == 1 and "" not in tags:
        return [name.partition(".")[2] for name in names]
    return list(names)


def _tails(folders: Sequence[Path]) -> list[str]:
    """Return the part of each folder's path in which it differs from the others."""
    parts = [folder.absolute().parts for folder in folders]
    start, end = _shared(parts)
    return ["/".join(each[start : len(each) - end]) for each in parts]


def _shared(rows: Sequence[Sequence[str]]) -> tuple[int, int]:
    """Return with how many of the same words all rows begin, and end; one at least is left of each."""
    start = 0
    while all(len(row) > start + 1 for row in rows) and len({row[start] for row in rows}) == 1:
        start += 1
    end = 0
    while all(len(row) - end > start + 1 for row in rows) and len({row[-1 - end] for row in rows}) == 1:
        end += 1
    return start, end


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, default=str)
