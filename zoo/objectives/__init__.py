"""Training objectives: one file each, and one line here."""

from zoo.objectives.base import Batch, DataInfo, Objective, ObjectiveConfig, Output
from zoo.objectives.classify import Classify
from zoo.objectives.moco import MoCo
from zoo.objectives.paco import PaCo

OBJECTIVES: dict[str, type[Objective]] = {
    "classify": Classify,
    "moco": MoCo,
    "paco": PaCo,
}

__all__ = ["OBJECTIVES", "Batch", "Classify", "DataInfo", "Objective", "ObjectiveConfig", "Output"]
