"""Which objectives there are: this package's, and those of others that are registered. Imports no torch."""

from __future__ import annotations

from functools import reduce
from importlib.metadata import entry_points
from operator import or_
from typing import Any, TypeVar, get_args

from zoo import objectives
from zoo.errors import ZooError, first_line
from zoo.objectives import config as c

_ObjectiveT = TypeVar("_ObjectiveT", bound=type[Any])

SHIPPED: dict[str, type[c.ObjectiveConfig]] = {
    get_args(each.model_fields["name"].annotation)[0]: each
    for each in (
        *(c.BCLConfig, c.ClassifyConfig, c.GPaCoConfig, c.MarginConfig, c.MoCoConfig, c.MoCoV3Config),
        *(c.PaCoConfig, c.PiCOConfig, c.SimCLRConfig, c.SupConConfig),
    )
}
"""The sections of this package's objectives by name; `PaCoConfig` is that of the class `PaCo`."""

REGISTERED: dict[str, type[Any]] = {}


def objective_class(name: str) -> type[Any]:
    """Return the class of a known objective; one of this package is imported now."""
    return REGISTERED.get(name) or getattr(objectives, SHIPPED[name].__name__.removesuffix("Config"))


def known_sections() -> Any:
    """Return the union of all known objectives' sections, as a recipe's field has it."""
    return reduce(or_, [*SHIPPED.values(), *(each.Config for each in REGISTERED.values())])


def register_objective(objective: _ObjectiveT) -> _ObjectiveT:
    """Let recipes name an objective of your own, and return it: also a decorator of the class.

    Call it in each process before such a recipe is read. The command `zoo` finds an objective through an
    installed package's `[project.entry-points."zoo.objectives"]`, `my_name = "my_package.module:Mine"`.

    Raises:
        ZooError: for what is no objective, or one that has the name of an objective of this package.
    """
    try:
        (name,) = get_args(objective.Config.model_fields["name"].annotation)
    except (AttributeError, KeyError, ValueError):
        expected = 'an Objective whose Config has name: Literal["its name"]'
        raise ZooError(f"objective: found {objective!r}, expected {expected}") from None
    if name in SHIPPED:
        found = f'objective {objective.__name__}: "{name}" is an objective of zoo'
        raise ZooError(f"{found}, expected another name")
    REGISTERED[name] = objective
    return objective


def look_up(name: object) -> None:
    """Register the objective that an installed package offers as `name`, unless that is known already."""
    if not isinstance(name, str) or name in SHIPPED or name in REGISTERED:
        return
    for point in entry_points(group="zoo.objectives", name=name):
        try:
            register_objective(point.load())
        except (Exception, SystemExit) as error:  # whatever the package does when it is imported
            found = f"{point.value} cannot be imported: {first_line(error)}"
            raise ZooError(f'objective "{name}": {found}') from error
