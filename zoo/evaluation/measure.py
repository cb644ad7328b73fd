"""One evaluation, from a protocol and a pair of data sets to an entry of metrics.json.

A protocol gives its answer without knowing the test labels; they reach nothing but the score of that answer.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor

from zoo.data.config import data_words
from zoo.errors import ReleaseError, ZooError, ZooWarning
from zoo.evaluation.few_shot import class_mean_scores, few_shot_rows
from zoo.evaluation.linear import fit_linear
from zoo.evaluation.metrics import Truth, classification_metrics, score_draws, score_logits
from zoo.evaluation.probe_data import Encoded, ProbeData, total_memory
from zoo.evaluation.published import ProbeRun, train_classifier
from zoo.evaluation.retrieval import retrieval_metrics
from zoo.functional import knn_predict, mask_classes, post_hoc_adjusted
from zoo.functional.checks import check_features
from zoo.modules import Centers
from zoo.recipe.protocols import (
    TRAINED,
    ClassifierProtocol,
    FewShotProtocol,
    KNNProtocol,
    LinearProtocol,
    Protocol,
    RetrievalProtocol,
    settings_of,
)
from zoo.release.evaluations import headline
from zoo.training.progress import say
from zoo.training.signals import interruptible

_ROOM = 6  # times the training features: what fitting a probe takes at most


class Answer(NamedTuple):
    """What a protocol says of the test images.

    Attributes:
        predictions: all that its metrics follow from, given the labels.
        score: returns the entry's metrics, plain and JSON-able.
        chosen: what the protocol found on the way: no setting, and no part of an entry's identity.
    """

    predictions: Tensor
    score: Callable[[Truth], dict[str, Any]]
    chosen: dict[str, Any] = {}  # never changed


class OwnClassifier:
    """Takes the centers' place for a model that ends in a classifier: what it makes of images are logits."""


