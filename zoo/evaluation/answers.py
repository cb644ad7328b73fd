"""What a protocol says of the test images, and how it is scored once somebody says what they are.

A protocol gives its answer without knowing the test labels; `metrics` is the only place that they reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from zoo.evaluation.metrics import calibration_error, classification_metrics, mean_interval
from zoo.evaluation.retrieval import Retrieval


class Truth(NamedTuple):
    """What answers are scored by.

    Attributes:
        labels: classes of the test images `[N]`.
        train_counts: training images of each class `[C]`; None where they are not known.
        class_names: C names.
    """

    labels: Tensor
    train_counts: Tensor | None
    class_names: Sequence[str]


class Answer(Protocol):
    """The answer of a protocol.

    Attributes:
        predictions: all that its metrics follow from, given the labels.
        chosen: what the protocol found on the way: no setting, and no part of an entry's identity.
    """

    @property
    def predictions(self) -> Tensor: ...

    @property
    def chosen(self) -> dict[str, Any]: ...

    def metrics(self, truth: Truth) -> dict[str, Any]:
        """Return the entry's metrics, plain and JSON-able."""


@dataclass(frozen=True, eq=False)
class Classes:
    """A class for each test image.

    Attributes:
        predictions: `[N]`, int64.
        chosen: see `Answer`.
        logits: whose softmax are probabilities `[N, C]`, where there are some.
    """

    predictions: Tensor
    chosen: dict[str, Any] = field(default_factory=dict)
    logits: Tensor | None = None

    @classmethod
    def of_logits(cls, logits: Tensor, chosen: dict[str, Any] | None = None) -> Classes:
        """Predict the classes of the largest logits `[N, C]`."""
        return cls(logits.argmax(dim=1), chosen or {}, logits)

    def metrics(self, truth: Truth) -> dict[str, Any]:
        """Return `classification_metrics`, and with probabilities `calibration_error`."""
        result = classification_metrics(self.predictions, truth.labels, truth.train_counts, truth.class_names)
        if self.logits is not None:
            result["calibration_error"] = calibration_error(self.logits, truth.labels)
        return result


@dataclass(frozen=True, eq=False)
class Draws:
    """Scores of each class for each test image, from several draws of the training images.

    Attributes:
        scores: for each draw `[N, C]`.
        probable: whether the scores' softmax are probabilities.
    """

    scores: tuple[Tensor, ...]
    probable: bool

    @property
    def predictions(self) -> Tensor:
        """Classes `[draws, N]`."""
        return torch.stack([scores.argmax(dim=1) for scores in self.scores])

    @property
    def chosen(self) -> dict[str, Any]:
        """Nothing is chosen."""
        return {}

    def metrics(self, truth: Truth) -> dict[str, Any]:
        """Return each draw's accuracy, their means, and the 95 % interval (Student's t) of `accuracy`.

        Many, medium and few are left out: every class was seen equally often.
        """
        each = [
            classification_metrics(scores.argmax(dim=1), truth.labels, None, truth.class_names)
            for scores in self.scores
        ]
        accuracies = [metrics["accuracy"] for metrics in each]
        accuracy, half_width = mean_interval(accuracies)
        result: dict[str, Any] = {
            "accuracy": accuracy,
            "balanced_accuracy": mean_interval([metrics["balanced_accuracy"] for metrics in each])[0],
            "accuracy_interval": half_width,
            "accuracy_of_draws": accuracies,
            "test_images": len(truth.labels),
        }
        if self.probable:
            errors = [calibration_error(scores, truth.labels) for scores in self.scores]
            result["calibration_error"] = mean_interval(errors)[0]
        return result


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Test images and the gallery in which they look for their like.

    Attributes:
        retrieval: their features.
        gallery_labels: `[M]`; None where the test images are the gallery.
        k: of the recalls.
    """

    retrieval: Retrieval
    gallery_labels: Tensor | None
    k: tuple[int, ...]

    @property
    def predictions(self) -> Tensor:
        """The gallery's row that is nearest to each test image `[N, 1]`."""
        return self.retrieval.nearest(1)

    @property
    def chosen(self) -> dict[str, Any]:
        """Nothing is chosen."""
        return {}

    def metrics(self, truth: Truth) -> dict[str, Any]:
        """Return recalls and mean average precision; see `Retrieval.metrics`."""
        found = self.retrieval.metrics(truth.labels, self.gallery_labels, len(truth.class_names), self.k)
        return {**found, "test_images": len(truth.labels)}
