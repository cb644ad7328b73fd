"""What a sweep sweeps: axes and their values, the recipe of every run, and what is watched."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from zoo.api.pretraining import as_recipe
from zoo.api.sweep_file import Order, Watched
from zoo.config import leaves
from zoo.errors import RecipeError, ZooError, did_you_mean
from zoo.evaluation.figures.names import without_common_end
from zoo.training import Recipe
from zoo.training.overrides import override_of

RECIPE = "recipe"
"""The axis of a sweep over several recipes."""

KINDS = (
    "recorded",
    "beginning",
    "deviation",
    "relative_deviation",
    "unsteadiness",
    "features",
    "balance",
    "accuracy",
)
"""What the names of a subject's numbers begin with."""

_DECIDED = {"training.seed": "a sweep has several; give --seeds", "name": "points are named by their values"}
_WHERE = "vary (--set):"
_LONGEST = 40  # characters of a label
_LARGE = 1e6  # from here on a float is written with an exponent
_PICTURES = ("sweep.png", "sweep.svg", "sweep_narrow.bare.svg")
_RESERVED = (
    *("report", "sweep.json", "sweep.md", *_PICTURES, "plan.json"),
    *("results", "results.json", "results.md", "results.png", "results.svg"),
)


class Axis(NamedTuple):
    """What a sweep varies.

    Attributes:
        key: of the recipe, or `RECIPE`.
        values: plain values by their labels, in the order given.
    """

    key: str
    values: dict[str, Any]

    @property
    def title(self) -> str:
        """Its key without the section."""
        return self.key.rpartition(".")[2].replace("_", " ")

    @property
    def numbers(self) -> dict[str, float] | None:
        """Values by label where all are numbers."""
        if all(type(value) in (int, float) for value in self.values.values()):
            return {label: float(value) for label, value in self.values.items()}
        return None


@dataclass(frozen=True, eq=False)  # a key of its own: recipes are none
class Run:
    """One training of a sweep.

    Attributes:
        point: name of its point, and of the point's folder.
        labels: its value on each axis.
        seed: of the training.
        recipe: with all changes.
        changes: the overrides that make it, `KEY=VALUE`, without the seed.
        folder: where its release goes.
        base: the recipe's name or file.
    """

    point: str
    labels: tuple[str, ...]
    seed: int
    recipe: Recipe
    changes: tuple[str, ...]
    folder: Path
    base: str

    @property
    def id(self) -> str:
        """Its name in the sweep."""
        return f"{self.point}/seed_{self.seed}"


class Plan(NamedTuple):
    """All that a sweep will do.

    Attributes:
        axes: what varies; empty where only the seeds do.
        runs: in the order in which they are trained.
        seeds: of every point.
        watch: as asked for; None leaves the choice.
    """

    axes: tuple[Axis, ...]
    runs: tuple[Run, ...]
    seeds: tuple[int, ...]
    watch: tuple[Watched, ...] | None

    @property
    def points(self) -> dict[str, tuple[str, ...]]:
        """The labels of each point, by its name."""
        return {run.point: run.labels for run in self.runs}


