"""What users call: pretrain, finetune, reproduce, evaluate, convert, profile_step. Joins the rooms."""

from zoo.api.classes import class_map
from zoo.api.compared import METHODS
from zoo.api.comparison import RECORD, Comparison, compare
from zoo.api.conversion import convert
from zoo.api.evaluation import evaluate
from zoo.api.facts import hardware
from zoo.api.finetuning import finetune, plan_finetuning
from zoo.api.pretraining import pretrain
from zoo.api.profiling import profile_step
from zoo.api.reproduction import Reproduction, reproduce
from zoo.training.protocols import PROTOCOLS

__all__ = [
    "METHODS",
    "PROTOCOLS",
    "RECORD",
    "Comparison",
    "Reproduction",
    "class_map",
    "compare",
    "convert",
    "evaluate",
    "finetune",
    "hardware",
    "plan_finetuning",
    "pretrain",
    "profile_step",
    "reproduce",
]
