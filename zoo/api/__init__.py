"""What users call: pretrain, finetune, evaluate, diagnose, reproduce, convert, ... Joins the rooms."""

from zoo.api.classes import class_map
from zoo.api.comparisons.compare import RECORD, Comparison, compare
from zoo.api.comparisons.plan import METHODS
from zoo.api.conversion import convert
from zoo.api.diagnoses.diagnose import Page, Report, diagnose
from zoo.api.evaluation import evaluate, evaluate_release
from zoo.api.facts import hardware
from zoo.api.finetuning import finetune, plan_finetuning
from zoo.api.pretraining import pretrain
from zoo.api.profiling import profile_step
from zoo.api.reproductions.reproduce import Reproduction, reproduce
from zoo.api.sweeps.sweep import SWEEP, Sweep, sweep
from zoo.api.tables.table import Results, table
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
    "evaluate_release",
    "finetune",
    "hardware",
    "plan_finetuning",
    "pretrain",
    "profile_step",
    "reproduce",
    "sweep",
    "table",
]
