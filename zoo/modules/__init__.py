"""Building blocks of objectives; state only in buffers and parameters."""

from zoo.modules.batchnorm import convert_ghost_batchnorm as convert_ghost_batchnorm
from zoo.modules.batchnorm import has_batchnorm as has_batchnorm
from zoo.modules.batchnorm import running_statistics as running_statistics
from zoo.modules.batchnorm import synchronize_batchnorm as synchronize_batchnorm
from zoo.modules.centers import Centers as Centers
from zoo.modules.heads import CosineClassifier as CosineClassifier
from zoo.modules.heads import HeadBatchNorm as HeadBatchNorm
from zoo.modules.heads import HeadHidden as HeadHidden
from zoo.modules.heads import HeadLayers as HeadLayers
from zoo.modules.heads import Normalization as Normalization
from zoo.modules.heads import ScaledClassifier as ScaledClassifier
from zoo.modules.heads import Teacher as Teacher
from zoo.modules.heads import as_linear as as_linear
from zoo.modules.heads import evaluating as evaluating
from zoo.modules.heads import full_logits as full_logits
from zoo.modules.heads import projection_head as projection_head
from zoo.modules.heads import unit_rows as unit_rows
from zoo.modules.momentum import KeyQueue as KeyQueue
from zoo.modules.momentum import MomentumEncoder as MomentumEncoder
from zoo.modules.momentum import QueueSize as QueueSize
from zoo.modules.pyramid import FeatureMaps as FeatureMaps
from zoo.modules.pyramid import FeaturePyramid as FeaturePyramid
from zoo.modules.schedule import Scheduled as Scheduled
from zoo.modules.schedule import Share as Share
from zoo.modules.schedule import Tau as Tau
from zoo.modules.schedule import value_at as value_at
from zoo.modules.vit import freeze_patch_embedding as freeze_patch_embedding
from zoo.modules.vit import set_sincos_positions as set_sincos_positions

APART = (MomentumEncoder, Teacher)
"""Networks beside the one that is trained and released: gradients leave them alone."""
