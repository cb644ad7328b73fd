"""With what loss a recipe trains its class centers, as far as centers and features alone decide it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zoo.config import is_number
from zoo.functional import log_prior

_TORCHS = "classify"  # its label smoothing leaves the own class a part of the share, PaCo's does not
_CENTERS = ("paco", "gpaco")
_WITH_CONTRAST = "bcl"


class CenterLoss(NamedTuple):
    """Cross-entropy of `(logits + prior) / tau`, for an image of class y against `targets` `[C, C]`, row y.

    Attributes:
        prior: added to the centers' logits `[C]`, as in training.
        tau: temperature of the logits.
        targets: the distribution over classes of an image of each class.
        words: what it is.
    """

    prior: Tensor
    tau: float
    targets: Tensor
    words: str

    def error(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the gradient of each image's loss with respect to logits `[N, C]`, given labels `[N]`."""
        probability = ((logits + self.prior.to(logits)) / self.tau).softmax(dim=1)
        return (probability - self.targets.to(logits)[labels]) / self.tau


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
    if name in _CENTERS:
        return _of_paco(objective, class_counts)
    if name == _WITH_CONTRAST and objective.get("head") != "cosine":
        what = "cross-entropy beside the contrast"
        return _made(1.0, 1.0, torch.eye(len(class_counts)), class_counts, what)
    if name == _TORCHS:
        return _of_classifier(objective, class_counts)
    return f"the loss of the centers of objective {name} has no closed form in features and centers"


def _of_paco(objective: Mapping[str, Any], counts: Tensor) -> CenterLoss | str:
    rebalance, tau = objective.get("rebalance"), objective.get("center_tau")
    smoothing = objective.get("label_smoothing")
    if rebalance is None or not is_number(tau) or not is_number(smoothing):
        return "the loss that its centers were trained with is not recorded"
    others = (1 - torch.eye(len(counts))) * (smoothing / max(len(counts) - 1, 1))
    targets = (1 - smoothing) * torch.eye(len(counts)) + others
    what = "the softmax over its centers without the samples"
    return _made(1.0 if rebalance else 0.0, float(tau), targets, counts, what)


def _of_classifier(objective: Mapping[str, Any], counts: Tensor) -> CenterLoss | str:
    loss, smoothing = objective.get("loss"), objective.get("label_smoothing")
    settings = loss if isinstance(loss, Mapping) else {"name": loss}
    kind = str(settings.get("name"))
    adjusted = {"cross_entropy": 0.0, "balanced_softmax": 1.0, "logit_adjustment": settings.get("tau")}
    share = adjusted.get(kind)
    if is_number(share) and is_number(smoothing):
        spread = torch.full((len(counts), len(counts)), smoothing / len(counts))
        targets = (1 - smoothing) * torch.eye(len(counts)) + spread
        return _made(float(share), 1.0, targets, counts, "cross-entropy")
    if kind == "ldam":
        return "the loss ldam has a margin for each class, and no closed form in features and centers"
    return "the loss that its centers were trained with is not recorded"


def _made(share: float, tau: float, targets: Tensor, counts: Tensor, what: str) -> CenterLoss | str:
    if share == 0:
        return CenterLoss(torch.zeros(len(counts)), tau, targets, f"{what}, no prior")
    if int(counts.min()) < 0:
        return "the training images of each class, of which its loss has the prior, are not known"
    prior = share * log_prior(counts)
    return CenterLoss(prior, tau, targets, f"{what}, with {'' if share == 1 else f'{share:g} '}log prior")
