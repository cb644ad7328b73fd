"""Protocols of the recipe's `evaluation:` section: what is measured, and all settings that decide the figure.

`linear`, `knn`, `few_shot`, `retrieval` and `classifier` read features that are computed once.
`linear_full` and `semi_supervised` train on augmented images, as published; their figures are those that are
compared with papers.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import Field, PositiveFloat, model_validator

from zoo.config import Config, named_by
from zoo.data.config import Seed as DataSeed
from zoo.data.ops import HorizontalFlip, Interpolation, Op, PositiveRange, Probability, RandomResizedCrop
from zoo.recipe.sections import Milestones, NonNegative, PositiveInt, Precision

Seed = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]


class Trained(Config):
    """How `linear_full` and `semi_supervised` train: views as in MoCo's `main_lincls.py`, SGD, precision."""

    scale: PositiveRange = [0.08, 1.0]
    """Area of the crop as a share of the image's."""
    ratio: PositiveRange = [3 / 4, 4 / 3]
    """Width of the crop over its height."""
    interpolation: Interpolation = "bilinear"
    """Of the crop's resizing."""
    flip: Probability = 0.5
    """Probability of mirroring left to right."""
    backend: Literal["auto", "tensor", "stream", "torchvision"] = "auto"
    """See the recipe's `views.backend`; auto: tensor where images are equally large and fit into memory."""

    batch_size: PositiveInt = 256
    """Images of one update. Of `semi_supervised` the rest of an epoch that is no whole batch is left out,
    where there is a whole one."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Of SGD; of `semi_supervised` Nesterov's."""
    weight_decay: NonNegative = 0.0
    """L2 of SGD, on weights and biases."""
    precision: Precision = "fp32"
    """See the recipe's `training.precision`."""
    channels_last: bool = False
    """See the recipe's `training.channels_last`."""

    @model_validator(mode="after")
    def _within_image(self) -> Trained:
        if self.scale[1] > 1:
            raise ValueError(f"scale: found {self.scale}, expected shares of the image's area, at most 1")
        return self

    def view(self, size: int) -> list[Op]:
        """Return the operations of a view of `size` pixels."""
        crop = RandomResizedCrop(
            size=size, scale=self.scale, ratio=self.ratio, interpolation=self.interpolation
        )
        return [crop, HorizontalFlip(p=self.flip)]


class LinearProtocol(Config):
    """Linear probe on cached features; cross-validation over the training set chooses its L2 strength."""

    protocol: Literal["linear"]
    l2_grid: Annotated[list[Positive], Field(min_length=1)] = [1e-5, 1e-4, 1e-3, 1e-2, 1e-1]
    """Penalties that are tried: mean cross-entropy + l2 / 2 |W|^2 on standardised features."""
    validation_fraction: Annotated[float, Field(gt=0, le=0.5)] = 0.2
    """Part of each class that is held out at a time: 0.2 are five folds, in which every image is once."""
    select: Literal["accuracy", "balanced_accuracy"] = "balanced_accuracy"
    """Whether in the cross-entropy of held-out images, which chooses, images count alike or classes do."""
    balanced: bool = False
    """Weight classes inversely to their counts."""
    solver: Literal["lbfgs"] = "lbfgs"
    """Full-batch L-BFGS, in float64; there is no other."""
    seed: Seed = 0
    """Of the folds."""
    augmentation: None = None
    """Features are of the evaluation view alone; `linear_full` learns from augmented images."""


class LinearFullProtocol(Trained):
    """The published linear evaluation: a linear layer on the frozen encoder, trained on augmented images.

    Defaults are MoCo's (arXiv 1911.05722, section 4.1; github.com/facebookresearch/moco, main_lincls.py) for
    ResNet-50 on ImageNet; other encoders were published with other rates. The encoder is in evaluation mode,
    BatchNorm's statistics included. The last epoch counts. Test images: the encoder's own evaluation view.
    """

    protocol: Literal["linear_full"]
    epochs: PositiveInt = 100
    """Passes over the training images."""
    lr: NonNegative = 30.0
    """Used as given: never scaled by the batch size."""
    milestones: Milestones = [60, 80]
    """Epochs after which the rate is multiplied by `decay_rate`; an empty list for a constant rate."""
    decay_rate: NonNegative = 0.1
    """Factor of the rate at each of `milestones`."""
    init_std: NonNegative = 0.01
    """Standard deviation of the layer's initial weights; its bias starts at 0."""
    seed: Seed = 0
    """Of initial weights, order and augmentation."""

    @model_validator(mode="after")
    def _milestones_reached(self) -> LinearFullProtocol:
        late = [m for m in self.milestones if m >= self.epochs]
        if late:
            raise ValueError(f"milestones: {late} never reached in epochs ({self.epochs})")
        return self


