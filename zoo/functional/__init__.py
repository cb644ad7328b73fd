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

# ruff: noqa: F401
# isort: skip_file
from zoo.functional.contrastive import hard_contrastive, hard_simple, in_batch_info_nce, info_nce
from zoo.functional.contrastive import margin_contrastive, simple_contrastive
from zoo.functional.diagnostics import KnnPrediction, Probabilities, alignment, contrast_probabilities
from zoo.functional.diagnostics import knn_predict, paco_optimum, tolerance, uniformity
from zoo.functional.long_tail import FEW_BELOW, LOWEST_LOGIT, MANY_ABOVE, balanced_softmax
from zoo.functional.long_tail import class_balanced_weights, class_means, frequency_groups, ldam, log_prior
from zoo.functional.long_tail import logit_adjusted, mask_classes, nearest_center, post_hoc_adjusted
from zoo.functional.long_tail import tau_normalize
from zoo.functional.supervised import balanced_contrast, disambiguate, distillation, move_prototypes
from zoo.functional.supervised import paco, sup_con
from zoo.functional.transform import ema_update, extrapolate, interpolate, permute_filled
from zoo.functional.transform import permute_within_classes, sample_beta
