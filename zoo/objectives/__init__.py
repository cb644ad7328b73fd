"""Training objectives: one file each, and one line here."""

from zoo.objectives.base import Batch, DataInfo, Objective, ObjectiveConfig, Output
from zoo.objectives.classify import Classify
from zoo.objectives.gpaco import GPaCo
from zoo.objectives.margin import Margin
from zoo.objectives.moco import MoCo
from zoo.objectives.moco_v3 import MoCoV3
from zoo.objectives.paco import PaCo
from zoo.objectives.pico import PiCO
from zoo.objectives.simclr import SimCLR
from zoo.objectives.sup_con import SupCon

OBJECTIVES: dict[str, type[Objective]] = {
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

__all__ = ["OBJECTIVES", "Batch", "Classify", "DataInfo", "Objective", "ObjectiveConfig", "Output"]
