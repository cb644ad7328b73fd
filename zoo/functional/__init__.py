"""Every equation once, in pure torch.

Arguments that mean the same everywhere:

- `q` `[N, D]`: anchors, unit rows; `k` `[N, D]`: the second view's keys, row i the positive of q's row i.
- `labels` `[N]`: classes, int64.
- `queue` `[K, D]`: earlier keys; `valid` `[K]`, bool: which slots are filled, all when None; `queue_labels`
  `[K]`: classes, -1 in slots that are empty or unlabelled: losses that read it leave those out.
- `tau`: temperature, above 0; a tensor `[]`, as a learned one is, gets a gradient.
- `others`: rows that other ranks have of this step `[M, D]`, with gradient; where labels are read, both
  views' rows and their classes `[M]`.
- `logits` `[N, C]`: class scores; `class_counts` `[C]`: training images of each class, a tensor or plain
  numbers, of which some may be 0.
- `label_smoothing`: as in torch, this share of the target is spread over all C classes.

Losses are means over the anchors `[]`, computed in float32 or better whatever the precision of the inputs,
and differentiable in every floating-point argument. `ArgumentError` names an argument that is out of range.
"""

# isort: skip_file
from zoo.functional.contrastive import (
    hard_contrastive as hard_contrastive,
    hard_simple as hard_simple,
    in_batch_info_nce as in_batch_info_nce,
    info_nce as info_nce,
    margin_contrastive as margin_contrastive,
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
