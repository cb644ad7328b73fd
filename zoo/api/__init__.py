"""What users call: pretrain, finetune, evaluate, convert, profile_step. Joins the rooms."""

from zoo.api.conversion import convert
from zoo.api.evaluation import PROTOCOLS, evaluate
from zoo.api.facts import hardware
from zoo.api.pretraining import finetune, pretrain
from zoo.api.profiling import profile_step

__all__ = ["PROTOCOLS", "convert", "evaluate", "finetune", "hardware", "pretrain", "profile_step"]
