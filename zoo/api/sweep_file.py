"""A sweep that somebody has written down: a file with a question, and all that it takes to try it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from zoo import catalog
from zoo.config import Config, load_yaml, parse
from zoo.errors import RecipeError, did_you_mean
from zoo.evaluation.results.rows import Published
from zoo.evaluation.results.trend import Expected
from zoo.files import is_file

Order = Literal["seeds", "points"]
"""`seeds`: every point with the first seed, then with the next; `points`: one point with every seed first."""


class Watched(Config):
    """A number that a sweep is about."""

    number: str
    """As in `Subject.numbers`, e.g. `features/uniformity`."""
    minus: str | None = None
    """Another one that is taken from it, e.g. an optimum."""
    instead: str | None = None
    """What counts for a run that has no such number."""
    title: str
    """What a figure's axis says."""
    meaning: str = ""
    """A sentence on how to read it."""
    expects: Expected | None = None
    """What the source says of it: between the first value and the last, or `near 0` at every value."""


class SweepFile(Config):
    """A sweep that somebody has written down: the keys of `recipes/sweeps/NAME.yaml`."""

    question: str
    source: str
    recipes: list[str]
    set: dict[str, Any]
    """By key of the recipe a list of values, or of values by their labels. One value is an override."""
    seeds: list[int]
    watch: list[Watched]
    found: str | None
    """What was found, with date and machine."""
    order: Order = "seeds"
    """Of the trainings."""
    report: bool = True
    """Whether the report of `zoo.diagnose` over all runs is made at the end."""
    published: dict[str, Published] = {}
    """By recipe."""


def is_sweep(name: str | Path) -> bool:
    """Whether `name` is a shipped sweep, or a file that asks a question, as no recipe does."""
    if is_file(name):
        return re.search(r"^question:", catalog.recipe_text(Path(name)), re.MULTILINE) is not None
    return str(name) in catalog.list_sweeps()


def read_sweep(name: str | Path) -> SweepFile:
    """Read a sweep by name or from a file.

    Raises:
        RecipeError: naming the file, and the key that is wrong.
    """
    path = Path(name) if is_file(name) else catalog.sweep_path(str(name))
    found = parse(SweepFile, load_yaml(catalog.recipe_text(path), path.name), path.name)
    for recipe in found.published:
        if recipe not in found.recipes:
            raise RecipeError(
                f'{path.name}: "published.{recipe}": found no such recipe in the sweep, expected one of '
                f"{', '.join(found.recipes)}.{did_you_mean(recipe, found.recipes)}"
            )
    return found
