"""What users call: pretrain, finetune, evaluate, diagnose, ... Joins the rooms."""

from zoo.api.diagnosis import Report, diagnose
from zoo.api.embedding import embed
from zoo.api.evaluation import evaluate, evaluate_release
from zoo.api.facts import hardware
from zoo.api.finetuning import finetune, plan_finetuning
from zoo.api.own_pretraining import data_in_place, plan_own_pretraining, pretrain, refuse_beside_a_recipe
from zoo.api.prediction import Prediction, predict, prior_words
from zoo.api.pretraining import plan_pretraining
from zoo.api.profiling import profile_step
from zoo.api.snapshots import snapshot
from zoo.evaluation.embedding import Embedding
from zoo.recipe.protocols import PROTOCOLS
from zoo.report.classes import class_map

__all__ = [
    "PROTOCOLS",
    "Embedding",
    "Prediction",
    "Report",
    "class_map",
    "data_in_place",
    "diagnose",
    "embed",
    "evaluate",
    "evaluate_release",
    "finetune",
    "hardware",
    "plan_finetuning",
    "plan_own_pretraining",
    "plan_pretraining",
    "predict",
    "pretrain",
    "prior_words",
    "profile_step",
    "refuse_beside_a_recipe",
    "snapshot",
]
