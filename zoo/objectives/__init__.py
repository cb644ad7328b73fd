"""Training objectives: those of this package, in `_SHIPPED`, and those of others that are registered."""

from importlib.metadata import entry_points
from typing import TypeVar, get_args

from zoo.errors import ZooError, first_line
from zoo.objectives.base import Batch, DataInfo, Objective, ObjectiveConfig, Output
from zoo.objectives.bcl import BCL
from zoo.objectives.classify import Classify
from zoo.objectives.margin import Margin
from zoo.objectives.moco import MoCo
from zoo.objectives.moco_v3 import MoCoV3
from zoo.objectives.paco import GPaCo, PaCo
from zoo.objectives.pico import PiCO
from zoo.objectives.sup_con import SimCLR, SupCon

__all__ = ["OBJECTIVES", "Batch", "Classify", "DataInfo", "Objective", "ObjectiveConfig", "Output"]

_SHIPPED = (BCL, Classify, GPaCo, Margin, MoCo, MoCoV3, PaCo, PiCO, SimCLR, SupCon)
_ObjectiveT = TypeVar("_ObjectiveT", bound=Objective)

OBJECTIVES: dict[str, type[Objective]] = {
    get_args(each.Config.model_fields["name"].annotation)[0]: each for each in _SHIPPED
}


def register_objective(objective: type[_ObjectiveT]) -> type[_ObjectiveT]:
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
    if OBJECTIVES.get(name) in _SHIPPED:
        raise ZooError(
            f'objective {objective.__name__}: "{name}" is an objective of zoo, expected another name'
        )
    OBJECTIVES[name] = objective
    return objective


def look_up(name: object) -> None:
    """Register the objective that an installed package offers as `name`, unless that is known already."""
    if not isinstance(name, str) or name in OBJECTIVES:
        return
    for point in entry_points(group="zoo.objectives", name=name):
        try:
            register_objective(point.load())
        except (Exception, SystemExit) as error:  # whatever the package does when it is imported
            found = f"{point.value} cannot be imported: {first_line(error)}"
            raise ZooError(f'objective "{name}": {found}') from error
