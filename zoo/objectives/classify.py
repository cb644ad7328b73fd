"""Supervised classification: the baseline of every long-tailed table, and fine-tuning."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from zoo import functional
from zoo.backbones import feature_dim
from zoo.errors import TrainingError
from zoo.modules import Centers
from zoo.objectives.base import Batch, DataInfo, Objective, ObjectiveConfig, Output


class ClassifyConfig(ObjectiveConfig):
    """Softmax classification on one view."""

    name: Literal["classify"]
    loss: Literal["cross_entropy", "balanced_softmax"]
    label_smoothing: Annotated[float, Field(ge=0, lt=1)]
    """torch's: this share of the target is spread over all classes."""


class Classify(Objective):
    """A linear classifier on the pooled features, trained together with the encoder.

    Fine-tuning is this objective with the recipe's `init:` pointing at a release.
    """

    Config = ClassifyConfig
    num_views = 1

    class_counts: Tensor

    def __init__(self, config: ClassifyConfig, encoder: nn.Module, info: DataInfo) -> None:
        super().__init__(config, encoder, info)
        self.classifier = nn.Linear(feature_dim(encoder), info.num_classes)
        self.register_buffer("class_counts", info.class_counts)

    @torch.no_grad()
    def start_from(self, centers: Centers) -> None:
        """Make the head of learned centers.

        Raises:
            TrainingError: if their shape is not `[C, D_f]` of this data set and encoder.
        """
        found, expected = tuple(centers.weight.shape), tuple(self.classifier.weight.shape)
        if found != expected:
            raise TrainingError(
                f"init.head: the release's centers are {found[0]} classes x {found[1]} features, expected "
                f'{expected[0]} x {expected[1]}; use "head: fresh" for other classes'
            )
        self.classifier.weight.copy_(centers.weight)
        self.classifier.bias.copy_(centers.bias)

    def forward(self, batch: Batch) -> Output:
        """Classify the one view."""
        logits = self.classifier(self.encoder(batch.views[0])).float()
        smoothing = self.config.label_smoothing
        if self.config.loss == "balanced_softmax":
            loss = functional.balanced_softmax(
                logits, batch.labels, self.class_counts, label_smoothing=smoothing
            )
        else:
            loss = F.cross_entropy(logits, batch.labels, label_smoothing=smoothing)
        accuracy = 100 * (logits.detach().argmax(dim=1) == batch.labels).float().mean()
        return Output(loss, {"train_accuracy": accuracy})

    def constants(self) -> Hashable:
        """See `Objective.constants`."""
        return ()

    def centers(self) -> Centers:
        """Return the classifier's rows."""
        return Centers(self.classifier.weight.detach(), self.classifier.bias.detach(), self.class_counts)