def measure(
    protocol: Protocol,
    encoded: Encoded,
    centers: Centers | OwnClassifier | None,
    run: ProbeRun | None = None,
    *,
    learned_elsewhere: bool = False,
) -> dict[str, Any]:
    """Run one protocol, saying so on standard error, and return its entry of metrics.json.

    Args:
        protocol: what to do.
        encoded: the encoder and its data; without training images for a protocol that reads none.
        centers: the learned centers, for `classifier`; or that the encoder is none, but ends in a classifier.
        run: where `linear_full` and `semi_supervised` keep their state.
        learned_elsewhere: the centers were learned on other images than `encoded`'s training set, so that the
            classes of `classifier` have many or few images by the centers' own counts, where they are known.

    Raises:
        Interrupted: when one of these is stopped by a signal, with its state saved.
        ReleaseError: if the classifier is asked for and there are no centers, or for other classes.
    """
    trains = protocol.protocol in TRAINED  # which shows its own progress
    if not trains:
        say(f"measuring: {protocol.protocol}, {len(encoded.test_set):,} test images")
    with interruptible(lambda: "what was trained so far is kept") if trains else nullcontext():
        answer = run_protocol(protocol, encoded.probe, centers, run)
    seen = len(encoded.train_set) > 0
    counts = torch.as_tensor(encoded.train_set.class_counts) if seen else None
    chosen = answer.chosen
    if isinstance(protocol, ClassifierProtocol) and (learned_elsewhere or not seen) and _counted(centers):
        counts, chosen = centers.class_counts, {**chosen, "train_counts": "of the centers"}
    labels = torch.from_numpy(encoded.test_set.labels.copy())
    trained_on = encoded.train_set.describe() if seen else None  # hashes all names
    tested_on = encoded.test_set.describe()
    beside = {}  # what is said beside every figure, where it is so
    if encoded.shared:
        beside["shared_images"] = encoded.shared
    if (classes := len({*labels.tolist()})) < encoded.test_set.num_classes:
        beside["classes_measured"] = classes
    metrics = answer.score(Truth(labels, counts, encoded.test_set.class_names))
    return {
        "protocol": protocol.protocol,
        "data": data_words(trained_on or tested_on),
        "split": "test",
        **headline(metrics),
        "train_set": trained_on,
        "test_set": tested_on,
        **beside,
        "metrics": metrics,
        "settings": settings_of(protocol),
        "chosen": chosen,
        "seed": getattr(protocol, "seed", None),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _counted(centers: Centers | OwnClassifier | None) -> TypeGuard[Centers]:
    """Whether the number of images that each center was learned from is known."""
    return isinstance(centers, Centers) and bool((centers.class_counts >= 0).all())


def run_protocol(
    protocol: Protocol,
    data: ProbeData,
    centers: Centers | OwnClassifier | None,
    run: ProbeRun | None = None,
) -> Answer:
    """Run one protocol up to its answer. Has no access to test labels; see `measure`."""
    if isinstance(protocol, LinearProtocol):
        return _linear(protocol, data)
    if isinstance(protocol, KNNProtocol):
        return _knn(protocol, data)
    if isinstance(protocol, FewShotProtocol):
        return _few_shot(protocol, data)
    if isinstance(protocol, RetrievalProtocol):
        return _retrieval(protocol, data)
    if isinstance(protocol, ClassifierProtocol):
        return _classifier(protocol, data, centers)
    if run is None:
        raise ZooError(f'protocol "{protocol.protocol}": found no folder for the state of its training')
    return _of_logits(*train_classifier(protocol, data, run))


def _of_logits(logits: Tensor, chosen: dict[str, Any] | None = None) -> Answer:
    return Answer(logits.argmax(dim=1), partial(score_logits, logits), chosen or {})


def _linear(protocol: LinearProtocol, data: ProbeData) -> Answer:
    features, labels = data.train
    probe = fit_linear(
        features,
        labels,
        data.num_classes,
        l2_grid=protocol.l2_grid,
        folds=round(1 / protocol.validation_fraction),
        select=protocol.select,
        seed=protocol.seed,
        balanced=protocol.balanced,
    )
    return _of_logits(probe.logits(data.test), {"l2": probe.l2})


def _knn(protocol: KNNProtocol, data: ProbeData) -> Answer:
    features, labels = data.train
    # Of a perfect encoder, too, neighbours beyond a class's images are of other classes. The mean is the
    # bound, not the rarest class, which on a long tail is outvoted at any k; the published k of 200 is below
    # it on CIFAR and ImageNet.
    classes = len(torch.unique(labels))
    if classes and protocol.k * classes > len(labels):
        mean = len(labels) / classes
        warnings.warn(
            f"knn: found k = {protocol.k}, but {len(labels)} training images of {classes} classes, "
            f"{mean:.3g} of each on average: those beyond are of other classes and vote too; expected k of "
            f"at most {int(mean)}",
            ZooWarning,
            stacklevel=2,
        )
    voted = knn_predict(
        features.to(_near(data, features)),
        labels,
        data.test,
        k=protocol.k,
        tau=protocol.tau,
        num_classes=data.num_classes,
    )
    found = voted.predictions
    chosen = {"k": voted.settings["k"]}  # fewer where there are fewer images
    return Answer(found, lambda truth: classification_metrics(found, *truth), chosen)


def _few_shot(protocol: FewShotProtocol, data: ProbeData) -> Answer:
    features, labels = data.train
    names, count = data.train_set.class_names, data.num_classes
    scores = []
    for rows in few_shot_rows(labels, names, shots=protocol.shots, draws=protocol.draws, seed=protocol.seed):
        if protocol.classifier == "mean":
            scores.append(class_mean_scores(features[rows], labels[rows], data.test, num_classes=count))
        else:
            probe = fit_linear(features[rows], labels[rows], count, l2_grid=[protocol.l2])
            scores.append(probe.logits(data.test))
    predictions = torch.stack([each.argmax(dim=1) for each in scores])
    return Answer(predictions, partial(score_draws, scores, protocol.classifier == "linear"))


def _retrieval(protocol: RetrievalProtocol, data: ProbeData) -> Answer:
    test, gallery, others = data.test, None, None
    if protocol.gallery == "train":
        gallery, others = data.train
        gallery = gallery.to(_near(data, gallery))

    def score(truth: Truth) -> dict[str, Any]:
        count = len(truth.class_names)
        found = retrieval_metrics(test, truth.labels, gallery, others, num_classes=count, k=protocol.k)
        return {**found, "test_images": len(truth.labels)}

    return Answer(test, score)


def check_centers(protocol: Protocol, centers: Centers | OwnClassifier | None) -> None:
    """Make sure that there are the centers a protocol asks for: so that nothing is read or encoded before.

    Raises:
        ReleaseError: for `classifier` without centers, or less the log prior of centers or a model that do
            not say how many training images each class had.
    """
    if not isinstance(protocol, ClassifierProtocol):
        return
    if centers is None:
        raise ReleaseError(
            'protocol "classifier" needs learned centers; this encoder has none. Expected another protocol, '
            'e.g. "linear" or "knn"'
        )
    if protocol.tau is not None and not _counted(centers):
        found = "a model" if isinstance(centers, OwnClassifier) else "centers"
        raise ReleaseError(
            f'protocol "classifier", tau: found {found} without the number of training images of each class, '
            "which the prior is made of; expected a release that has them"
        )


def _classifier(
    protocol: ClassifierProtocol, data: ProbeData, centers: Centers | OwnClassifier | None
) -> Answer:
    check_centers(protocol, centers)
    if not isinstance(centers, Centers):
        check_features(data.test, "logits", dim=data.num_classes)
        return _of_logits(data.test)
    if len(centers.weight) != data.num_classes:
        raise ReleaseError(
            f'protocol "classifier": found centers of {len(centers.weight)} classes, expected '
            f"{data.num_classes}, those of the data"
        )
    check_features(data.test, "features", dim=centers.weight.shape[1])
    if protocol.tau is not None:
        centers = without_prior(centers, protocol.tau)
    return _of_logits(centers.logits(data.test))


def without_prior(centers: Centers, tau: float) -> Centers:
    """Take `tau` times the log prior off; a class without training images is then never predicted."""
    counts = centers.class_counts
    bias = post_hoc_adjusted(centers.bias, counts, tau=tau)
    weight, bias = mask_classes(centers.weight, bias, counts == 0)
    return centers._replace(weight=weight, bias=bias)


def _near(data: ProbeData, features: Tensor) -> torch.device:
    """Return the encoder's device if there is room for `features` and a probe on them."""
    return data.device if _ROOM * features.nbytes < total_memory(data.device) else features.device
