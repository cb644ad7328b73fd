"""Training objectives: one file each, and one line here; those of other packages are registered."""

import inspect
import re
from importlib.metadata import entry_points
from typing import Any, TypeVar, get_args

from zoo.errors import ZooError, first_line
from zoo.objectives.base import Batch, DataInfo, Objective, ObjectiveConfig, Output
from zoo.objectives.bcl import BCL
from zoo.objectives.classify import Classify
from zoo.objectives.margin import Margin
from zoo.objectives.moco import MoCo
from zoo.objectives.moco_v3 import MoCoV3
from zoo.objectives.paco import GPaCo, PaCo
from zoo.objectives.pico import PiCO
from zoo.objectives.simclr import SimCLR
from zoo.objectives.sup_con import SupCon

__all__ = ["OBJECTIVES", "Batch", "Classify", "DataInfo", "Objective", "ObjectiveConfig", "Output"]

OBJECTIVES: dict[str, type[Objective]] = {
    "bcl": BCL,
    "classify": Classify,
    "gpaco": GPaCo,
    "margin": Margin,
    "moco": MoCo,
    "moco_v3": MoCoV3,
    "paco": PaCo,
    "pico": PiCO,
    "simclr": SimCLR,
    "sup_con": SupCon,
}

_SHIPPED = frozenset(OBJECTIVES)
_ObjectiveT = TypeVar("_ObjectiveT", bound=Objective)


def register_objective(objective: type[_ObjectiveT]) -> type[_ObjectiveT]:
    """Let recipes name an objective of your own, and return it: also a decorator of the class.

    Call it in each process before such a recipe is read. The command `zoo` finds an objective through an
    installed package's `[project.entry-points."zoo.objectives"]`, `my_name = "my_package.module:Mine"`.

    Raises:
        ZooError: for what is no objective, or one that has the name of an objective of this package.
    """
    name = _name_of(objective)
    if name in _SHIPPED and OBJECTIVES[name] is not objective:
        what = f"objective {objective.__name__}"
        raise ZooError(f'{what}: "{name}" is an objective of zoo, expected another name')
    OBJECTIVES[name] = objective
    return objective


def _name_of(objective: Any) -> str:
    """Return the name that selects an objective in a recipe, `name: Literal["..."]` of its `Config`."""
    if not (inspect.isclass(objective) and issubclass(objective, Objective)):
        raise ZooError(f"objective: found {objective!r}, expected a subclass of zoo.objectives.Objective")
    schema, views = getattr(objective, "Config", None), getattr(objective, "num_views", None)
    fields = schema.model_fields if inspect.isclass(schema) and issubclass(schema, ObjectiveConfig) else {}
    (name,) = (get_args(fields["name"].annotation) if fields else ()) or (None,)
    if not (isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}", name)):
        found = f"Config = {schema!r} with the name {name!r}"
        expected = 'a subclass of ObjectiveConfig with name: Literal["letters, digits and _ . -"]'
        raise ZooError(f"objective {objective.__name__}: found {found}, expected {expected}")
    if not isinstance(views, int) or views < 1:
        raise ZooError(f"objective {objective.__name__}: found num_views = {views!r}, expected 1 or more")
    return name


def look_up(name: object) -> None:
    """Register the objective that an installed package offers as `name`, unless that is known already."""
    if not isinstance(name, str) or name in OBJECTIVES:
        return
    offered = {point.value: point for point in entry_points(group="zoo.objectives", name=name)}
    if len(offered) > 1:
        raise ZooError(f'objective "{name}": offered by several packages: {", ".join(sorted(offered))}')
    for where, point in offered.items():
        try:
            found = point.load()
        except (Exception, SystemExit) as error:  # whatever the package does when it is imported
            raise ZooError(f'objective "{name}": {where} cannot be imported: {first_line(error)}') from error
        if _name_of(found) != name:
            raise ZooError(f'objective "{name}": {where} is called "{_name_of(found)}" in recipes')
        register_objective(found)
