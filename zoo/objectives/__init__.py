"""Training objectives: one file each, and one line here; those of other packages are registered."""

from __future__ import annotations

from typing import TypeVar

from zoo.errors import ZooError
from zoo.objectives.base import Batch, DataInfo, Objective, ObjectiveConfig, Output
from zoo.objectives.bcl import BCL
from zoo.objectives.classify import Classify
from zoo.objectives.margin import Margin
from zoo.objectives.moco import MoCo
from zoo.objectives.moco_v3 import MoCoV3
from zoo.objectives.own import installed, name_of
from zoo.objectives.paco import GPaCo, PaCo
from zoo.objectives.pico import PiCO
from zoo.objectives.simclr import SimCLR
from zoo.objectives.sup_con import SupCon

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
    """Let recipes name an objective of your own; also as a decorator of the class.

    At any time before such a recipe is read, once in each process that reads it: a program of yours, then.
    For the command `zoo`, a package that is installed names its objectives in its `pyproject.toml` instead,
    `[project.entry-points."zoo.objectives"]` with `my_name = "my_package.my_module:MyObjective"`; they are
    imported when a recipe has a name that is not known otherwise.

    Args:
        objective: a subclass of `Objective`; its `Config` has `name: Literal["my_name"]`, its `num_views`
            says how many views of an image it takes. It replaces what was registered by that name before.

    Returns:
        The class itself.

    Raises:
        ZooError: for what is no objective, or one that is called as an objective of this package.
    """
    name = name_of(objective)
    if name in _SHIPPED and OBJECTIVES[name] is not objective:
        raise ZooError(
            f'objective {objective.__name__}: "{name}" is an objective of zoo, expected another name'
        )
    OBJECTIVES[name] = objective
    return objective


def look_up(name: object) -> None:
    """Register what an installed package offers as `name`, if that is not known yet.

    Raises:
        ZooError: for an offer that is no objective; see `installed`.
    """
    if isinstance(name, str) and name not in OBJECTIVES:
        found = installed(name)
        if found is not None:
            register_objective(found)


__all__ = [
    "OBJECTIVES",
    "Batch",
    "Classify",
    "DataInfo",
    "Objective",
    "ObjectiveConfig",
    "Output",
    "look_up",
    "register_objective",
]
