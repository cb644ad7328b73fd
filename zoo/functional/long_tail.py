"""Losses, class weights and classifiers for imbalanced classes, some of which may have no images."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.errors import ArgumentError
from zoo.functional.checks import Counts, check_classes, check_counts, check_positive, check_range, to_float32

LOWEST_LOGIT = -6e4
"""Logit of a class that must never be predicted: below any classifier's output, and finite in fp16."""

MANY_ABOVE, FEW_BELOW = 100, 20
"""In training images per class: Liu et al. 2019 (OLTR), https://arxiv.org/abs/1904.05160; standard since."""


def frequency_groups(class_counts: Counts) -> dict[str, Tensor]:
    """Return masks `[C]`, bool, of classes with many (> 100), medium (20-100), few (< 20) training images."""
    counts = torch.as_tensor(class_counts)
    many, few = counts > MANY_ABOVE, counts < FEW_BELOW
    return {"many": many, "medium": ~many & ~few, "few": few}


def log_prior(class_counts: Counts, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return log class frequencies `[C]` from training counts `[C]`, in `dtype`; log 1e-9 for an empty class.

    The 1e-9 is from PaCo's code: an empty class must not put -inf into a softmax.
    """
    counts = check_counts(class_counts)
    share = counts.to(dtype) / counts.sum()
    return torch.where(counts > 0, share, 1e-9).log()


def logit_adjusted(
    logits: Tensor, labels: Tensor, class_counts: Counts, *, tau: float = 1.0, label_smoothing: float = 0.0
) -> Tensor:
    """Cross-entropy of `logits + tau log prior`: tau 1 is `balanced_softmax`, 0 plain cross-entropy.
    Shapes as in `balanced_softmax`. Source: Menon et al. 2021, https://arxiv.org/abs/2007.07314, equation 10.
    """
    check_range(0, tau=tau)
    logits = to_float32(logits)
    counts = check_counts(class_counts, logits.shape[1], device=logits.device)
    check_classes(labels, len(counts))
    adjusted = logits + tau * log_prior(counts, dtype=logits.dtype)
    return F.cross_entropy(adjusted, labels, label_smoothing=label_smoothing)


def balanced_softmax(
    logits: Tensor, labels: Tensor, class_counts: Counts, *, label_smoothing: float = 0.0
) -> Tensor:
    """Cross-entropy of `logits + log prior`: a softmax classifier that expects balanced test classes.

    L_i = -sum_c t_ic log(n_c exp(z_ic) / sum_j n_j exp(z_ij)) for logits z `[N, C]` and counts n `[C]`;
    `labels` are class indices `[N]`, with one-hot t, or distributions over classes t `[N, C]`.
    Source: Ren et al. 2020, https://arxiv.org/abs/2007.10740, equation 4.
    """
    return logit_adjusted(logits, labels, class_counts, label_smoothing=label_smoothing)


def post_hoc_adjusted(logits: Tensor, class_counts: Counts, *, tau: float = 1.0) -> Tensor:
    """Return `logits - tau log prior`: adapts a classifier of long-tailed data to balanced test classes.
    `logits` are class scores `[..., C]`, or a linear classifier's bias `[C]`. A class without images would
    gain most: see `mask_classes`. Source: https://arxiv.org/abs/2007.07314, equation 9.
    """
    logits = to_float32(logits)
    counts = check_counts(class_counts, logits.shape[-1], device=logits.device)
    return logits - tau * log_prior(counts, dtype=logits.dtype)


def ldam(
    cosines: Tensor,
    labels: Tensor,
    class_counts: Counts,
    *,
    max_margin: float,
    scale: float,
    weight: Tensor | None = None,
) -> Tensor:
    """Cross-entropy of `scale (cosines - margin of the target class)`: rarer classes must win by more.

    The margin of a class of n images is proportional to n^(-1/4), `max_margin` for the rarest class, 0 for a
    class without images. `cosines` `[N, C]` are between unit features and unit class weights; `weight` `[C]`
    is the class weight of torch's cross-entropy.
    Source: Cao et al. 2019, https://arxiv.org/abs/1906.07413, section 3; the scale: kaidic/LDAM-DRW.
    """
    check_range(0, max_margin=max_margin)
    check_positive(scale=scale)
    cosines = to_float32(cosines)
    counts = check_counts(class_counts, cosines.shape[1], device=cosines.device)
    check_classes(labels, len(counts))
    margins = counts.clamp(min=1).to(cosines.dtype) ** -0.25 * (counts > 0)
    margins = margins * (max_margin / margins.max())
    own = labels[:, None] == torch.arange(len(counts), device=labels.device)
    weight = None if weight is None else weight.to(cosines.dtype)
    return F.cross_entropy(scale * (cosines - own * margins), labels, weight=weight)


def class_balanced_weights(class_counts: Counts, *, beta: float) -> Tensor:
    """Return class weights `[C]`, the inverse of each class's effective number of images.

    The effective number of n images is (1 - beta^n) / (1 - beta). A class without images has weight 0; the
    weights of the others have mean 1.
    Source: Cui et al. 2019, https://arxiv.org/abs/1901.05555, proposition 1; normalised as kaidic/LDAM-DRW.
    """
    if not 0 <= beta < 1:
        raise ArgumentError(f"beta: found {beta}, expected a number from 0 to below 1")
    counts = check_counts(class_counts)
    present = counts > 0
    effective = 1 - torch.as_tensor(beta, dtype=torch.float64) ** counts.clamp(min=1).double()
    weights = (1 - beta) / effective * present
    return (weights * (present.sum() / weights.sum())).float()


def tau_normalize(weight: Tensor, *, tau: float = 1.0) -> Tensor:
    """Divide each class's weight vector in `[C, D]` by its norm to the power of tau; zero vectors stay zero.
    The classifier has no bias. Source: Kang et al. 2020, https://arxiv.org/abs/1910.09217.
    """
    norm = weight.norm(dim=1, keepdim=True)
    return weight / torch.where(norm > 0, norm, 1) ** tau


def class_means(features: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Return class means `[C, D]` of features `[N, D]` with labels `[N]`; zeros for a class without any."""
    features = to_float32(features)
    check_classes(labels, num_classes)
    sums = features.new_zeros(num_classes, features.shape[1]).index_add(0, labels, features)
    return sums / torch.bincount(labels, minlength=num_classes).clamp(min=1)[:, None]


def nearest_center(
    centers: Tensor, bias: Tensor, similarity: Literal["logit", "cosine", "euclidean"]
) -> tuple[Tensor, Tensor]:
    """Return the linear classifier, `[C, D]` and `[C]`, that predicts the class of the nearest center.

    `cosine`: c / |c|, no bias; a feature's norm does not change the ranking. `euclidean`: -|x - c|^2 / 2
    without the term shared by all classes, hence c with bias -|c|^2 / 2. `logit`: centers and bias unchanged.
    Source: https://arxiv.org/abs/1910.09217, nearest class mean.
    """
    if similarity == "logit":
        return centers, bias
    if similarity == "cosine":
        return F.normalize(centers, dim=1), torch.zeros_like(bias)
    return centers, -centers.square().sum(dim=1) / 2


def mask_classes(weight: Tensor, bias: Tensor, absent: Tensor) -> tuple[Tensor, Tensor]:
    """Return weight `[C, D]` and bias `[C]` that give the `absent` classes `[C]` the logit `LOWEST_LOGIT`."""
    return weight.masked_fill(absent[:, None], 0), bias.masked_fill(absent, LOWEST_LOGIT)
