"""What a sweep lays out: axes, values, the recipe and folder of every run, and what may lie there already."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.errors import RecipeError, TrainingError, ZooError, did_you_mean
from zoo.files import is_unused
from zoo.recipe import Recipe
from zoo.recipe.overrides import override_of
from zoo.release import Release
from zoo.release.format import holds_release

RECIPE = "recipe"
"""The axis of a sweep over several recipes."""

_DECIDED = {"training.seed": "a sweep has several; give --seeds", "name": "points are named by their values"}
_LONGEST = 40  # characters of a label
_RESERVED = ("report", "results")


@dataclass(frozen=True, eq=False)
class Run:
    """One training of a sweep.

    Attributes:
        point: name of its point, and of the point's folder.
        labels: its value on each axis, by key.
        seed: of the training.
        recipe: with all changes.
        folder: where its release goes.
    """

    point: str
    labels: dict[str, str]
    seed: int
    recipe: Recipe
    folder: Path

    @property
    def id(self) -> str:
        """Its name in the sweep."""
        return f"{self.point}/seed_{self.seed}"


def lay_out(
    recipes: Sequence[Recipe | str | Path], vary: Mapping[str, Any], seeds: Sequence[int], out: Path
) -> list[Run]:
    """Return the runs, one point after another, and check each one's recipe.

    Args:
        recipes: one, or several to compare.
        vary: by key of the recipe a list of values, or values by their labels; one value is an override.
        seeds: of every point.
        out: folder of the sweep.

    Raises:
        ZooError: naming the key, value or recipe that is wrong.
    """
    values = {key: _labelled(key, given) for key, given in vary.items()}
    bases = _bases(recipes)
    axes: dict[str, Iterable[str]] = {key: own for key, own in values.items() if len(own) > 1}
    axes |= {RECIPE: bases} if len(bases) > 1 else {}
    if not axes and len(seeds) == 1:
        raise ZooError(
            "sweep: nothing varies: found one recipe, one value for each key and one seed, expected several "
            "of something, e.g. --set objective.tau=0.1,0.2; for a single run: zoo pretrain"
        )
    runs, taken = list[Run](), dict[str, int]()
    for labels in itertools.product(*axes.values()):
        chosen = dict(zip(axes, labels, strict=True))
        base = bases[chosen[RECIPE]] if RECIPE in chosen else next(iter(bases.values()))
        changes = [
            override_of(
                key, own[chosen[key]] if key in chosen else next(iter(own.values())), "vary (--set): "
            )
            for key, own in values.items()
        ]
        changes += _name_of(base, changes)
        words = [label if key == RECIPE else f"{title(key, axes)}_{label}" for key, label in chosen.items()]
        point = _safe("-".join(words) or Recipe.load(base).name.partition(".")[2])
        taken[point.lower()] = number = taken.get(point.lower(), 0) + 1
        point += f"_{number}" if number > 1 else ""
        for seed in seeds:
            recipe = Recipe.load(base, [*changes, f"training.seed={seed}"])
            runs.append(Run(point, chosen, seed, recipe, out / point / f"seed_{seed}"))
    return runs


def title(key: str, keys: Iterable[str]) -> str:
    """Return a key's last word, or all of it where that stands for another key, too."""
    last = key.rpartition(".")[2]
    return last if [each.rpartition(".")[2] for each in keys].count(last) == 1 else key


def words(run: Run) -> str:
    """Return a run's values as a person reads them, e.g. `tau 0.1`."""
    texts = [
        label if key == RECIPE else f"{title(key, run.labels)} {label}" for key, label in run.labels.items()
    ]
    return ", ".join(texts) or run.point


def checked_seeds(seeds: Sequence[int]) -> list[int]:
    """Return the seeds if each is one, and none is given twice."""
    found = list(seeds) if isinstance(seeds, Iterable) else [seeds]
    wrong = any(type(seed) is not int or not 0 <= seed < 1 << 63 for seed in found)
    if not found or not isinstance(seeds, Iterable) or wrong or len({*found}) < len(found):
        raise ZooError(f"seeds: found {seeds!r}, expected different whole numbers from 0 on, e.g. 0, 1, 2")
    return found


