"""The library's equations as pure torch functions.

Arguments with the same meaning everywhere:

- `q` `[N, D]`: anchors, unit-norm rows; `k` `[N, D]`: the second view's keys, row i is anchor i's positive.
- `labels` `[N]`: class indices, int64.
- `queue` `[K, D]`: earlier keys; `valid` `[K]`, bool: filled slots, None for all; `queue_labels` `[K]`: class
  indices, -1 for empty or unlabelled slots, which supervised losses ignore.
- `tau`: temperature, above 0; a tensor `[]`, such as a learned temperature, receives a gradient.
- `others`: this step's rows from the other ranks `[M, D]`, with gradient; for supervised losses, a tuple of
  both views' rows and their class indices `[M]`.
- `logits` `[N, C]`: class scores; `class_counts` `[C]`: training images per class, a tensor or a sequence of
  numbers, some of which may be 0.
- `label_smoothing`: as in torch, the share of the target that is spread over all C classes.

Losses are scalar means over the anchors, computed in float32 or float64 whatever the precision of the inputs,
and differentiable in every floating-point argument. `ArgumentError` names an invalid argument.
"""

# ruff: noqa: F401
# isort: skip_file
from zoo.functional.contrastive import hard_contrastive, hard_simple, in_batch_info_nce, info_nce
from zoo.functional.contrastive import margin_contrastive, simple_contrastive
from zoo.functional.diagnostics import Probabilities, alignment, contrast_probabilities
from zoo.functional.diagnostics import knn_predict, paco_optimum, tolerance, uniformity
from zoo.functional.long_tail import FEW_BELOW, LOWEST_LOGIT, MANY_ABOVE, balanced_softmax
from zoo.functional.long_tail import class_balanced_weights, class_means, frequency_groups, ldam, log_prior
from zoo.functional.long_tail import logit_adjusted, mask_classes, nearest_center, post_hoc_adjusted
from zoo.functional.long_tail import tau_normalize
from zoo.functional.supervised import balanced_contrast, disambiguate, distillation, move_prototypes
from zoo.functional.supervised import paco, sup_con
from zoo.functional.transform import ema_update, extrapolate, interpolate, permute_filled
from zoo.functional.transform import permute_within_classes, sample_beta
