"""What users call: pretrain, finetune, evaluate, convert, profile_step. Joins the rooms."""

from zoo.api.conversion import convert
from zoo.api.evaluation import evaluate
from zoo.api.facts import hardware
from zoo.api.finetuning import finetune, plan_finetuning
from zoo.api.pretraining import pretrain
from zoo.api.profiling import profile_step
from zoo.training.protocols import PROTOCOLS

__all__ = [
    "PROTOCOLS",
    "convert",
    "evaluate",
    "finetune",
    "hardware",
    "plan_finetuning",
    "pretrain",
    "profile_step",
]
