"""Building blocks of objectives; state only in buffers and parameters."""

from zoo.modules.batchnorm import (
    convert_ghost_batchnorm,
    has_batchnorm,
    running_statistics,
    synchronize_batchnorm,
)
from zoo.modules.centers import Centers, Nearest
from zoo.modules.heads import CosineClassifier, ScaledClassifier, full_logits, projection_head
from zoo.modules.modes import evaluating
from zoo.modules.momentum import MomentumEncoder
from zoo.modules.pyramid import FeatureMaps, FeaturePyramid
from zoo.modules.queue import KeyQueue
from zoo.modules.schedule import (
    LOWEST_TAU,
    Learned,
    Scheduled,
    Share,
    Temperature,
    TemperatureConfig,
    value_at,
)
from zoo.modules.teacher import Normalization, Teacher
from zoo.modules.vit import freeze_patch_embedding, set_sincos_positions

APART = (MomentumEncoder, Teacher)
"""Networks beside the one that is trained and released: gradients leave them alone."""

__all__ = [
    "APART",
    "LOWEST_TAU",
    "Centers",
    "CosineClassifier",
    "FeatureMaps",
    "FeaturePyramid",
    "KeyQueue",
    "Learned",
    "MomentumEncoder",
    "Nearest",
    "Normalization",
    "ScaledClassifier",
    "Scheduled",
    "Share",
    "Teacher",
    "Temperature",
    "TemperatureConfig",
    "convert_ghost_batchnorm",
    "evaluating",
    "freeze_patch_embedding",
    "full_logits",
    "has_batchnorm",
    "projection_head",
    "running_statistics",
    "set_sincos_positions",
    "synchronize_batchnorm",
    "value_at",
]
