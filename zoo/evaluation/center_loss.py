"""With what prior and temperature a recipe trains its class centers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zoo.config import is_number
from zoo.functional import log_prior

_UNRECORDED = "the loss that its centers were trained with is not recorded"


class CenterLoss(NamedTuple):
    """Cross-entropy of `(logits + prior) / tau`.

    Attributes:
        prior: added to the centers' logits `[C]`, as in training.
        tau: temperature of the logits.
        words: what it is.
    """

    prior: Tensor
    tau: float
    words: str


def center_loss(recipe: Mapping[str, Any], class_counts: Tensor) -> CenterLoss | str:
    """Return the loss of a recipe's centers, or why there is none in closed form.

    PaCo's and GPaCo's is the centers' own part of it: the softmax without the samples, which depend on the
    queue. So is BCL's: the classifier's loss, in its own scale, without the contrast of its rows.

    Args:
        recipe: as plain values.
        class_counts: training images of each class `[C]`; -1 where not known.
    """
    objective = recipe.get("objective")
    objective = objective if isinstance(objective, Mapping) else {}
    name = objective.get("name")
    if isinstance(recipe.get("method"), Mapping):
        return f"its centers are made by the method {recipe['method'].get('name')}, in more than one training"
    if name in ("paco", "gpaco"):
        rebalance, tau = objective.get("rebalance"), objective.get("center_tau")
        if rebalance is None or not is_number(tau):
            return _UNRECORDED
        what = "the softmax over its centers without the samples"
        return _made(float(bool(rebalance)), float(tau), class_counts, what)
    if name == "bcl" and objective.get("head") != "cosine":
        return _made(1.0, 1.0, class_counts, "cross-entropy beside the contrast")
    if name == "classify":
        loss = objective.get("loss")
        settings = loss if isinstance(loss, Mapping) else {"name": loss}
        kind = str(settings.get("name"))
        adjusted = {"cross_entropy": 0.0, "balanced_softmax": 1.0, "logit_adjustment": settings.get("tau")}
        share = adjusted.get(kind)
        if is_number(share):
            return _made(float(share), 1.0, class_counts, "cross-entropy")
        if kind == "ldam":
            return "the loss ldam has a margin for each class, and no closed form in features and centers"
        return _UNRECORDED
    return f"the loss of the centers of objective {name} has no closed form in features and centers"


def _made(share: float, tau: float, counts: Tensor, what: str) -> CenterLoss | str:
    if share == 0:
        return CenterLoss(torch.zeros(len(counts)), tau, f"{what}, no prior")
    if int(counts.min()) < 0:
        return "the training images of each class, of which its loss has the prior, are not known"
    amount = "" if share == 1 else f"{share:g} "
    return CenterLoss(share * log_prior(counts), tau, f"{what}, with {amount}log prior")