def require_unused(out: Path, what: str) -> None:
    """Refuse a folder that holds something, where a comparison or sweep is to begin."""
    if not is_unused(out):
        raise TrainingError(
            f'"{out}" is not an empty folder; go on with a {what} by --resume, or choose another --out'
        )


def require_same(folder: Path, images: str, weights: Mapping[str, Any] | None = None) -> None:
    """Refuse a finished run of other training images or initial weights; `pretrain` compares the recipe.

    Args:
        folder: of the run; one that is not finished is left to its training.
        images: SHA-256 of the training images' names and labels.
        weights: SHA-256 by key, as metrics.json records them of the weights that training begins with.
    """
    if not holds_release(folder):
        return
    made = Release.at(folder)
    for what, before, now in (
        ("training images", made.config["zoo"]["dataset"]["sha256"], images),
        *((key, made.metrics["training"].get(key), value) for key, value in (weights or {}).items()),
    ):
        if before != now:
            raise TrainingError(
                f'"{folder}" is finished, with other {what}: sha256 {before}, now {now}. Give what it began '
                "with, or choose another --out"
            )


def _name_of(base: Recipe | str | Path, changes: Sequence[str]) -> list[str]:
    """Return the override of the name, which begins with the architecture, where that is changed."""
    archs = [change.partition("=")[2].strip('"') for change in changes if change.startswith("backbone.arch=")]
    _, dot, tag = Recipe.load(base).name.partition(".")
    # of what is no architecture the recipe's own check tells
    return [f"name={arch}{dot}{tag}" for arch in archs if re.fullmatch(r"\w+", arch)]


def _labelled(key: str, given: Any) -> dict[str, Any]:
    """Return the values of a key by their labels."""
    where = f'vary (--set): "{key}"'
    if key in _DECIDED:
        raise ZooError(f"{where}: {_DECIDED[key]}")
    if isinstance(given, Mapping):
        values = {str(label): value for label, value in given.items()}
    elif isinstance(given, Sequence) and not isinstance(given, str):
        values = {_label(value, number): value for number, value in enumerate(given)}
        if len(values) < len(given):
            raise ZooError(f"{where}: found a value twice in {list(given)}, expected different ones")
    else:
        raise ZooError(f"{where}: found {given!r}, expected a list of values, or values by their labels")
    if not values:
        raise ZooError(f"{where}: found no value, expected one or several")
    return values


def _label(value: Any, number: int) -> str:
    """Return a short text for a value; of a section or list that is too long, what it is called."""
    if isinstance(value, str):
        return value
    text = json.dumps(value, default=str)
    name = value.get("name", "value") if isinstance(value, Mapping) else "value"
    return text if len(text) <= _LONGEST else f"{name}_{number}"


def _bases(recipes: Sequence[Recipe | str | Path]) -> dict[str, Recipe | str | Path]:
    """Return the recipes by their labels: the tags where those tell them apart, else the names."""
    if not recipes:
        raise RecipeError('sweep: found no recipe, expected one or several; "zoo list" shows them')
    names = [Recipe.load(each, ()).name for each in recipes]
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise RecipeError(f'sweep: the recipe "{twice}" is given twice; expected recipes of different names')
    tags = [name.partition(".")[2] for name in names]
    return dict(zip(tags if len({*tags}) == len(tags) and all(tags) else names, recipes, strict=True))


def own_labels(key: str, given: Any, own: Any) -> Any:
    """Return values for a key of which a sweep has labelled values, `own`: labels stand for theirs."""
    listed = given if isinstance(given, list | tuple) else [given]
    words = [each for each in listed if isinstance(each, str)]
    plain = not isinstance(own, Mapping) or any(isinstance(each, str) for each in own.values())
    if plain or isinstance(given, Mapping) or not words:
        return given
    for word in words:
        if word not in own or len(words) < len(listed):
            raise RecipeError(
                f'{key}: found "{word}", expected labels out of {", ".join(own)}, or values alone.'
                f"{did_you_mean(word, own)}"
            )
    return {word: own[word] for word in words}


def _safe(text: str) -> str:
    name = re.sub(r"[^A-Za-z0-9._+-]+", "_", text).strip("._-")[:100] or "point"
    return f"{name}_" if name in _RESERVED else name
