"""The classifier made of learned centers, and the one that a model ends in."""

from __future__ import annotations

from torch import Tensor

from zoo.functional.checks import check_features
from zoo.modules.centers import Centers


class OwnClassifier:
    """Takes the centers' place for a model that ends in a classifier: what it makes of images are logits."""


def own_logits(outputs: Tensor, num_classes: int) -> Tensor:
    """Return what a model with a classifier of its own made of images `[N, C]`, made sure of.

    Raises:
        DataError: when the logits are not finite or of other classes.
    """
    check_features(outputs, "logits", dim=num_classes)
    return outputs


def center_logits(features: Tensor, centers: Centers) -> Tensor:
    """Return the logits `[N, C]` of pooled, unnormalised `features` `[N, D]`; their argmax is the class.

    As PaCo's authors infer: the linear layer without the class prior (arXiv 2107.12028, section 3).

    Raises:
        DataError: when the features are not finite or have another dimension than the centers.
    """
    check_features(features, "features", dim=centers.weight.shape[1])
    weight = centers.weight.to(features)
    return features @ weight.T + centers.bias.to(features)
