"""Supervised classification: the baseline of every long-tailed table, fine-tuning, linear evaluation."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Annotated, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from zoo import functional
from zoo.backbones import feature_dim
from zoo.config import Config
from zoo.errors import TrainingError
from zoo.functional.precision import full
from zoo.modules import Centers
from zoo.objectives.base import Batch, DataInfo, Objective, ObjectiveConfig, Output
from zoo.objectives.mixing import MixConfig, mix


class LogitAdjustmentLoss(Config):
    """Cross-entropy of logits + tau log prior (Menon et al. 2021, eq. 10)."""

    name: Literal["logit_adjustment"]
    tau: Annotated[float, Field(ge=0)]


class LDAMLoss(Config):
    """Label-distribution-aware margins, with deferred reweighting (Cao et al. 2019)."""

    name: Literal["ldam"]
    max_margin: Annotated[float, Field(ge=0)]
    scale: Annotated[float, Field(gt=0)]
    reweight_from: Annotated[float, Field(ge=0, le=1)]
    beta: Annotated[float, Field(ge=0, lt=1)]


class ClassifyConfig(ObjectiveConfig):
    """Softmax classification on one view."""

    name: Literal["classify"]
    loss: Literal["cross_entropy", "balanced_softmax"] | LogitAdjustmentLoss | LDAMLoss
    label_smoothing: Annotated[float, Field(ge=0, lt=1)]
    """torch's: this share of the target is spread over all classes."""
    freeze_encoder: bool = False
    """Train the classifier alone: the encoder is in evaluation mode, BatchNorm's statistics included."""
    head_std: Annotated[float, Field(ge=0)] | None = None
    """Standard deviation of the classifier's initial weights, with a bias of 0; null: torch's own."""
    head: Literal["linear", "cosine", "scaled"] = "linear"
    """`cosine`: unit weights on unit features, no bias (for LDAM); `scaled`: a linear classifier that stays
    as it is, with a learned factor for each class."""
    mix: MixConfig | None = None
    """While training; the loss is then against both labels of a pair, by their shares."""

    @model_validator(mode="after")
    def _loss_takes_mixed_labels(self) -> Self:
        if self.mix is not None and isinstance(self.loss, LDAMLoss):
            raise ValueError("mix: found with loss ldam, whose margin is that of one label; expected null")
        return self


class Classify(Objective):
    """A linear classifier on the pooled features, trained together with the encoder or on a frozen one.

    Fine-tuning is this objective with the recipe's `init:` pointing at a release. With a frozen encoder it is
    linear evaluation as MoCo's authors do it (github.com/facebookresearch/moco, main_lincls.py).
    """

    Config = ClassifyConfig
    num_views = 1

    class_counts: Tensor

    def __init__(self, config: ClassifyConfig, encoder: nn.Module, info: DataInfo) -> None:
        super().__init__(config, encoder, info)
        self.classifier = nn.Linear(feature_dim(encoder), info.num_classes)
        if config.head_std is not None:
            nn.init.normal_(self.classifier.weight, std=config.head_std)
            nn.init.zeros_(self.classifier.bias)
        if config.freeze_encoder:
            encoder.requires_grad_(False)
        self.register_buffer("class_counts", info.class_counts)

    def train(self, mode: bool = True) -> Classify:
        """Set the mode; a frozen encoder stays in evaluation mode."""
        super().train(mode)
        if self.config.freeze_encoder:
            self.encoder.eval()
        return self

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
        """Classify the one view; `train_accuracy` of mixed images is that of the label with more share."""
        images, targets, labels = batch.views[0], batch.labels, batch.labels
        if self.config.mix is not None and self.training:
            images, targets, labels = mix(self.config.mix, images, labels, len(self.class_counts))
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.config.freeze_encoder):
            features = self.encoder(images)
        logits = full(self.classifier(features))
        smoothing = self.config.label_smoothing
        if self.config.loss == "balanced_softmax":
            loss = functional.balanced_softmax(logits, targets, self.class_counts, label_smoothing=smoothing)
        else:
            loss = F.cross_entropy(logits, targets, label_smoothing=smoothing)
        accuracy = 100 * (logits.detach().argmax(dim=1) == labels).float().mean()
        return Output(loss, {"train_accuracy": accuracy})

    def constants(self) -> Hashable | None:
        """See `Objective.constants`; what is mixed how is drawn on the host at every step."""
        return None if self.config.mix is not None else ()

    def centers(self) -> Centers:
        """Return the classifier's rows."""
        return Centers(self.classifier.weight.detach(), self.classifier.bias.detach(), self.class_counts)
