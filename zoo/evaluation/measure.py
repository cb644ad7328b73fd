"""Run one evaluation: a protocol predicts without access to test labels, which only score the result."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.data import ImageDataset
from zoo.data.batches import derive_seed
from zoo.data.dataset import content_ids, data_words, require_same_classes
from zoo.data.long_tail import rank_in_class
from zoo.data.sources import CIFAR
from zoo.errors import DataError, ZooError, ZooWarning, few
from zoo.evaluation import metrics as figures
from zoo.evaluation.encode import Encoder, Features
from zoo.evaluation.linear import fit_linear
from zoo.evaluation.published import ProbeRun, TrainedProtocol, train_classifier
from zoo.functional import class_means, knn_predict, mask_classes, post_hoc_adjusted
from zoo.functional.checks import check_features
from zoo.modules import Centers
from zoo.recipe import protocols
from zoo.recipe.protocols import Protocol
from zoo.release.schema import headline
from zoo.training.signals import interruptible


def warn_of_shared(train: ImageDataset, test: ImageDataset | None) -> None:
    """Warn if test images are also training images, by their pixels.

    Digits and CIFAR are not checked, nor, to save minutes, > 50,000 images or files of unequal length.
    """
    if test is None or test.settings["source"] in ("digits", *CIFAR) or len(train) + len(test) > 50_000:
        return
    a, b = (
        [x.stat().st_size if isinstance(x, Path) and x.is_file() else 0 for x in map(s.item, range(len(s)))]
        for s in (train, test)
    )
    alike = train.subset(np.flatnonzero(np.isin(a, b))), test.subset(np.flatnonzero(np.isin(b, a)))
    ours, theirs = (content_ids(each.without_labels()) for each in alike)
    if shared := int(np.isin(theirs, ours[ours != -1]).sum()):
        message = f"{shared:,} of the {len(test):,} test images are training images too: figures are too high"
        warnings.warn(f"data: {message}", ZooWarning, stacklevel=3)


class ProbeData:
    """What a protocol can access: training images with labels, test images without, and their features.

    A set may be None if no protocol reads it. DataError if the sets have different classes, or, when features
    are computed, an image is unreadable.
    """

    def __init__(
        self, encoder: Encoder, train_set: ImageDataset | None, test_set: ImageDataset | None
    ) -> None:
        given = [each for each in (train_set, test_set) if each is not None]
        require_same_classes(given[0].class_names, given[-1].class_names)
        empty = given[0].subset([])
        self.encoder = encoder
        self.train_set = (empty if train_set is None else train_set).with_candidates(None)  # true labels
        self.test_images = (empty if test_set is None else test_set).without_labels()

    @cached_property
    def train(self) -> Features:
        """Features of the training images under the evaluation view, and their labels."""
        return self.encoder.encode(self.train_set)

    @cached_property
    def test(self) -> Tensor:
        """Features of the test images `[N, D]`."""
        return self.encoder.encode(self.test_images).features


def measure(
    protocol: Protocol,
    data: ProbeData,
    test_set: ImageDataset,
    centers: Centers | None = None,
    run: ProbeRun | None = None,
    *,
    own: bool = True,
) -> dict[str, Any]:
    """Run one protocol and return its entry of metrics.json.

    Args:
        protocol: which one, with its settings.
        data: the encoder and its images.
        test_set: the test images of `data`, with their labels.
        centers: the learned centers, for `classifier`; None for a model that ends in a classifier.
        run: where `linear_full` and `semi_supervised` keep their state.
        own: whether the images are the release's own; for `classifier` on others, many, medium and few are
            defined by the class counts of the centers, if known.

    Raises:
        Interrupted: when a training is stopped by a signal, with its state saved.
    """
    trains = isinstance(protocol, TrainedProtocol)  # these show their own progress
    if not trains:
        logging.getLogger("zoo").info("measuring: %s, %d test images", protocol.protocol, len(test_set))
    with interruptible(lambda: "what was trained so far is kept") if trains else nullcontext():
        answer, chosen = run_protocol(protocol, data, centers, run)
    trained_on = data.train_set.describe() if len(data.train_set) else None
    tested_on = test_set.describe()
    counts = None if trained_on is None else torch.as_tensor(data.train_set.class_counts)
    elsewhere = isinstance(protocol, protocols.ClassifierProtocol) and (not own or trained_on is None)
    if elsewhere and centers is not None and (centers.class_counts >= 0).all():
        counts, chosen = centers.class_counts, {"train_counts": "of the centers"}
    labels, names = torch.from_numpy(test_set.labels.copy()), test_set.class_names
    present = len({*labels.tolist()})
    beside = {"classes_measured": present} if present < len(names) else {}
    if isinstance(protocol, protocols.RetrievalProtocol):
        bank, others = data.train if protocol.gallery == "train" else (None, None)
        bank = None if bank is None else _to_device(data, bank)
        ranks = figures.retrieval_metrics(answer, labels, bank, others, num_classes=len(names), k=protocol.k)
        metrics: dict[str, Any] = {**ranks, "test_images": len(labels)}
    elif isinstance(protocol, protocols.FewShotProtocol):
        metrics = figures.draws_metrics(answer, labels, names, probable=protocol.classifier == "linear")
    elif isinstance(protocol, protocols.KNNProtocol):
        metrics = figures.classification_metrics(answer, labels, counts, names)
    else:
        metrics = figures.classification_metrics(answer.argmax(dim=1), labels, counts, names)
        metrics["calibration_error"] = figures.calibration_error(answer, labels)
    return {
        "protocol": protocol.protocol,
        "data": data_words(trained_on or tested_on),
        "split": "test",
        "own": own,
        **headline(metrics),
        "train_set": trained_on,
        "test_set": tested_on,
        **beside,
        "metrics": metrics,
        "settings": protocol.model_dump(mode="json", exclude={"protocol", "seed"}, exclude_none=True),
        "chosen": chosen,
        "seed": getattr(protocol, "seed", None),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def run_protocol(
    protocol: Protocol, data: ProbeData, centers: Centers | None, run: ProbeRun | None = None
) -> tuple[Tensor, dict[str, Any]]:
    """Return a protocol's predictions and the settings it chose. Has no access to test labels.

    Predictions are logits `[N, C]`; for kNN classes `[N]`, for few-shot each draw's scores `[draws, N, C]`,
    for retrieval the features to compare `[N, D]`.
    """
    if isinstance(protocol, TrainedProtocol):
        if run is None:
            raise ZooError(f'protocol "{protocol.protocol}": found no folder for the state of its training')
        return train_classifier(protocol, data, run)
    if isinstance(protocol, protocols.ClassifierProtocol):
        return _classify(data, centers, protocol), {}
    if isinstance(protocol, protocols.RetrievalProtocol):
        return data.test, {}
    (features, labels), classes = data.train, data.train_set.num_classes
    if isinstance(protocol, protocols.KNNProtocol):
        bank = _to_device(data, features)
        found = knn_predict(bank, labels, data.test, k=protocol.k, tau=protocol.tau, num_classes=classes)
        return found, {"k": min(protocol.k, len(bank))}
    if isinstance(protocol, protocols.LinearProtocol):
        settings = protocol.model_dump(exclude={"protocol"})
        probe = fit_linear(features, labels, classes, **settings)
        return probe.logits(data.test), {"l2": probe.l2}
    draws, names = [], data.train_set.class_names
    for rows in few_shot_rows(labels, names, shots=protocol.shots, draws=protocol.draws, seed=protocol.seed):
        x, y = features[rows], labels[rows]
        if protocol.classifier == "mean":
            draws.append(class_mean_scores(x, y, data.test, num_classes=classes))
        else:
            draws.append(fit_linear(x, y, classes, l2_grid=[protocol.l2]).logits(data.test))
    return torch.stack(draws), {}


def _classify(data: ProbeData, centers: Centers | None, protocol: protocols.ClassifierProtocol) -> Tensor:
    """Return logits `[N, C]`: the centers', minus `tau` times the log prior, or a classifier model's."""
    tau, sizes = protocol.tau, protocol.ensemble
    if tau is not None and (centers is None or (centers.class_counts < 0).any()):
        raise ZooError("classifier: tau: found no training images of each class, which make the prior")
    features = data.encoder.encode_ensemble(data.test_images, sizes) if sizes else data.test
    if centers is None:
        check_features(features, "classifier: scores", dim=data.train_set.num_classes)
        return features
    if tau is not None:  # classes without training images are then never predicted
        bias = post_hoc_adjusted(centers.bias, centers.class_counts, tau=tau)
        weight, bias = mask_classes(centers.weight, bias, centers.class_counts == 0)
        centers = centers._replace(weight=weight, bias=bias)
    return centers.logits(features)


def _to_device(data: ProbeData, features: Tensor) -> Tensor:
    """Return features on the encoder's GPU if they take less than a sixth of its memory."""
    device = data.encoder.device
    fits = device.type == "cuda" and 6 * features.nbytes < torch.cuda.mem_get_info(device)[1]
    return features.to(device) if fits else features


