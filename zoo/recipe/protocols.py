"""The recipe's key `evaluation`: protocols, with all settings that affect the result."""

from __future__ import annotations

from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from zoo.config import Config, named_by
from zoo.data import ops
from zoo.data.config import Seed as DataSeed
from zoo.recipe import sections as s

Depths = Annotated[list[ops.PositiveInt], Field(min_length=1)]
Tau = Annotated[float, Field(gt=0, le=1000)]


class TrainedSettings(Config):
    """Training for `linear_full` and `semi_supervised`: SGD, and views as in MoCo's `main_lincls.py`."""

    scale: ops.ShareRange = Field([0.08, 1.0], description="Area of the crop as a share of the image's.")
    ratio: ops.PositiveRange = Field([3 / 4, 4 / 3], description="Aspect ratio of the crop, width / height.")
    interpolation: ops.Interpolation = Field("bilinear", description="Interpolation for resizing the crop.")
    flip: ops.Probability = Field(0.5, description="Probability of a horizontal flip.")
    backend: Literal["auto", "tensor", "stream"] = Field("auto", description="See `views.backend`.")
    batch_size: s.PositiveInt = Field(256, description="Images per update.")
    momentum: s.Momentum = Field(0.9, description="SGD's momentum; Nesterov's in `semi_supervised`.")
    weight_decay: s.NonNegative = Field(0.0, description="SGD's weight decay, on weights and biases.")
    precision: s.Precision = Field("fp32", description="See `training.precision`.")
    channels_last: bool = Field(False, description="See `training.channels_last`.")

    def view(self, size: int) -> list[ops.Op]:
        """Return the operations of a view of `size` pixels."""
        crop = {"size": size, "scale": self.scale, "ratio": self.ratio, "interpolation": self.interpolation}
        return [ops.RandomResizedCrop.model_validate(crop), ops.HorizontalFlip(p=self.flip)]


class LinearProtocol(Config):
    """Linear probe on cached features; cross-validation on the training set chooses the L2 penalty."""

    protocol: Literal["linear"]
    l2_grid: list[s.Positive] = Field([1e-5, 1e-4, 1e-3, 1e-2, 1e-1], description="l2 in l2 / 2 |W|^2.")
    folds: Annotated[int, Field(ge=2)] = Field(5, description="Number of cross-validation folds.")
    select: Literal["accuracy", "balanced_accuracy"] = "balanced_accuracy"
    """The held-out cross-entropy, which chooses, weights images equally (`accuracy`) or classes equally."""
    balanced: bool = Field(False, description="Weight classes inversely to their counts.")
    seed: s.Natural = Field(0, description="Seed of the folds.")


class LinearFullProtocol(TrainedSettings):
    """The published linear evaluation: a linear layer on the frozen encoder, trained on augmented images.

    Defaults are MoCo's for ResNet-50 on ImageNet (arXiv 1911.05722, section 4.1; their main_lincls.py).
    BatchNorm is in evaluation mode; the last epoch counts.
    """

    protocol: Literal["linear_full"]
    epochs: s.PositiveInt = Field(100, description="Passes over the training images.")
    lr: s.NonNegative = Field(30.0, description="Used as given: never scaled by the batch size.")
    milestones: s.Milestones = Field([60, 80], description="Epochs after which the learning rate falls.")
    decay_rate: s.NonNegative = Field(0.1, description="Factor of the rate at each milestone.")
    init_std: s.NonNegative = Field(0.01, description="Standard deviation of the layer's initial weights.")
    seed: s.Natural = Field(0, description="Seed of initial weights, order and augmentation.")

    @model_validator(mode="after")
    def _falls_while_it_trains(self) -> Self:
        if max(self.milestones, default=0) >= self.epochs:
            raise ValueError(f"milestones: found {self.milestones}, expected less than epochs, {self.epochs}")
        return self


class KNNProtocol(Config):
    """Weighted nearest neighbours by cosine similarity, votes exp(s / tau)."""

    protocol: Literal["knn"]
    k: s.PositiveInt = Field(20, description="Number of neighbours that vote.")
    tau: s.Positive = Field(0.07, description="Temperature of the votes.")


class FewShotProtocol(Config):
    """A classifier on the features of `shots` training images of each class, repeated for `draws` draws."""

    protocol: Literal["few_shot"]
    shots: s.PositiveInt = Field(5, description="Training images per class.")
    draws: Annotated[int, Field(ge=2)] = Field(5, description="Number of draws; an interval needs two.")
    classifier: Literal["linear", "mean"] = "linear"
    """Logistic regression, or the nearest class mean of unit features (SimpleShot, arXiv 1911.04623)."""
    l2: s.Positive = Field(0.01, description="L2 penalty of `linear` on standardised features.")
    seed: s.Natural = Field(0, description="Seed of the draws.")


class SemiSupervisedProtocol(TrainedSettings):
    """Fine-tuning of the whole network on a few labelled training images.

    Defaults are SimCLR's (arXiv 2002.05709, section 4.4, appendix B.5): Nesterov momentum, lr 0.05 x batch /
    256, a cosine to zero, but batches of 256. The last epoch counts. Images are drawn as by `data.subset`.
    """

    protocol: Literal["semi_supervised"]
    fraction: ops.Share = Field(0.1, description="Share of each class's training images; at least one.")
    epochs: s.PositiveInt = Field(30, description="The authors use 60 for a fraction of 0.01.")
    lr: s.NonNegative = Field(0.05, description="Used as given: never scaled by the batch size.")
    init_std: s.NonNegative = Field(0.0, description="Standard deviation of the layer's initial weights.")
    seed: DataSeed = Field(0, description="Seed of labels, initial weights, order and augmentation.")


class RetrievalProtocol(Config):
    """Retrieve images of the same class by cosine similarity; exact, and independent of the data's order."""

    protocol: Literal["retrieval"]
    k: Depths = Field([1, 2, 4, 8], description="Recall@k: a hit among the k nearest.")
    gallery: Literal["test", "train"] = Field("test", description="Where to search.")


class ClassifierProtocol(Config):
    """The classifier made of the learned centers, unchanged or with the training set's prior subtracted."""

    protocol: Literal["classifier"]
    tau: Tau | None = Field(None, description="Factor of the log prior (2007.07314, equation 9).")
    ensemble: Depths | None = Field(None, description="Input sizes; averages features, mirrored too.")


_OnFeatures = LinearProtocol | KNNProtocol | FewShotProtocol | RetrievalProtocol | ClassifierProtocol
_Any = _OnFeatures | LinearFullProtocol | SemiSupervisedProtocol
Protocol = Annotated[_Any, Field(discriminator="protocol"), named_by("protocol")]
PROTOCOLS: dict[str, type[Config]] = {
    get_args(each.model_fields["protocol"].annotation)[0]: each for each in get_args(_Any)
}
TRAINED = ("linear_full", "semi_supervised")
"""Protocols that train with the common loop: they keep their state and can be stopped and resumed."""