class KNNProtocol(Config):
    """Weighted nearest neighbours by cosine similarity, votes exp(s / tau)."""

    protocol: Literal["knn"]
    k: PositiveInt = 20
    """Neighbours that vote."""
    tau: Positive = 0.07
    """Temperature of the votes."""


class FewShotProtocol(Config):
    """A classifier on the features of `shots` training images of each class, drawn anew `draws` times.

    There is nothing to choose a penalty on with one image of a class, so it is given. Draws depend on seed,
    number and data alone; those of fewer shots are part of those of more. A class with fewer images is an
    error, as in the few-shot literature, where every class has as many (Snell et al. 2017, section 2.1).
    """

    protocol: Literal["few_shot"]
    shots: PositiveInt = 5
    """Images of each class."""
    draws: Annotated[int, Field(ge=2)] = 5
    """Two are the fewest that have an interval."""
    classifier: Literal["linear", "mean"] = "linear"
    """`linear`: logistic regression; `mean`: the nearest class mean of unit features, by Euclidean distance
    (SimpleShot's L2N, arXiv 1911.04623, section 3)."""
    l2: Positive = 0.01
    """Penalty of `linear` on standardised features; see `linear`."""
    seed: Seed = 0
    """Of the draws."""


class SemiSupervisedProtocol(Trained):
    """The whole network trained on the labels of a few training images, the rest left out.

    Defaults are SimCLR's (arXiv 2002.05709, section 4.4 and appendix B.5): random crops and flips, SGD with
    Nesterov momentum 0.9, rate 0.05 x batch / 256 without warm-up, then a cosine to zero as in their code, no
    weight decay, 60 epochs on 1 % and 30 on 10 % of the labels. The batch is 256 in place of their 4096;
    SwAV's authors take 256 too (github.com/facebookresearch/swav, eval_semisup.py), 20 epochs, and rates of
    their own for the encoder (0.02 on 1 %, 0.01 on 10 %) and the layer on it. The last epoch counts.

    Labels are drawn class by class, as a recipe's `data.subset` draws them: of each class its share, rounded,
    and at least one. Seed and data decide which; those of a smaller fraction are part of those of a larger.
    """

    protocol: Literal["semi_supervised"]
    fraction: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Of the training images of each class."""
    freeze_encoder: bool = False
    """Train the layer on the encoder alone, with the encoder in evaluation mode."""
    epochs: PositiveInt = 30
    """Where it is not given, 60 for fractions up to 0.01."""
    lr: NonNegative = 0.05
    """Used as given: never scaled by the batch size."""
    init_std: NonNegative = 0.0
    """Standard deviation of the layer's initial weights; its bias starts at 0."""
    seed: DataSeed = 0
    """Of the labels that are drawn, of initial weights, order and augmentation."""

    @model_validator(mode="before")
    @classmethod
    def _epochs(cls, data: Any) -> Any:
        fraction = data.get("fraction") if isinstance(data, dict) else None
        if isinstance(fraction, int | float) and fraction <= 0.01:
            return {"epochs": 60, **data}
        return data


class RetrievalProtocol(Config):
    """Test images look for images of their class, by cosine similarity of the frozen features.

    Exact. Among equally similar images those of other classes come first for recall, and all count as one
    rank for precision, so the figures do not depend on the order of the data.
    """

    protocol: Literal["retrieval"]
    k: Annotated[list[PositiveInt], Field(min_length=1)] = [1, 2, 4, 8]
    """Recall@k: the share of queries with an image of their class among the k nearest (Song et al. 2016)."""
    gallery: Literal["test", "train"] = "test"
    """Where they look: among the other test images, as in metric learning, or among the training images."""


class ClassifierProtocol(Config):
    """The classifier made of the learned centers, as it stands or with the training set's prior taken off."""

    protocol: Literal["classifier"]
    tau: PositiveFloat | None = None
    """This times the log prior is taken off: post-hoc logit adjustment (2007.07314, equation 9)."""


Protocol = Annotated[
    LinearProtocol
    | LinearFullProtocol
    | KNNProtocol
    | FewShotProtocol
    | SemiSupervisedProtocol
    | RetrievalProtocol
    | ClassifierProtocol,
    Field(discriminator="protocol"),
    named_by("protocol"),
]

PROTOCOLS: dict[str, type[Config]] = {
    get_args(each.model_fields["protocol"].annotation)[0]: each for each in get_args(get_args(Protocol)[0])
}

TRAINED = ("linear_full", "semi_supervised")
"""Protocols that train by the one loop: they keep a state, can be stopped, and resume."""


def settings_of(protocol: Protocol) -> dict[str, Any]:
    """Return the settings that an entry of metrics.json states; what is off (null) is left out.

    So an entry stays equal to one made before a setting existed, and replaces it when it is made again.
    """
    return protocol.model_dump(mode="json", exclude={"protocol", "seed"}, exclude_none=True)
