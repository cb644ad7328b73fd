"""Semi-supervised evaluation: the network fine-tuned on a small part of the labels."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from zoo.data import ImageDataset
from zoo.data.config import Subset
from zoo.data.long_tail import select_subset
from zoo.evaluation.classifier import center_logits
from zoo.evaluation.encoded import ProbeData
from zoo.evaluation.trained import ProbeRun, train_classifier
from zoo.recipe.protocols import SemiSupervisedProtocol


def fine_tune(
    protocol: SemiSupervisedProtocol, data: ProbeData, run: ProbeRun
) -> tuple[Tensor, dict[str, Any]]:
    """Train encoder and layer on the chosen training images, and classify the test images by both.

    Returns:
        Logits of the test images `[N, C]`; how many images were trained on, and the backend of their views.

    Raises:
        ZooError: see `train_classifier`.
    """
    train_set = labelled_part(data.train_set, protocol.fraction, protocol.seed)
    sections: dict[str, dict[str, Any]] = {
        "objective": {"freeze_encoder": protocol.freeze_encoder},
        "optimizer": {"name": "sgd"},  # timm's, with Nesterov momentum
        "schedule": {"name": "cosine", "milestones": [], "decay_rate": 0.0},
        # so BatchNorm never gets a rest of one image, and a few labels are a batch all the same
        "training": {"drop_last": len(train_set) >= protocol.batch_size},
    }
    trained, recipe = train_classifier(protocol, data, run, train_set, sections)
    features = data.test if protocol.freeze_encoder else data.encode_test(trained.encoder)
    logits = center_logits(features.to(data.device), trained.centers())
    return logits, {"train_images": len(train_set), "backend": recipe.views.backend}


def labelled_part(train_set: ImageDataset, fraction: float, seed: int) -> ImageDataset:
    """Return the part of a training set whose labels are used, in the set's order.

    They are those that a recipe's `data.subset` keeps with the same fraction and seed.
    """
    part = Subset(fraction=fraction, seed=seed)
    return train_set.subset(select_subset(part, train_set.labels, train_set.num_classes))
