"""What users call: pretrain, finetune, evaluate, convert. Joins the rooms; holds no logic of its own."""

from zoo.api.conversion import convert
from zoo.api.evaluation import evaluate
from zoo.api.facts import hardware
from zoo.api.pretraining import finetune, pretrain
from zoo.training.protocols import PROTOCOLS

__all__ = ["PROTOCOLS", "convert", "evaluate", "finetune", "hardware", "pretrain"]
