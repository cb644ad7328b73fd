"""What users call: pretrain, finetune, evaluate, convert, profile_step. Joins the rooms."""

from zoo.api.conversion import convert
from zoo.api.evaluation import evaluate
from zoo.api.facts import hardware
from zoo.api.pretraining import finetune, pretrain
from zoo.api.profiling import profile_step
from zoo.training.protocols import PROTOCOLS

__all__ = ["PROTOCOLS", "convert", "evaluate", "finetune", "hardware", "pretrain", "profile_step"]
