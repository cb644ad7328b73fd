"""Recipes and the loop that follows them."""

from zoo.training.build import build_objective, learns_without_labels
from zoo.training.loop import Trained, train
from zoo.training.prepare import cpu_threads, pick_device
from zoo.training.run_folder import RunFolder
from zoo.training.run_stages import Stage
from zoo.training.stages import stages

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
