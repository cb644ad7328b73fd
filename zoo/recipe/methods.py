"""Ways to learn from a long tail, by one key: each stands for one or two plain trainings and a last touch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from zoo.config import Config, named_by
from zoo.recipe.sections import NonNegative, PositiveInt


class CrossEntropy(Config):
    """Plain cross-entropy."""

    name: Literal["cross_entropy"]


class BalancedSoftmax(Config):
    """Cross-entropy of logits + log prior (Ren et al. 2020)."""

    name: Literal["balanced_softmax"]


class LogitAdjustment(Config):
    """Cross-entropy of logits + tau log prior (Menon et al. 2021, eq. 10)."""

    name: Literal["logit_adjustment"]
    tau: NonNegative = 1.0
    """Factor of the log prior; 1 is Balanced Softmax."""


class PostHocLogitAdjustment(Config):
    """Cross-entropy; then logits - tau log prior (Menon et al. 2021, eq. 9)."""

    name: Literal["post_hoc_logit_adjustment"]
    tau: NonNegative = 1.0
    """Factor of the log prior that is taken off."""


class ClassBalancedSampling(Config):
    """Cross-entropy on batches in which every class is as likely."""

    name: Literal["class_balanced_sampling"]


class SecondStage(Config):
    """A second, short training of the classifier alone on class-balanced batches: SGD with a cosine to zero.

    So whatever optimizer the encoder was trained with. The authors have lr 0.2 for 512 images, momentum and
    weight decay as here, 10 epochs for cRT and 5 for LWS (ImageNet-LT).

    The encoder is in evaluation mode and stays as it is. In the authors' code (run_networks.py) its
    parameters are fixed, too, but BatchNorm is in training mode: it follows the class-balanced batches.
    """

    epochs: PositiveInt = 10
    """Of the second training."""
    lr: NonNegative = 0.1
    """Used as given, at every batch size."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Of its SGD."""
    weight_decay: NonNegative = 0.0005
    """Of its SGD: L2 in the gradient."""


class ClassifierRetraining(SecondStage):
    """cRT: cross-entropy; then a new classifier on the frozen encoder (Kang et al. 2020)."""

    name: Literal["crt"]


class TauNormalized(Config):
    """Cross-entropy; then each class's weight divided by its norm^tau, no bias (Kang et al. 2020)."""

    name: Literal["tau_normalized"]
    tau: NonNegative = 1.0
    """Exponent of the norm: 0 leaves the weights, 1 gives all classes the same norm."""


class LearnableWeightScaling(SecondStage):
    """LWS: cross-entropy; then one learned factor for each class's logit (Kang et al. 2020)."""

    name: Literal["lws"]


class LDAMDRW(Config):
    """Label-distribution-aware margins, classes reweighted late in training (Cao et al. 2019)."""

    name: Literal["ldam_drw"]
    max_margin: NonNegative = 0.5
    """Of the rarest class, in units of the cosine."""
    scale: Annotated[float, Field(gt=0)] = 30.0
    """Factor of the cosines in the softmax."""
    reweight_from: Annotated[float, Field(ge=0, le=1)] = 0.8
    """Share of the training after which classes are weighted by their effective numbers."""
    beta: Annotated[float, Field(ge=0, lt=1)] = 0.9999
    """Of the effective number of images, (1 - beta^n) / (1 - beta)."""


class FromCenters(Config):
    """The head starts as the learned centers of `init`; cross-entropy, or Balanced Softmax with the prior."""

    name: Literal["from_centers"]
    prior: bool
    """Add the log class prior to the logits in training (Balanced Softmax)."""


class NearestCenter(Config):
    """No training: the nearest of the learned centers of `init`, or of the class means of its features."""

    name: Literal["nearest_center"]
    centers: Literal["learned", "means"]
    """`learned`: those of `init`; `means`: of the training images' features."""
    similarity: Literal["logit", "cosine", "euclidean"]
    """`logit`: weight . x + bias, of learned centers alone."""


Method = Annotated[
    CrossEntropy
    | BalancedSoftmax
    | LogitAdjustment
    | PostHocLogitAdjustment
    | ClassBalancedSampling
    | ClassifierRetraining
    | TauNormalized
    | LearnableWeightScaling
    | LDAMDRW
    | FromCenters
    | NearestCenter,
    Field(discriminator="name"),
    named_by("name"),
]
"""The recipe's key `method`."""


def balances(method: Method | None) -> bool:
    """Whether the first stage's classifier is trained for classes alike, not for images as they come."""
    if isinstance(method, FromCenters):
        return method.prior
    return isinstance(method, BalancedSoftmax | LogitAdjustment | ClassBalancedSampling)