def plan_sweep(
    recipes: Sequence[Recipe | str | Path],
    vary: Mapping[str, Any],
    seeds: Sequence[int],
    watch: Sequence[Watched] | None,
    out: Path,
    order: Order = "seeds",
) -> Plan:
    """Lay out all runs, and check each one's recipe before any is trained.

    Args:
        recipes: one, or several to compare.
        vary: by key of the recipe a list of values, or values by their labels; one value is an override.
        seeds: checked ones.
        watch: numbers of interest.
        out: folder of the sweep.
        order: of the runs.

    Raises:
        ZooError: naming the key, value or recipe that is wrong.
    """
    axes, overrides = _axes(vary)
    bases = _bases(recipes)
    if len(bases) > 1:
        axes.append(Axis(RECIPE, {label: label for label in bases}))
    if not axes and len(seeds) == 1:
        raise ZooError(
            "sweep: nothing varies: found one recipe, one value for each key and one seed, expected several "
            "of something, e.g. --set objective.tau=0.1,0.2; for a single run: zoo pretrain"
        )
    runs = []
    taken: dict[str, str] = {}
    for labels in itertools.product(*(axis.values for axis in axes)):
        chosen = dict(zip((axis.key for axis in axes), labels, strict=True))
        base = bases[chosen[RECIPE]] if len(bases) > 1 else next(iter(bases.values()))
        changes = [_override(axis.key, axis.values[chosen[axis.key]]) for axis in axes if axis.key != RECIPE]
        changes = [*overrides, *changes]
        changes += _name_of(base, changes)
        point = _folder(axes, labels, taken) if axes else _tag(base)
        for seed in seeds:
            recipe = as_recipe(base, [*changes, f"training.seed={seed}"])
            name = base.name if isinstance(base, Recipe) else str(base)
            runs.append(Run(point, labels, seed, recipe, tuple(changes), out / point / f"seed_{seed}", name))
    if order == "seeds":
        place = {seed: number for number, seed in enumerate(seeds)}
        runs.sort(key=lambda run: place[run.seed])  # stable: a stopped sweep has whole sets of points
    return Plan(tuple(axes), tuple(runs), tuple(seeds), None if watch is None else checked_watch(watch))


def _name_of(base: Recipe | str | Path, changes: Sequence[str]) -> list[str]:
    """Return the override of the name, which begins with the architecture, where that is changed."""
    archs = [change.partition("=")[2].strip('"') for change in changes if change.startswith("backbone.arch=")]
    _, dot, tag = as_recipe(base, ()).name.partition(".")
    # of what is no architecture the recipe's own check tells
    return [f"name={arch}{dot}{tag}" for arch in archs if re.fullmatch(r"\w+", arch)]


def checked_watch(watch: Sequence[Watched]) -> tuple[Watched, ...]:
    """Return them if each is of a kind that there is; which numbers a run has is seen when it is finished."""
    for each in watch:
        for number in (each.number, each.minus, each.instead):
            kind = "" if number is None else number.partition("/")[0]
            if number is not None and (kind not in KINDS or not number.partition("/")[2]):
                raise ZooError(
                    f'watch: found "{number}", expected a name that begins with '
                    f"{', '.join(f'{k}/' for k in KINDS)}, e.g. features/uniformity."
                    f"{did_you_mean(kind, KINDS)}"
                )
    names = [(each.number, each.minus) for each in watch]
    if len({*names}) < len(names) or not names:
        raise ZooError(f"watch: found {[number for number, _ in names]}, expected different numbers")
    return tuple(watch)


def _axes(vary: Mapping[str, Any]) -> tuple[list[Axis], list[str]]:
    """Return the axes, and as overrides the keys with one value."""
    axes, overrides = list[Axis](), list[str]()
    for key, given in vary.items():
        for decided, instead in _DECIDED.items():
            if key == decided:
                raise ZooError(f'{_WHERE} "{key}": {instead}')
            if key == decided.partition(".")[0]:
                raise ZooError(
                    f'{_WHERE} "{key}": found a whole section, expected a key of it, e.g. {key}.epochs'
                )
        values = _labelled(key, given)
        if len(values) == 1:
            overrides.append(_override(key, next(iter(values.values()))))
        else:
            axes.append(Axis(key, values))
    return axes, overrides


