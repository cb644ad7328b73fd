"""BCL: Balanced Softmax on one view, and a class-balanced supervised contrast on two others."""

import torch
from torch import nn

from zoo import functional
from zoo.backbones import feature_dim
from zoo.modules import Centers, CosineClassifier, as_linear, full_logits, l2_normalize
from zoo.objectives.base import Batch, DataInfo, Objective, Output, train_accuracy
from zoo.objectives.config import BCLConfig
from zoo.objectives.momentum_contrast import projection


class BCL(Objective):
    """A classifier is trained on the first view, and the encoder also by contrasting the other two.

    The contrast's prototypes are the classifier's rows, projected by a separate head, so that every class is
    in every batch. All views pass through encoder and head as one batch, which matters for BatchNorm.
    Source: https://arxiv.org/abs/2207.09052; https://github.com/FlamieZhu/Balanced-Contrastive-Learning.
    """

    Config = BCLConfig

    def __init__(self, config: BCLConfig, encoder: nn.Module, info: DataInfo) -> None:
        super().__init__(config, encoder, info)
        classifier = nn.Linear if config.head == "linear" else CosineClassifier
        self.classifier = classifier(feature_dim(encoder), len(info.class_counts))
        self.head = projection(encoder, config)
        # its input is always all classes' rows, and evaluation does not use it: no running statistics
        self.prototype_head = projection(encoder, config, running_statistics=False)

    def forward(self, batch: Batch) -> Output:
        """Classify the first view; contrast the second and third with each other and with the prototypes."""
        config, labels = self.config, batch.labels
        features = self.encoder(torch.cat(batch.views))  # [3B, D_f], view after view
        logits = full_logits(self.classifier, features.chunk(3)[0]) * (config.scale or 1.0)
        classification = functional.balanced_softmax(logits, labels, self.class_counts)

        _, a, b = l2_normalize(self.head(features)).chunk(3)
        prototypes = l2_normalize(self.prototype_head(self.classifier.weight))
        others = self.from_others(a, b, labels)
        contrast = functional.balanced_contrast(a, b, labels, prototypes, tau=config.tau, others=others)
        parts = {"classification_loss": classification, "contrast_loss": contrast}
        parts["train_accuracy"] = train_accuracy(logits, labels)
        loss = config.classification_weight * classification + config.contrast_weight * contrast
        return Output(loss, parts, observed={"q": a, "k": b, "classes": labels})

    def centers(self) -> Centers:
        """Return the equivalent linear classifier; classes without images, never pushed away, are masked."""
        weight, bias = ((self.config.scale or 1.0) * each for each in as_linear(self.classifier))
        return Centers(*functional.mask_classes(weight, bias, self.class_counts == 0), self.class_counts)
