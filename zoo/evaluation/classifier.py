"""The classifier made of learned centers."""

from __future__ import annotations

from torch import Tensor

from zoo.evaluation._checks import check_features
from zoo.modules.centers import Centers


def center_logits(features: Tensor, centers: Centers) -> Tensor:
    """Return the logits `[N, C]` of pooled, unnormalised `features` `[N, D]`; their argmax is the class.

    As PaCo's authors infer: the linear layer without the class prior (arXiv 2107.12028, section 3).

    Raises:
        DataError: when the features are not finite or have another dimension than the centers.
    """
    check_features(features, "features", dim=centers.weight.shape[1])
    weight = centers.weight.to(features)
    return features @ weight.T + centers.bias.to(features)
