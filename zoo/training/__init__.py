"""Train a recipe's objective: building it, the loop, and the run folder on disk."""

from zoo.training.build import build_objective as build_objective
from zoo.training.facts import Trained as Trained
from zoo.training.loop import train as train
from zoo.training.precision import cpu_threads as cpu_threads
from zoo.training.precision import pick_device as pick_device
from zoo.training.run import RunFolder as RunFolder
from zoo.training.stages import stages as stages
