"""One evaluation, from a protocol and a pair of data sets to an entry of metrics.json."""

from __future__ import annotations

import warnings
from datetime import UTC, datetime
from typing import Any, TypeGuard

import torch
from torch import Tensor

from zoo.data.config import data_words
from zoo.errors import ReleaseError, ZooError, ZooWarning
from zoo.evaluation.answers import Answer, Classes, Draws, Neighbours, Truth
from zoo.evaluation.classifier import OwnClassifier, center_logits, own_logits
from zoo.evaluation.encoded import Encoded, ProbeData, total_memory
from zoo.evaluation.few_shot import class_mean_scores, few_shot_rows, linear_logits
from zoo.evaluation.linear import fit_linear
from zoo.evaluation.linear_full import train_linear
from zoo.evaluation.retrieval import Retrieval
from zoo.evaluation.semi_supervised import fine_tune
from zoo.evaluation.trained import ProbeRun
from zoo.functional import mask_classes, post_hoc_adjusted
from zoo.functional.knn import knn_predict
from zoo.modules import Centers
from zoo.recipe.protocols import (
    ClassifierProtocol,
    FewShotProtocol,
    KNNProtocol,
    LinearFullProtocol,
    LinearProtocol,
    Protocol,
    RetrievalProtocol,
    settings_of,
)
from zoo.release.evaluations import headline

__all__ = ["Encoded", "ProbeRun", "check_centers", "measure", "respond"]

_ROOM = 6  # times the training features: what fitting a probe takes at most


