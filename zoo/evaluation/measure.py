"""One evaluation, from a protocol and a pair of data sets to an entry of metrics.json."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from zoo.data import EvalView, ImageDataset, eval_images
from zoo.errors import DataError, ReleaseError
from zoo.evaluation.classifier import center_logits
from zoo.evaluation.features import Features, extract
from zoo.evaluation.knn import knn_predict
from zoo.evaluation.linear import fit_linear
from zoo.evaluation.metrics import classification_metrics
from zoo.modules import Centers
from zoo.training.recipe import ClassifierProtocol, KNNProtocol, LinearProtocol, Protocol

EVAL_BATCH = 256


class Encoded:
    """An encoder's features of one data set's training and test images, each computed once, when needed.

    Args:
        model: headless encoder, images `[B, 3, S, S]` to features `[B, D]`.
        train_set: with its long tail, as the encoder's training saw it.
        test_set: balanced.
        view: size, crop and interpolation of the images.
        mean: channel means.
        std: channel standard deviations.
        device: where to encode.
        workers: processes that decode; 0: this one.
        max_bad_images: so many unreadable training images are left out; of test images, none ever.

    Raises:
        DataError: if the two sets have other classes.
    """

    def __init__(
        self,
        model: nn.Module,
        train_set: ImageDataset,
        test_set: ImageDataset,
        *,
        view: EvalView,
        mean: Sequence[float],
        std: Sequence[float],
        device: torch.device | str,
        workers: int = 0,
        max_bad_images: int = 0,
    ) -> None:
        if tuple(train_set.class_names) != tuple(test_set.class_names):
            raise DataError(
                f"training and test split have other classes: {len(train_set.class_names)} and "
                f"{len(test_set.class_names)}, or other names"
            )
        self.model, self.test_set, self.device = model, test_set, device
        self.train_set = train_set.with_candidates(None)  # probes read true labels
        self._view, self._mean, self._std = view, list(mean), list(std)
        self._workers, self._max_bad_images = workers, max_bad_images

    def _extract(self, dataset: ImageDataset, max_bad_images: int) -> Features:
        images = eval_images(
            dataset,
            self._view,
            self._mean,
            self._std,
            batch_size=EVAL_BATCH,
            device=self.device,
            workers=self._workers,
            max_bad_images=max_bad_images,
        )
        return extract(self.model, images, device=self.device)

    @cached_property
    def train(self) -> Features:
        """Features of the training images under the evaluation view."""
        return self._extract(self.train_set, self._max_bad_images)

    @cached_property
    def test(self) -> Features:
        """Features of the test images."""
        return self._extract(self.test_set, 0)

    @property
    def num_classes(self) -> int:
        """C."""
        return len(self.test_set.class_names)


def measure(protocol: Protocol, encoded: Encoded, centers: Centers | None) -> dict[str, Any]:
    """Run one protocol and return its entry of metrics.json.

    Raises:
        ReleaseError: if the classifier is asked for and there are no centers, or for other classes.
    """
    settings = protocol.model_dump(mode="json", exclude={"protocol", "seed"})
    chosen: dict[str, Any] = {}  # what the protocol found; no setting, and no part of an entry's identity
    predictions: Tensor
    if isinstance(protocol, LinearProtocol):
        probe = fit_linear(
            *encoded.train,
            encoded.num_classes,
            l2_grid=protocol.l2_grid,
            validation_fraction=protocol.validation_fraction,
            select=protocol.select,
            seed=protocol.seed,
            balanced=protocol.balanced,
            solver=protocol.solver,
        )
        predictions = probe.predict(encoded.test.features)
        chosen = {"l2": probe.l2}
    elif isinstance(protocol, KNNProtocol):
        voted = knn_predict(
            *encoded.train,
            encoded.test.features,
            k=protocol.k,
            tau=protocol.tau,
            num_classes=encoded.num_classes,
        )
        predictions = voted.predictions
        chosen = {"k": voted.settings["k"]}  # fewer than asked for in a small training set
    else:
        assert isinstance(protocol, ClassifierProtocol)
        if centers is None:
            raise ReleaseError('protocol "classifier" needs learned centers; this encoder has none')
        if len(centers.weight) != encoded.num_classes:
            raise ReleaseError(
                f'protocol "classifier": found centers of {len(centers.weight)} classes, expected '
                f"{encoded.num_classes}, those of the data"
            )
        predictions = center_logits(encoded.test.features, centers).argmax(dim=1)
    counts = torch.as_tensor(encoded.train_set.class_counts)
    return {
        "protocol": protocol.protocol,
        "data": _name(encoded.train_set),
        "split": "test",
        "train_set": encoded.train_set.describe(),
        "test_set": encoded.test_set.describe(),
        "metrics": classification_metrics(
            predictions, encoded.test.labels, counts, encoded.test_set.class_names
        ),
        "settings": settings,
        "chosen": chosen,
        "seed": getattr(protocol, "seed", None),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _name(train_set: ImageDataset) -> str:
    """Name the data in a few words, e.g. `digits, long tail 50` or `cifar100 fine_label`."""
    facts = train_set.describe()
    tail = facts["long_tail"]
    return str(facts["name"]) + (f", long tail {tail['imbalance']:g}" if tail else "")
