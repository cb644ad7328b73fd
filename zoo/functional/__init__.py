"""Every equation once, in pure torch.

Conventions. N: anchors in the batch; K: keys in the queue; D: projection; C: classes. `q` and `k` are
unit rows `[N, D]`, `queue` is `[K, D]`. Losses are means over anchors, computed in float32 or better
whatever the inputs' precision, and differentiable in every floating-point argument. `queue_labels` holds
-1 in slots that are not filled yet; unlabelled losses take `valid` `[K]` for the same purpose.
"""

# One list of names: sorting would split each `as` into a line of its own.
# isort: skip_file
from zoo.functional.contrastive import (
    hard_contrastive as hard_contrastive,
    hard_simple as hard_simple,
    in_batch_info_nce as in_batch_info_nce,
    info_nce as info_nce,
    margin_contrastive as margin_contrastive,
    nt_xent as nt_xent,
    simple_contrastive as simple_contrastive,
)
from zoo.functional.diagnostics import (
    Probabilities as Probabilities,
    alignment as alignment,
    contrast_probabilities as contrast_probabilities,
    paco_optimum as paco_optimum,
    relative_penalty as relative_penalty,
    tolerance as tolerance,
    uniformity as uniformity,
)
from zoo.functional.knn import KnnPrediction as KnnPrediction, knn_predict as knn_predict
from zoo.functional.long_tail import (
    FEW_BELOW as FEW_BELOW,
    LOWEST_LOGIT as LOWEST_LOGIT,
    MANY_ABOVE as MANY_ABOVE,
    balanced_softmax as balanced_softmax,
    class_balanced_weights as class_balanced_weights,
    class_means as class_means,
    frequency_groups as frequency_groups,
    ldam as ldam,
    log_prior as log_prior,
    logit_adjusted as logit_adjusted,
    mask_classes as mask_classes,
    nearest_center as nearest_center,
    post_hoc_adjusted as post_hoc_adjusted,
    tau_normalize as tau_normalize,
)
from zoo.functional.supervised import (
    balanced_contrast as balanced_contrast,
    disambiguate as disambiguate,
    distillation as distillation,
    move_prototypes as move_prototypes,
    paco as paco,
    sup_con as sup_con,
)
from zoo.functional.transform import (
    ema_update as ema_update,
    extrapolate as extrapolate,
    interpolate as interpolate,
    permute_filled as permute_filled,
    permute_within_classes as permute_within_classes,
    sample_beta as sample_beta,
)
