"""From a recipe to a trained objective: build, loop, and what a run keeps on disk."""

from zoo.training.build import build_objective, learns_without_labels
from zoo.training.facts import Trained
from zoo.training.loop import train
from zoo.training.precision import cpu_threads, pick_device
from zoo.training.run import RunFolder
from zoo.training.stages import stages

__all__ = [
    "RunFolder",
    "Trained",
    "build_objective",
    "cpu_threads",
    "learns_without_labels",
    "pick_device",
    "stages",
    "train",
]
