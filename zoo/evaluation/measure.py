"""One evaluation, from a protocol and a pair of data sets to an entry of metrics.json."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor

from zoo.errors import ReleaseError, ZooError
from zoo.evaluation.classifier import center_logits
from zoo.evaluation.encoded import Encoded, total_memory
from zoo.evaluation.knn import knn_predict
from zoo.evaluation.linear import fit_linear
from zoo.evaluation.linear_full import ProbeRun, train_linear
from zoo.evaluation.metrics import classification_metrics
from zoo.modules import Centers
from zoo.training.protocols import (
    KNNProtocol,
    LinearFullProtocol,
    LinearProtocol,
    Protocol,
    settings_of,
)

__all__ = ["Encoded", "ProbeRun", "data_name", "measure"]

_ROOM = 6  # times the training features: what fitting a probe takes at most


def measure(
    protocol: Protocol, encoded: Encoded, centers: Centers | None, run: ProbeRun | None = None
) -> dict[str, Any]:
    """Run one protocol and return its entry of metrics.json.

    Args:
        protocol: what to do.
        encoded: the encoder and its data.
        centers: the learned centers, for `classifier`.
        run: where `linear_full` keeps its state.

    Raises:
        Interrupted: when `linear_full` is stopped by a signal, with its state saved.
        ReleaseError: if the classifier is asked for and there are no centers, or for other classes.
    """
    if isinstance(protocol, LinearProtocol):
        predictions, chosen = _linear(protocol, encoded)
    elif isinstance(protocol, LinearFullProtocol):
        if run is None:
            raise ZooError('protocol "linear_full": found no folder for the state of its training')
        predictions, chosen = train_linear(protocol, encoded, run)
    elif isinstance(protocol, KNNProtocol):
        predictions, chosen = _knn(protocol, encoded)
    else:
        predictions, chosen = _classifier(encoded, centers)
    counts = torch.as_tensor(encoded.train_set.class_counts)
    return {
        "protocol": protocol.protocol,
        "data": data_name(encoded.train_set.describe()),
        "split": "test",
        "train_set": encoded.train_set.describe(),
        "test_set": encoded.test_set.describe(),
        "metrics": classification_metrics(
            predictions, encoded.test.labels, counts, encoded.test_set.class_names
        ),
        "settings": settings_of(protocol),
        "chosen": chosen,
        "seed": getattr(protocol, "seed", None),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


# Each returns the predicted classes of the test images `[N]`, and what the protocol found: no setting, and no
# part of an entry's identity.
_Result = tuple[Tensor, dict[str, Any]]


def _linear(protocol: LinearProtocol, encoded: Encoded) -> _Result:
    augmentation = protocol.augmentation
    augmented = None if augmentation is None else encoded.augmented(augmentation, protocol.seed)
    features, labels = encoded.train
    copies = 1 if augmented is None else 1 + len(augmented)
    probe = fit_linear(
        features.to(_near(encoded, copies)),
        labels,
        encoded.num_classes,
        l2_grid=protocol.l2_grid,
        validation_fraction=protocol.validation_fraction,
        select=protocol.select,
        seed=protocol.seed,
        balanced=protocol.balanced,
        solver=protocol.solver,
        augmented=augmented,
    )
    chosen: dict[str, Any] = {"l2": probe.l2}
    if augmentation is not None:
        chosen["backend"] = encoded.views(augmentation).backend
    return probe.predict(encoded.test.features), chosen


def _knn(protocol: KNNProtocol, encoded: Encoded) -> _Result:
    features, labels = encoded.train
    voted = knn_predict(
        features.to(_near(encoded)),
        labels,
        encoded.test.features,
        k=protocol.k,
        tau=protocol.tau,
        num_classes=encoded.num_classes,
    )
    return voted.predictions, {"k": voted.settings["k"]}  # fewer than asked for in a small training set


def _classifier(encoded: Encoded, centers: Centers | None) -> _Result:
    if centers is None:
        raise ReleaseError('protocol "classifier" needs learned centers; this encoder has none')
    if len(centers.weight) != encoded.num_classes:
        raise ReleaseError(
            f'protocol "classifier": found centers of {len(centers.weight)} classes, expected '
            f"{encoded.num_classes}, those of the data"
        )
    return center_logits(encoded.test.features, centers).argmax(dim=1), {}


def _near(encoded: Encoded, copies: int = 1) -> torch.device:
    """Return the encoder's device if `copies` of the training features can be worked on there."""
    features = encoded.train.features
    needed = _ROOM * copies * features.nbytes
    return encoded.device if needed < total_memory(encoded.device) else features.device


def data_name(facts: Mapping[str, Any]) -> str:
    """Name described data in a few words, e.g. `digits, long tail 50` or `cifar100 fine_label`."""
    tail = facts["long_tail"]
    return str(facts["name"]) + (f", long tail {tail['imbalance']:g}" if tail else "")
