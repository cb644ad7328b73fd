"""Every equation once, in pure torch.

Conventions. N: anchors in the batch; K: keys in the queue; D: projection; C: classes. `q` and `k` are
unit rows `[N, D]`, `queue` is `[K, D]`. Losses are means over anchors, computed in float32 or better
whatever the inputs' precision, and differentiable in every floating-point argument. `queue_labels` holds
-1 in slots that are not filled yet; unlabelled losses take `valid` `[K]` for the same purpose.
"""

from zoo.functional.contrastive import (
    hard_contrastive,
    hard_simple,
    in_batch_info_nce,
    info_nce,
    margin_between,
    margin_contrastive,
    nt_xent,
    simple_contrastive,
)
from zoo.functional.diagnostics import (
    alignment,
    anchor_moments,
    center_cosine,
    group_means,
    pooled_moments,
    relative_penalty,
    tolerance,
    uniformity,
)
from zoo.functional.distillation import distillation
from zoo.functional.features import (
    ema_update,
    extrapolate,
    interpolate,
    sample_beta,
)
from zoo.functional.knn import KnnPrediction, knn_predict
from zoo.functional.long_tail import (
    FEW_BELOW,
    LOWEST_LOGIT,
    MANY_ABOVE,
    balanced_softmax,
    class_balanced_weights,
    class_means,
    frequency_groups,
    ldam,
    ldam_margins,
    logit_adjusted,
    nearest_center,
    never,
    post_hoc_adjusted,
    scale_classes,
    tau_normalize,
)
from zoo.functional.probabilities import (
    Probabilities,
    paco_optimum,
    paco_probabilities,
    sup_con_probabilities,
)
from zoo.functional.supervised import (
    balanced_contrast,
    disambiguate,
    log_prior,
    move_prototypes,
    paco,
    sup_con,
)

__all__ = [
    "FEW_BELOW",
    "LOWEST_LOGIT",
    "MANY_ABOVE",
    "KnnPrediction",
    "Probabilities",
    "alignment",
    "anchor_moments",
    "balanced_contrast",
    "balanced_softmax",
    "center_cosine",
    "class_balanced_weights",
    "class_means",
    "disambiguate",
    "distillation",
    "ema_update",
    "extrapolate",
    "frequency_groups",
    "group_means",
    "hard_contrastive",
    "hard_simple",
    "in_batch_info_nce",
    "info_nce",
    "interpolate",
    "knn_predict",
    "ldam",
    "ldam_margins",
    "log_prior",
    "logit_adjusted",
    "margin_between",
    "margin_contrastive",
    "move_prototypes",
    "nearest_center",
    "never",
    "nt_xent",
    "paco",
    "paco_optimum",
    "paco_probabilities",
    "pooled_moments",
    "post_hoc_adjusted",
    "relative_penalty",
    "sample_beta",
    "scale_classes",
    "simple_contrastive",
    "sup_con",
    "sup_con_probabilities",
    "tau_normalize",
    "tolerance",
    "uniformity",
]
