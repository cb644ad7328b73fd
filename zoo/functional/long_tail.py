"""Losses, weights and classifiers for classes of unequal size.

Class counts `[C]` may hold zeros: classes that a data set names and has no image of. No equation turns one
into inf or nan; what each does with it is said there.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.functional.precision import Counts, counted, full
from zoo.functional.supervised import log_prior

LOWEST_LOGIT = -6e4
"""The logit of a class that is never to be predicted: below what any classifier gives, and finite in fp16."""

MANY_ABOVE = 100
"""Training images of a class: Liu et al. 2019 (OLTR), https://arxiv.org/abs/1904.05160, as all since."""
FEW_BELOW = 20

Similarity = Literal["logit", "cosine", "euclidean"]


def frequency_groups(class_counts: Counts) -> dict[str, Tensor]:
    """Return which classes have many (> 100), medium (20 to 100) and few (< 20) training images, `[C]` bool.

    Args:
        class_counts: training images of each class `[C]`.
    """
    counts = counted(class_counts)
    many, few = counts > MANY_ABOVE, counts < FEW_BELOW
    return {"many": many, "medium": ~many & ~few, "few": few}


def logit_adjusted(
    logits: Tensor,
    labels: Tensor,
    class_counts: Counts,
    *,
    tau: float = 1.0,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross-entropy of `logits + tau log prior`; with tau = 1 it is `balanced_softmax`.

    Args:
        logits: class scores `[N, C]`.
        labels: classes `[N]`, or distributions over them `[N, C]`.
        class_counts: training images of each class `[C]`; one without any counts as `log_prior` says.
        tau: scale of the adjustment; 0 is plain cross-entropy.
        label_smoothing: torch's: this share of the target is spread over all C classes.

    Returns:
        The mean over the N samples, `[]`.

    Source: Menon et al. 2021, https://arxiv.org/abs/2007.07314, equation 10.
    """
    logits = full(logits)
    counts = counted(class_counts, logits.device)
    adjusted = logits + tau * log_prior(counts, dtype=logits.dtype)
    return F.cross_entropy(adjusted, labels, label_smoothing=label_smoothing)


def balanced_softmax(
    logits: Tensor, labels: Tensor, class_counts: Counts, *, label_smoothing: float = 0.0
) -> Tensor:
    """Cross-entropy of `logits + log prior`: a softmax classifier that expects balanced test classes.

    L_i = -sum_c t_ic log(n_c exp(z_ic) / sum_j n_j exp(z_ij)), where t_i has a 1 at the label, or is the
    distribution over classes of an image mixed from several.

    Args:
        logits: class scores z `[N, C]`.
        labels: classes `[N]`, or distributions over classes t `[N, C]`.
        class_counts: training images of each class `[C]`.
        label_smoothing: torch's: this share of the target is spread over all C classes.

    Returns:
        The mean over the N samples, `[]`.

    Source: Ren et al. 2020, https://arxiv.org/abs/2007.10740, equation 4.
    """
    return logit_adjusted(logits, labels, class_counts, label_smoothing=label_smoothing)


def post_hoc_adjusted(logits: Tensor, class_counts: Counts, *, tau: float = 1.0) -> Tensor:
    """Return `logits - tau log prior`: what a classifier of long-tailed data says of balanced ones.

    Args:
        logits: class scores `[..., C]`, or a linear classifier's bias `[C]`.
        class_counts: training images of each class `[C]`. One without any would gain most: see `never`.
        tau: scale of the adjustment.

    Source: https://arxiv.org/abs/2007.07314, equation 9.
    """
    logits = full(logits)
    counts = counted(class_counts, logits.device)
    return logits - tau * log_prior(counts, dtype=logits.dtype)


def ldam_margins(class_counts: Counts, *, max_margin: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the margin of each class `[C]`, C / n^(1/4), scaled so that the rarest class has `max_margin`.

    A class without images has none and sets no scale. They are computed in `dtype`.

    Source: Cao et al. 2019, https://arxiv.org/abs/1906.07413, section 3.
    """
    counts = counted(class_counts)
    present = counts > 0
    margins = counts.clamp(min=1).to(dtype) ** -0.25 * present
    return margins * (max_margin / margins.max())


def ldam(
    cosines: Tensor,
    labels: Tensor,
    class_counts: Counts,
    *,
    max_margin: float,
    scale: float,
    weight: Tensor | None = None,
) -> Tensor:
    """Cross-entropy of `scale (cosines - margin of the own class)`: rarer classes have to win by more.

    Args:
        cosines: between unit features and unit class weights `[N, C]`.
        labels: classes `[N]`.
        class_counts: training images of each class `[C]`.
        max_margin: of the rarest class.
        scale: s; without it cosines could not tell one class from the others in a softmax.
        weight: of each class `[C]`, e.g. `class_balanced_weights`; None: all alike.

    Returns:
        The mean over the N samples, weighted as torch's own cross-entropy does, `[]`.

    Source: https://arxiv.org/abs/1906.07413, section 3, with the scale of
    https://github.com/kaidic/LDAM-DRW (losses.py).
    """
    cosines = full(cosines)
    own = labels[:, None] == torch.arange(cosines.shape[1], device=labels.device)
    counts = counted(class_counts, cosines.device)
    margins = ldam_margins(counts, max_margin=max_margin, dtype=cosines.dtype)
    weight = None if weight is None else weight.to(cosines.dtype)
    return F.cross_entropy(scale * (cosines - own * margins), labels, weight=weight)


def class_balanced_weights(class_counts: Counts, *, beta: float) -> Tensor:
    """Return a weight for each class `[C]`: the inverse of its effective number of images, C together.

    The effective number of n images is (1 - beta^n) / (1 - beta): 1 for beta = 0, n as beta comes near 1. A
    class without images has weight 0, and those that have some sum up to their number.

    Source: Cui et al. 2019, https://arxiv.org/abs/1901.05555, proposition 1 and section 4; normalised as
    https://github.com/kaidic/LDAM-DRW (cifar_train.py) does.
    """
    counts = counted(class_counts)
    present = counts > 0
    effective = 1 - torch.as_tensor(beta, dtype=torch.float64) ** counts.clamp(min=1).double()
    weights = (1 - beta) / effective * present
    return (weights * (present.sum() / weights.sum())).float()


def tau_normalize(weight: Tensor, *, tau: float = 1.0) -> Tensor:
    """Divide each class's weight `[C, D]` by its norm to the power of tau; 0 leaves them, 1 makes them unit.

    The classifier goes without a bias. A weight of zero stays.

    Source: Kang et al. 2020, https://arxiv.org/abs/1910.09217, tau-normalised classifier;
    https://github.com/facebookresearch/classifier-balancing (tau_norm.py).
    """
    norm = weight.norm(dim=1, keepdim=True)
    return weight / torch.where(norm > 0, norm, 1) ** tau


def scale_classes(weight: Tensor, bias: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return the linear classifier `scale_c (w_c . x + b_c)`: weight `[C, D]`, bias `[C]` (LWS).

    Source: https://arxiv.org/abs/1910.09217, learnable weight scaling;
    https://github.com/facebookresearch/classifier-balancing, which scales the bias, too.
    """
    return weight * scale[:, None], bias * scale


def class_means(features: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Return the mean of each class's features `[C, D]`, given features `[N, D]` and labels `[N]`.

    A class without any has zeros.
    """
    features = full(features)
    sums = features.new_zeros(num_classes, features.shape[1]).index_add(0, labels, features)
    counts = torch.bincount(labels, minlength=num_classes).clamp(min=1)
    return sums / counts[:, None]


def nearest_center(centers: Tensor, bias: Tensor, similarity: Similarity) -> tuple[Tensor, Tensor]:
    """Return the linear classifier whose largest logit is that of the nearest center.

    `cosine`: c / |c|, no bias; the features' own norm changes no order. `euclidean`: -|x - c|^2 / 2 without
    the part that all classes share, hence c with the bias -|c|^2 / 2. `logit`: as it stands.

    Args:
        centers: `[C, D]`.
        bias: of the centers `[C]`, for `logit`.
        similarity: what nearest means.

    Returns:
        Weight `[C, D]` and bias `[C]`.

    Source: https://arxiv.org/abs/1910.09217, nearest class mean; with either similarity.
    """
    if similarity == "logit":
        return centers, bias
    if similarity == "cosine":
        return F.normalize(centers, dim=1), torch.zeros_like(bias)
    return centers, -centers.square().sum(dim=1) / 2


def never(weight: Tensor, bias: Tensor, absent: Tensor) -> tuple[Tensor, Tensor]:
    """Return the linear classifier `weight` `[C, D]`, `bias` `[C]` that never predicts the `absent` `[C]`.

    Their logit is `LOWEST_LOGIT` whatever the features are, and their probability 0.
    """
    return weight.masked_fill(absent[:, None], 0), bias.masked_fill(absent, LOWEST_LOGIT)
