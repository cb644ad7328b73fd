"""Experiments: records of finished trainings, and what is made of a list of them."""

from zoo.experiments.compare import METHODS, Comparison, compare
from zoo.experiments.records import RunRecord
from zoo.experiments.reproduce import Reproduction, reproduce
from zoo.experiments.sweep import Sweep, sweep
from zoo.experiments.table import Results, table

__all__ = [
    "METHODS",
    "Comparison",
    "Reproduction",
    "Results",
    "RunRecord",
    "Sweep",
    "compare",
    "reproduce",
    "sweep",
    "table",
]