def few_shot_rows(
    labels: Tensor, class_names: Sequence[str], *, shots: int, draws: int, seed: int
) -> Iterator[Tensor]:
    """Yield the ascending rows `[C * shots]` of each draw; for fewer shots, a subset of those for more.

    `labels` are the classes of the training rows `[N]`; one `seed` serves all draws. DataError names the
    classes with fewer rows than `shots`.
    """
    counts = torch.bincount(labels.cpu(), minlength=len(class_names)).tolist()
    short = [f'"{name}" has {n}' for name, n in zip(class_names, counts, strict=True) if n < shots]
    if short:
        raise DataError(f"few_shot: class {few(short)}; expected {shots} training images of each (shots)")
    for draw in range(draws):
        rank = rank_in_class(labels, derive_seed("few_shot", seed, draw))
        yield (rank < shots).nonzero().flatten()


def class_mean_scores(features: Tensor, labels: Tensor, test: Tensor, *, num_classes: int) -> Tensor:
    """Return minus half the squared distance `[N, C]` of unit features to the mean of each class.

    SimpleShot's L2N with nearest centroids (Wang et al. 2019, arXiv 1911.04623, section 3): the means are
    also of unit features. A constant per row is omitted. Features are `[M, D]` with at least one row of each
    class, labels `[M]`, test features `[N, D]`; others raise DataError.
    """
    check_features(features, "few_shot: training features")
    check_features(test, "few_shot: test features", dim=features.shape[1])
    means = class_means(F.normalize(features, dim=1), labels, num_classes)
    return F.normalize(test, dim=1) @ means.T - 0.5 * means.square().sum(dim=1)
