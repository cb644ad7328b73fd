"""The known objectives: this package's, and registered ones of others. Does not import torch."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any, TypeVar, get_args

from zoo import objectives
from zoo.errors import ZooError, few, first_line
from zoo.objectives import config as c

_ObjectiveT = TypeVar("_ObjectiveT", bound=type[Any])

SHIPPED: dict[str, type[c.ObjectiveConfig]] = {
    get_args(each.model_fields["name"].annotation)[0]: each
    for each in (
        *(c.BCLConfig, c.ClassifyConfig, c.GPaCoConfig, c.MarginConfig, c.MoCoConfig, c.MoCoV3Config),
        *(c.PaCoConfig, c.PiCOConfig, c.SimCLRConfig, c.SupConConfig),
    )
}
"""The sections of this package's objectives by name; `PaCoConfig` belongs to the class `PaCo`."""

REGISTERED: dict[str, type[Any]] = {}


def objective_class(name: str) -> type[Any]:
    """Return the class of a known objective, importing this package's own on demand."""
    return REGISTERED.get(name) or getattr(objectives, SHIPPED[name].__name__.removesuffix("Config"))


def register_objective(objective: _ObjectiveT) -> _ObjectiveT:
    """Register your own objective, so that recipes can name it; usable as a class decorator.

    Call it in each process before such a recipe is read. The command `zoo` finds an objective through an
    installed package's `[project.entry-points."zoo.objectives"]`, `my_name = "my_package.module:Mine"`.

    Raises:
        ZooError: if it is not an objective, or has the name of another one.
    """
    try:
        (name,) = get_args(objective.Config.model_fields["name"].annotation)
        if not issubclass(objective, objectives.Objective) or not issubclass(
            objective.Config, c.ObjectiveConfig
        ):
            raise TypeError
    except (AttributeError, KeyError, TypeError, ValueError):
        expected = 'an Objective whose Config has name: Literal["its name"]'
        raise ZooError(f"objective: found {objective!r}, expected {expected}") from None
    known = REGISTERED.get(name, objective)
    is_same = (known.__module__, known.__qualname__) == (objective.__module__, objective.__qualname__)
    if name in SHIPPED or not is_same:  # the same one again: a notebook's cell that runs a second time
        found = f'objective {objective.__name__}: "{name}" is another objective'
        raise ZooError(f"{found}, expected another name")
    if misplaced := {"num_views", "from_candidates", "without_labels"} & {*dir(objective)}:
        raise ZooError(f"objective {objective.__name__}: {few(sorted(misplaced))}: expected in its Config")
    objective.Config.learns_centers = objective.centers is not objectives.Objective.centers
    REGISTERED[name] = objective
    return objective


def look_up(name: object) -> None:
    """Register the objective that an installed package provides as `name`, unless it is known already."""
    if not isinstance(name, str) or name in SHIPPED or name in REGISTERED:
        return
    for point in entry_points(group="zoo.objectives", name=name):
        try:
            register_objective(point.load())
        except (Exception, SystemExit) as error:  # importing a package may raise anything
            found = f"{point.value} cannot be imported: {first_line(error)}"
            raise ZooError(f'objective "{name}": {found}') from error
