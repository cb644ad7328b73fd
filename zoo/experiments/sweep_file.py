"""A sweep that is written down: a question, all that it takes to try it, and published figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from zoo import catalog
from zoo.config import Config, load_yaml, parse
from zoo.errors import RecipeError, ZooError, did_you_mean
from zoo.files import is_file


class Watched(Config):
    """A number that a sweep is about."""

    number: str
    """As in `RunRecord.figures`, e.g. `features/uniformity` or `accuracy/knn`."""
    minus: str | None = None
    """Another one that is subtracted from it, e.g. an optimum."""
    instead: str | None = None
    """What counts for a run that has no such number."""
    title: str
    """The heading of its column."""
    meaning: str = ""
    """A sentence on how to read it."""
    expects: Literal["rises", "falls", "near 0"] | None = None
    """What the source says of it: between the first value and the last, or `near 0` at every value."""


class Published(Config):
    """A published figure that stands beside those of a recipe."""

    value: Annotated[float, Field(ge=0, le=100)]
    """In percent."""
    metric: Literal["accuracy", "balanced_accuracy", "many", "medium", "few"]
    """Which of a run's figures it is to be compared with."""
    protocol: Literal["classifier", "linear", "knn"] | None = None
    """By the learned classifier, a linear one on the frozen encoder, or kNN; None: one of the first two."""
    source: str
    """Where it was published."""
    differs: str
    """One sentence on what is not the same as where it was published."""

    def __str__(self) -> str:
        """Return the value, and the metric where that is not the accuracy."""
        metric = "" if self.metric == "accuracy" else f" ({self.metric.replace('_accuracy', '')})"
        return f"{self.value:.1f}{metric}"


class SweepFile(Config):
    """The keys of `recipes/sweeps/NAME.yaml`."""

    question: str
    source: str
    recipes: list[str]
    set: dict[str, Any]
    """By key of the recipe a list of values, or of values by their labels. One value is an override."""
    seeds: list[int]
    watch: list[Watched]
    found: str | None
    """What was found, with date and machine."""
    order: Literal["seeds", "points"] = "seeds"
    """`seeds`: every point with the first seed, then with the next; `points`: one point with every seed."""
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


def published_figures(sweeps: Sequence[str | Path] | None) -> dict[str, Published]:
    """Return the published figures of sweeps by recipe; of all shipped ones when None.

    Raises:
        ZooError: for what is no sweep, or where two of those given say different things of a recipe.
    """
    found: dict[str, Published] = {}
    if isinstance(sweeps, str | Path):
        raise ZooError(f"published: found {str(sweeps)!r}, expected a list of sweeps")
    for name in catalog.list_sweeps() if sweeps is None else sweeps:
        if not is_sweep(name):
            hint = did_you_mean(name, catalog.list_sweeps())
            raise RecipeError(f'published: "{name}" is neither a shipped sweep nor the file of one.{hint}')
        for recipe, figure in read_sweep(name).published.items():
            if found.setdefault(recipe, figure) != figure:
                raise RecipeError(f'published: "{name}" says of {recipe} something else than a sweep before')
    return found
