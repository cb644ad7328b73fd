"""Objectives from outside this package: what one has to be, and where installed packages name theirs."""

from __future__ import annotations

import inspect
import re
from importlib.metadata import entry_points
from typing import get_args

from zoo.errors import ZooError, first_line
from zoo.objectives.base import Objective, ObjectiveConfig

GROUP = "zoo.objectives"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}")  # what a release's config.json takes


def name_of(objective: object) -> str:
    """Return the name that selects an objective in a recipe, `name: Literal["..."]` of its `Config`.

    Raises:
        ZooError: for what a recipe could not be read with.
    """
    if not (inspect.isclass(objective) and issubclass(objective, Objective)):
        raise ZooError(f"objective: found {objective!r}, expected a subclass of zoo.objectives.Objective")
    who = f"objective {objective.__name__}"
    schema = getattr(objective, "Config", None)
    if not (inspect.isclass(schema) and issubclass(schema, ObjectiveConfig)):
        raise ZooError(f"{who}: found Config = {schema!r}, expected a subclass of ObjectiveConfig")
    names = get_args(schema.model_fields["name"].annotation)
    if len(names) != 1 or not isinstance(names[0], str):
        raise ZooError(f'{who}: its Config has no name of its own, expected e.g. name: Literal["mine"]')
    if not _NAME.fullmatch(names[0]):
        raise ZooError(
            f"{who}: found the name {names[0]!r}, expected letters, digits and _ . - (at most 96): "
            "releases record it"
        )
    if schema.model_fields["name"].alias is not None:
        raise ZooError(f"{who}: its Config calls the name otherwise (alias), expected a plain name")
    if schema.model_rebuild(raise_errors=False) is False:
        raise ZooError(
            f"{who}: a type in its Config is not known when recipes are read; import what its annotations "
            "name outside of TYPE_CHECKING"
        )
    views = getattr(objective, "num_views", None)
    if not isinstance(views, int) or views < 1:
        raise ZooError(f"{who}: found num_views = {views!r}, expected how many views of an image it takes")
    return str(names[0])


def installed(name: str) -> type[Objective] | None:
    """Return the objective that an installed package offers under `name` in its entry points, or None.

    Importing it runs that package's code: that of a package which the user has installed. A recipe says a
    name and nothing else, so no recipe or release can bring code along.

    Raises:
        ZooError: where several packages offer one, or it cannot be imported, or is no objective.
    """
    offered = {point.value: point for point in entry_points(group=GROUP, name=name)}
    if not offered:
        return None
    if len(offered) > 1:
        raise ZooError(f'objective "{name}": offered by several packages: {", ".join(sorted(offered))}')
    ((where, point),) = offered.items()
    try:
        found = point.load()
    except (Exception, SystemExit) as error:  # whatever the package does when it is imported
        raise ZooError(f'objective "{name}": {where} cannot be imported: {first_line(error)}') from error
    if name_of(found) != name:
        raise ZooError(f'objective "{name}": {where} is called "{name_of(found)}" in recipes')
    return found  # type: ignore[no-any-return]
