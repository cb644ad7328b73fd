"""The last touch of a method: from what was trained to the linear classifier that is released."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from zoo import functional
from zoo.modules import Centers
from zoo.recipe.methods import LDAMDRW, Method, NearestCenter, PostHocLogitAdjustment, TauNormalized

Features = Callable[[], tuple[Tensor, Tensor]]
"""Returns pooled features `[N, D_f]` of the training images, and their classes `[N]`."""


def close(method: Method, learned: Centers, train: Features) -> Centers:
    """Return the classifier of a method, linear in the pooled features.

    A class without training images is never predicted, by whichever method, but for learned centers that are
    taken as they are: what they were learned of may have had some.

    Args:
        method: the recipe's.
        learned: the classifier that the last stage, or `init`, has left.
        train: asked only where features are needed.
    """
    weight, bias, counts = learned.weight, learned.bias, learned.class_counts
    absent = counts == 0
    if isinstance(method, TauNormalized):
        weight, bias = functional.tau_normalize(weight, tau=method.tau), torch.zeros_like(bias)
    elif isinstance(method, PostHocLogitAdjustment):
        bias = functional.post_hoc_adjusted(bias, counts, tau=method.tau)
    elif isinstance(method, LDAMDRW):
        # over the usual norm of features: logits come near those of the cosines that it was trained by
        weight = weight / train()[0].norm(dim=1).mean().to(weight)
    elif isinstance(method, NearestCenter):
        if method.centers == "means":
            features, labels = train()
            weight = functional.class_means(features, labels, len(weight)).to(weight)
        else:
            absent = torch.zeros_like(absent)
        weight, bias = functional.nearest_center(weight, bias, method.similarity)
    weight, bias = functional.mask_classes(weight, bias, absent)
    return learned._replace(weight=weight, bias=bias)
