"""The recipe's key `method`: how to learn from a long tail, by one or two plain trainings and a last step."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from zoo.config import Config, named_by
from zoo.recipe.sections import Momentum, NonNegative, Positive, PositiveInt, Unit


class CrossEntropy(Config):
    """Plain cross-entropy."""

    name: Literal["cross_entropy"]


class BalancedSoftmax(Config):
    """Cross-entropy of logits + log prior (Ren et al. 2020)."""

    name: Literal["balanced_softmax"]


class LogitAdjustment(Config):
    """Cross-entropy of logits + tau log prior (Menon et al. 2021, eq. 10)."""

    name: Literal["logit_adjustment"]
    tau: NonNegative = Field(1.0, description="Factor of the log prior; 1 is Balanced Softmax.")


class PostHocLogitAdjustment(Config):
    """Cross-entropy; then logits - tau log prior (Menon et al. 2021, eq. 9)."""

    name: Literal["post_hoc_logit_adjustment"]
    tau: NonNegative = Field(1.0, description="Factor of the log prior that is subtracted.")


class ClassBalancedSampling(Config):
    """Cross-entropy on batches in which every class is as likely."""

    name: Literal["class_balanced_sampling"]


class SecondStage(Config):
    """A second training of the classifier alone, by SGD with a cosine to zero on class-balanced batches.

    The encoder is in evaluation mode; in the authors' code (run_networks.py) BatchNorm's statistics go on
    following the batches. They have lr 0.2 for 512 images, 10 epochs for cRT and 5 for LWS (ImageNet-LT).
    """

    epochs: PositiveInt = Field(10, description="Of the second training.")
    lr: NonNegative = Field(0.1, description="Used as given, at every batch size.")
    momentum: Momentum = Field(0.9, description="Of its SGD.")
    weight_decay: NonNegative = Field(0.0005, description="Of its SGD: L2 in the gradient.")


class ClassifierRetraining(SecondStage):
    """cRT: cross-entropy; then a new classifier on the frozen encoder (Kang et al. 2020)."""

    name: Literal["crt"]


class LearnableWeightScaling(SecondStage):
    """LWS: cross-entropy; then one learned factor for each class's logit (Kang et al. 2020)."""

    name: Literal["lws"]


class TauNormalized(Config):
    """Cross-entropy; then each class's weight divided by its norm^tau, no bias (Kang et al. 2020)."""

    name: Literal["tau_normalized"]
    tau: NonNegative = Field(1.0, description="Exponent: 0 leaves the weights, 1 makes all norms the same.")


class LDAMDRW(Config):
    """Label-distribution-aware margins, classes reweighted late in training (Cao et al. 2019)."""

    name: Literal["ldam_drw"]
    max_margin: NonNegative = Field(0.5, description="Of the rarest class, in units of the cosine.")
    scale: Positive = Field(30.0, description="Factor of the cosines in the softmax.")
    reweight_from: Unit = Field(0.8, description="Share of the training after which classes are reweighted.")
    beta: Momentum = Field(
        0.9999, description="Of the effective number of images, (1 - beta^n) / (1 - beta)."
    )


class FromCenters(Config):
    """The head starts as the learned centers of `init`; cross-entropy, or Balanced Softmax with the prior."""

    name: Literal["from_centers"]
    prior: bool = Field(description="Add the log class prior to the logits in training (Balanced Softmax).")


class NearestCenter(Config):
    """No training: the nearest of the learned centers of `init`, or of the class means of its features."""

    name: Literal["nearest_center"]
    centers: Literal["learned", "means"] = Field(
        description="Of `init`, or of the training images' features."
    )
    similarity: Literal["logit", "cosine", "euclidean"] = Field(description="`logit`: of learned centers.")


_Plain = CrossEntropy | BalancedSoftmax | LogitAdjustment | PostHocLogitAdjustment | ClassBalancedSampling
_Other = ClassifierRetraining | TauNormalized | LearnableWeightScaling | LDAMDRW | FromCenters | NearestCenter
Method = Annotated[_Plain | _Other, Field(discriminator="name"), named_by("name")]


def balances(method: Method | None) -> bool:
    """Whether the first training's classifier counts classes alike, not images as they come."""
    if isinstance(method, FromCenters):
        return method.prior
    return isinstance(method, BalancedSoftmax | LogitAdjustment | ClassBalancedSampling)
