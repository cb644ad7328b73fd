"""What users call: pretrain, finetune, reproduce, evaluate, convert, profile_step. Joins the rooms."""

from zoo.api.classes import class_map
from zoo.api.conversion import convert
from zoo.api.evaluation import evaluate
from zoo.api.facts import hardware
from zoo.api.pretraining import finetune, pretrain
from zoo.api.profiling import profile_step
from zoo.api.reproduction import Reproduction, reproduce
from zoo.training.protocols import PROTOCOLS

__all__ = [
    "PROTOCOLS",
    "Reproduction",
    "class_map",
    "convert",
    "evaluate",
    "finetune",
    "hardware",
    "pretrain",
    "profile_step",
    "reproduce",
]
