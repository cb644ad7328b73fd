"""Building blocks of objectives; state only in buffers and parameters."""

# ruff: noqa: F401
# isort: skip_file
from zoo.modules.batchnorm import convert_ghost_batchnorm, has_batchnorm, running_statistics
from zoo.modules.batchnorm import synchronize_batchnorm
from zoo.modules.centers import Centers
from zoo.modules.heads import CosineClassifier, HeadBatchNorm, HeadHidden, HeadLayers, ScaledClassifier
from zoo.modules.heads import Teacher, as_linear, full_logits, projection_head, unit_rows
from zoo.modules.momentum import KeyQueue, MomentumEncoder, QueueSize
from zoo.modules.pyramid import FeatureMaps, FeaturePyramid
from zoo.modules.schedule import Scheduled, Share, Tau, value_at
