"""What users call: pretrain, finetune, evaluate, diagnose, reproduce, convert, ... Joins the rooms."""

from zoo.api.classes import class_map
from zoo.api.compared import METHODS
from zoo.api.comparison import RECORD, Comparison, compare
from zoo.api.conversion import convert
from zoo.api.diagnosis import Page, Report, diagnose
from zoo.api.evaluation import evaluate
from zoo.api.facts import hardware
from zoo.api.finetuning import finetune, plan_finetuning
from zoo.api.pretraining import pretrain
from zoo.api.profiling import profile_step
from zoo.api.reproduction import Reproduction, reproduce
from zoo.api.sweeping import SWEEP, Sweep, sweep
from zoo.api.tabled import Results, table
from zoo.training.protocols import PROTOCOLS

__all__ = [
    "METHODS",
    "PROTOCOLS",
    "RECORD",
    "SWEEP",
    "Comparison",
    "Page",
    "Report",
    "Reproduction",
    "Results",
    "Sweep",
    "class_map",
    "compare",
    "convert",
    "diagnose",
    "evaluate",
    "finetune",
    "hardware",
    "plan_finetuning",
    "pretrain",
    "profile_step",
    "reproduce",
    "sweep",
    "table",
]
