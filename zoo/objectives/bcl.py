"""BCL: Balanced Softmax on one view, and on two others a supervised contrast in which classes count alike."""

from typing import Annotated, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import nn

from zoo import functional
from zoo.backbones import feature_dim
from zoo.errors import TrainingError
from zoo.modules import Centers, CosineClassifier, Temperature, TemperatureConfig, full_logits
from zoo.objectives.base import Batch, DataInfo, Objective, Output, train_accuracy
from zoo.objectives.momentum_contrast import ProjectionConfig, from_others, normalize, projection


class BCLConfig(ProjectionConfig):
    """Balanced contrastive learning; defaults are those of CIFAR."""

    name: Literal["bcl"]
    head_batchnorm: bool = True
    """BatchNorm before the head's ReLUs."""
    tau: TemperatureConfig = 0.1
    """Temperature of the contrast: a number, a schedule, or learned."""
    classification_weight: Annotated[float, Field(ge=0)] = 2.0
    """Factor of the classifier's loss (the paper's lambda)."""
    contrast_weight: Annotated[float, Field(ge=0)] = 0.6
    """Factor of the contrast (the paper's mu)."""
    head: Literal["linear", "cosine"] = "linear"
    """`cosine`: unit weights on unit features, no bias, times `scale` (the authors' on ImageNet)."""
    scale: Annotated[float, Field(gt=0)] | None = None
    """Factor of the cosines in the softmax; null with a linear head."""

    @model_validator(mode="after")
    def _scale_fits(self) -> Self:
        if (self.head == "cosine") != (self.scale is not None):
            expected = "a number above 0" if self.scale is None else "null"
            raise ValueError(f'scale: found {self.scale} with head "{self.head}", expected {expected}')
        return self

    @property
    def adds_prior(self) -> bool:
        """See `ObjectiveConfig.adds_prior`."""
        return True


class BCL(Objective):
    """A classifier learns from the first view, the encoder also from a contrast of the two others.

    The contrast's prototypes are the classifier's own rows, projected by a head of theirs, so that every
    class is in every batch. All views go through encoder and head as one batch, for BatchNorm's sake.
    Source: https://arxiv.org/abs/2207.09052; https://github.com/FlamieZhu/Balanced-Contrastive-Learning.
    """

    Config = BCLConfig
    num_views = 3

    def __init__(self, config: BCLConfig, encoder: nn.Module, info: DataInfo) -> None:
        super().__init__(config, encoder, info)
        classifier = nn.Linear if config.head == "linear" else CosineClassifier
        self.classifier = classifier(feature_dim(encoder), len(info.class_counts))
        self.head = projection(encoder, config)
        # all of its rows, one per class, are there at every step: there is nothing to keep for evaluation
        self.prototype_head = projection(encoder, config, running_statistics=False)
        self.temperature = Temperature(config.tau)

    def forward(self, batch: Batch) -> Output:
        """Classify the first view; contrast the second and third with each other and with the prototypes."""
        sizes = [f"{view.shape[-2]} x {view.shape[-1]}" for view in batch.views]
        if len({*sizes}) > 1:  # they go through the encoder as one batch
            found = f"views of {', '.join(sizes)} pixels"
            raise TrainingError(f'objective "bcl": views.train: found {found}, expected one size')
        config, labels = self.config, batch.labels
        features = self.encoder(torch.cat(batch.views))  # [3B, D_f], view after view
        logits = full_logits(self.classifier, features.chunk(3)[0]) * (config.scale or 1.0)
        _, a, b = normalize(self.head(features)).chunk(3)
        prototypes = normalize(self.prototype_head(self.classifier.weight))
        tau = self.temperature(self.progress)
        classification = functional.balanced_softmax(logits, labels, self.class_counts)
        others = from_others(self.ranks, a, b, labels)
        contrast = functional.balanced_contrast(a, b, labels, prototypes, tau=tau, others=others)
        metrics = self.temperature.metrics(tau, a.device) | {
            "classification_loss": classification.detach(),
            "contrast_loss": contrast.detach(),
            "train_accuracy": train_accuracy(logits, labels),
        }
        # of the others' two views in turn the keys are the second
        keys, classes = (None, None) if others is None else (each.chunk(2)[1] for each in others)
        held = {"q": a, "k": b, "classes": labels, "other_keys": keys, "other_classes": classes}
        loss = config.classification_weight * classification + config.contrast_weight * contrast
        return Output(loss, metrics, held=held)

    @torch.no_grad()
    def centers(self) -> Centers:
        """Return the linear classifier that the head amounts to.

        Of a cosine head it has the directions, at its scale: the features' own norm changes no order of
        classes. A class without images, never pushed away, is never predicted.
        """
        weight = self.classifier.weight.detach()
        if isinstance(self.classifier, nn.Linear):
            bias = self.classifier.bias.detach()
        else:
            weight, bias = self.config.scale * F.normalize(weight, dim=1), torch.zeros_like(weight[:, 0])
        return Centers(*functional.mask_classes(weight, bias, self.class_counts == 0), self.class_counts)
