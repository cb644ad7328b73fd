"""From a recipe to a trained objective: build, loop, and what a run keeps on disk."""

from zoo.training.build import build_objective, learns_without_labels
from zoo.training.loop import Trained, train
from zoo.training.precision import cpu_threads, pick_device
from zoo.training.run import RunFolder
from zoo.training.stages import Stage, stages

__all__ = [
    "RunFolder",
    "Stage",
    "Trained",
    "build_objective",
    "cpu_threads",
    "learns_without_labels",
    "pick_device",
    "stages",
    "train",
]