def measure(
    protocol: Protocol,
    encoded: Encoded,
    centers: Centers | OwnClassifier | None,
    run: ProbeRun | None = None,
    *,
    learned_elsewhere: bool = False,
) -> dict[str, Any]:
    """Run one protocol and return its entry of metrics.json.

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
    answer = respond(protocol, encoded.probe, centers, run)
    trains = len(encoded.train_set) > 0
    counts = torch.as_tensor(encoded.train_set.class_counts) if trains else None
    chosen = answer.chosen
    elsewhere = learned_elsewhere or not trains
    if elsewhere and isinstance(protocol, ClassifierProtocol) and _counted(centers):
        counts, chosen = centers.class_counts, {**chosen, "train_counts": "of the centers"}
    labels = torch.from_numpy(encoded.test_set.labels.copy())
    truth = Truth(labels, counts, encoded.test_set.class_names)
    trained_on = encoded.train_set.describe() if trains else None  # hashes all names
    tested_on = encoded.test_set.describe()
    beside = {}  # what is said beside every figure, where it is so
    if encoded.shared:
        beside["shared_images"] = encoded.shared
    if (classes := len({*labels.tolist()})) < encoded.test_set.num_classes:
        beside["classes_measured"] = classes
    metrics = answer.metrics(truth)
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


def respond(
    protocol: Protocol,
    data: ProbeData,
    centers: Centers | OwnClassifier | None,
    run: ProbeRun | None = None,
) -> Answer:
    """Run one protocol up to its answer, for which no test label is at hand; see `measure`."""
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
    if isinstance(protocol, LinearFullProtocol):
        return Classes.of_logits(*train_linear(protocol, data, run))
    return Classes.of_logits(*fine_tune(protocol, data, run))


def _linear(protocol: LinearProtocol, data: ProbeData) -> Answer:
    augmentation = protocol.augmentation
    augmented = None if augmentation is None else data.augmented(augmentation, protocol.seed)
    features, labels = data.train
    copies = 1 if augmented is None else 1 + len(augmented)
    probe = fit_linear(
        features.to(_near(data, features, copies)),
        labels,
        data.num_classes,
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
        chosen["backend"] = data.views(augmentation).backend
    return Classes.of_logits(probe.logits(data.test), chosen)


def _knn(protocol: KNNProtocol, data: ProbeData) -> Answer:
    features, labels = data.train
    _warn_of_many_neighbours(protocol.k, labels)
    voted = knn_predict(
        features.to(_near(data, features)),
        labels,
        data.test,
        k=protocol.k,
        tau=protocol.tau,
        num_classes=data.num_classes,
    )
    return Classes(voted.predictions, {"k": voted.settings["k"]})  # fewer where there are fewer images


def _warn_of_many_neighbours(k: int, labels: Tensor) -> None:
    """Say so when more neighbours vote than a class has images.

    Of a perfect encoder, too, those beyond are of other classes: with all images voting, little but their
    temperature tells one query from another. The mean is the bound, not the rarest class, which on a long
    tail is outvoted at any k; the published k of 200 is below it on CIFAR and ImageNet.
    """
    classes = len(torch.unique(labels))
    if classes and k * classes > len(labels):
        mean = len(labels) / classes
        warnings.warn(
            f"knn: found k = {k}, but {len(labels)} training images of {classes} classes, {mean:.3g} of each "
            f"on average: those beyond are of other classes and vote too; expected k of at most {int(mean)}",
            ZooWarning,
            stacklevel=2,
        )


def _few_shot(protocol: FewShotProtocol, data: ProbeData) -> Answer:
    features, labels = data.train
    names, count = data.train_set.class_names, data.num_classes
    drawn = few_shot_rows(labels, names, shots=protocol.shots, draws=protocol.draws, seed=protocol.seed)
    parts = ((features[rows], labels[rows], data.test) for rows in drawn)
    if protocol.classifier == "mean":
        return Draws(tuple(class_mean_scores(*part, num_classes=count) for part in parts), probable=False)
    scores = (linear_logits(*part, num_classes=count, l2=protocol.l2) for part in parts)
    return Draws(tuple(scores), probable=True)


def _retrieval(protocol: RetrievalProtocol, data: ProbeData) -> Answer:
    k = tuple(protocol.k)
    if protocol.gallery == "test":
        return Neighbours(Retrieval(data.test.to(_near(data, data.test))), None, k)
    features, labels = data.train
    return Neighbours(Retrieval(data.test, features.to(_near(data, features))), labels, k)


def check_centers(protocol: Protocol, centers: Centers | OwnClassifier | None) -> None:
    """Make sure that there are the centers a protocol asks for: so that nothing is read or encoded before.

    Raises:
        ReleaseError: for `classifier` without centers, or less the log prior of a model that knows none.
    """
    if not isinstance(protocol, ClassifierProtocol):
        return
    if centers is None:
        raise ReleaseError(
            'protocol "classifier" needs learned centers; this encoder has none. Expected another protocol, '
            'e.g. "linear" or "knn"'
        )
    if isinstance(centers, OwnClassifier) and protocol.tau is not None:
        raise ReleaseError(
            'protocol "classifier", tau: found a model, which does not say how many training images each '
            "class had; expected the release that it was loaded from, whose centers do"
        )


def _classifier(
    protocol: ClassifierProtocol, data: ProbeData, centers: Centers | OwnClassifier | None
) -> Answer:
    check_centers(protocol, centers)
    if isinstance(centers, OwnClassifier):
        return Classes.of_logits(own_logits(data.test, data.num_classes))
    assert centers is not None
    if len(centers.weight) != data.num_classes:
        raise ReleaseError(
            f'protocol "classifier": found centers of {len(centers.weight)} classes, expected '
            f"{data.num_classes}, those of the data"
        )
    if protocol.tau is not None:
        centers = _without_prior(centers, protocol.tau)
    return Classes.of_logits(center_logits(data.test, centers))


def _counted(centers: Centers | OwnClassifier | None) -> TypeGuard[Centers]:
    """Whether the number of images that each center was learned from is known."""
    return isinstance(centers, Centers) and bool((centers.class_counts >= 0).all())


def _without_prior(centers: Centers, tau: float) -> Centers:
    """Take `tau` times the log prior off; a class without training images is then never predicted."""
    counts = centers.class_counts
    if not _counted(centers):
        raise ReleaseError(
            'protocol "classifier", tau: found centers without the number of training images of each class, '
            "expected to know it, for the prior is made of it"
        )
    bias = post_hoc_adjusted(centers.bias, counts, tau=tau)
    weight, bias = mask_classes(centers.weight, bias, counts == 0)
    return centers._replace(weight=weight, bias=bias)


def _near(data: ProbeData, features: Tensor, copies: int = 1) -> torch.device:
    """Return the encoder's device if `copies` of `features` can be worked on there."""
    needed = _ROOM * copies * features.nbytes
    return data.device if needed < total_memory(data.device) else features.device
