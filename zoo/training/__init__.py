"""Recipes and the loop that follows them."""

from zoo.training.build import build_objective
from zoo.training.loop import Trained, train
from zoo.training.prepare import cpu_threads, pick_device
from zoo.training.recipe import Recipe
from zoo.training.run import RunFolder

__all__ = ["Recipe", "RunFolder", "Trained", "build_objective", "cpu_threads", "pick_device", "train"]
