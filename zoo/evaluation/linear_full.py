"""The published linear evaluation: a linear layer on a frozen encoder, trained by the one training loop."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from zoo.evaluation.classifier import center_logits
from zoo.evaluation.encoded import ProbeData
from zoo.evaluation.trained import ProbeRun, train_classifier
from zoo.recipe.protocols import LinearFullProtocol


def train_linear(
    protocol: LinearFullProtocol, data: ProbeData, run: ProbeRun
) -> tuple[Tensor, dict[str, Any]]:
    """Train the layer on the augmented training images, and classify the test images by it.

    Returns:
        Logits of the test images `[N, C]`, and the backend that made the views.

    Raises:
        ZooError: see `train_classifier`.
    """
    sections: dict[str, dict[str, Any]] = {
        "objective": {"freeze_encoder": True},
        "optimizer": {"name": "momentum"},
        "schedule": {
            "name": "multistep" if protocol.milestones else "constant",
            "milestones": protocol.milestones,
            "decay_rate": protocol.decay_rate,
        },
        "training": {"drop_last": False},
    }
    trained, recipe = train_classifier(protocol, data, run, data.train_set, sections)
    logits = center_logits(data.test.to(data.device), trained.centers())
    return logits, {"backend": recipe.views.backend}