def _labelled(key: str, given: Any) -> dict[str, Any]:
    """Return the values of a key by their labels."""
    if isinstance(given, Mapping):
        values = {str(label): value for label, value in given.items()}
    elif isinstance(given, Sequence) and not isinstance(given, str):
        for value in given:
            _override(key, value)  # that it is a plain one
        labels = [_label(value, given) for value in given]
        repeated = next((each for i, each in enumerate(labels) if each in labels[:i]), None)
        if repeated is not None:
            raise ZooError(f'{_WHERE} "{key}": the value {repeated} is given twice')
        values = dict(zip(labels, given, strict=True))
    else:
        raise ZooError(
            f'{_WHERE} "{key}": found {given!r}, expected a list of values, or values by their labels'
        )
    if not values:
        raise ZooError(f'{_WHERE} "{key}": found no value, expected one or several')
    texts = [_override(key, value) for value in values.values()]
    if len({*texts}) < len(texts):
        raise ZooError(f'{_WHERE} "{key}": found the same value under two labels, expected different ones')
    return values


def _label(value: Any, among: Sequence[Any]) -> str:
    """Return a short text for a value: of sections only what tells them apart, or on where there is one."""
    sections = [other for other in among if isinstance(other, Mapping)]
    if len(sections) == 1 and None in among and (value is None or isinstance(value, Mapping)):
        return "off" if value is None else "on"  # as a report says it
    if isinstance(value, Mapping):
        others = [_leaves(other) for other in among if isinstance(other, Mapping)]
        own = _leaves(value)
        told = {key: own[key] for key in own if any(other.get(key) != own[key] for other in others)}
        text = " ".join(f"{key.rpartition('.')[2]} {leaf}" for key, leaf in told.items())
        name = str(value.get("name") or value.get("kind") or "given")
        text = text if told and len(text) <= _LONGEST else name
        same = [other for other in among if isinstance(other, Mapping)]
        names = [str(other.get("name") or other.get("kind") or "given") for other in same]
        if text == name and names.count(name) > 1:
            text += f" {same.index(value) + 1}"
        return text
    if isinstance(value, list | tuple):
        text = ",".join(_label(each, ()) for each in value)
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    if isinstance(value, float) and abs(value) >= _LARGE and float(f"{value:g}") == value:
        return f"{value:g}"  # 1e+09, not 1000000000.0
    return value if isinstance(value, str) else json.dumps(value)


def _leaves(section: Mapping[str, Any]) -> dict[str, Any]:
    return {key: leaf for key, leaf in leaves(section) if leaf != {}}  # an empty section tells nothing apart


def _override(key: str, value: Any) -> str:
    return override_of(key, value, f"{_WHERE} ")


def _bases(recipes: Sequence[Recipe | str | Path]) -> dict[str, Recipe | str | Path]:
    """Return the recipes by their labels: the tags where those tell them apart, else the names."""
    if not recipes:
        raise RecipeError('sweep: found no recipe, expected one or several; "zoo list" shows them')
    names = [as_recipe(each, ()).name for each in recipes]
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise RecipeError(f'sweep: the recipe "{twice}" is given twice; expected recipes of different names')
    tags = [name.partition(".")[2] for name in names]
    unique = len({*tags}) == len(tags) and all(tags)
    return dict(zip(without_common_end(tags) if unique else names, recipes, strict=True))


def _tag(base: Recipe | str | Path) -> str:
    return _safe(as_recipe(base, ()).name.rpartition(".")[2])


def _folder(axes: Sequence[Axis], labels: Sequence[str], taken: dict[str, str]) -> str:
    """Return a readable folder name that no other point has, whatever the file system thinks of case."""
    titles = [axis.title.replace(" ", "_") for axis in axes]
    keys = [t if titles.count(t) == 1 else axis.key for t, axis in zip(titles, axes, strict=True)]
    parts = [label if key == RECIPE else f"{key}_{label}" for key, label in zip(keys, labels, strict=True)]
    name = plain = _safe("-".join(parts))
    number = 1
    while taken.setdefault(name.lower(), "\0".join(labels)) != "\0".join(labels):
        number += 1
        name = f"{plain}_{number}"
    return name


def _safe(text: str) -> str:
    name = re.sub(r"[^A-Za-z0-9._+-]+", "_", text).strip("._-")[:100] or "point"
    return f"{name}_" if name in _RESERVED else name
