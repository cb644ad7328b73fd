"""Accuracy overall, per class, and by how often a class was seen in training; calibration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from scipy import stats
from torch import Tensor

from zoo.errors import DataError
from zoo.functional import frequency_groups
from zoo.functional.checks import check_labels


def classification_metrics(
    predictions: Tensor, labels: Tensor, train_counts: Tensor | None, class_names: Sequence[str]
) -> dict[str, Any]:
    """Return plain, JSON-able figures; every accuracy is a percentage from 0 to 100.

    Many, medium and few are means of the accuracies of classes with > 100, 20 to 100 and < 20 training
    images, as in the long-tail literature (not means over images; on a balanced test set both agree).

    Args:
        predictions: predicted classes `[N]`, integer.
        labels: true classes `[N]`, integer, all known.
        train_counts: training images of each class `[C]`, or None when that is not known.
        class_names: names of the C classes.

    Returns:
        `accuracy`; `balanced_accuracy`, the mean recall of the classes in the test set; `per_class`, C
        accuracies, None for a class that is not in the test set; `many`, `medium`, `few`, None for a
        group without a class in the test set and without `train_counts`; `test_images`, N.

    Raises:
        DataError: for an empty test set, or classes outside `[0, C)`.
    """
    num_classes = len(class_names)
    if len(labels) == 0:
        raise DataError("accuracy: the test set is empty, expected at least one labelled image")
    check_labels(labels, "test labels", count=len(labels), num_classes=num_classes)
    check_labels(predictions, "predictions", count=len(labels), num_classes=num_classes)
    correct, total = _count(predictions, labels, num_classes)
    present = total > 0
    recall = 100.0 * correct.double() / total.clamp(min=1)
    groups: dict[str, float | None] = dict.fromkeys(("many", "medium", "few"))
    if train_counts is not None:
        if tuple(train_counts.shape) != (num_classes,):
            raise DataError(f"train_counts: found {tuple(train_counts.shape)}, expected ({num_classes},)")
        for name, members in frequency_groups(train_counts.cpu()).items():
            chosen = recall[members & present]
            groups[name] = float(chosen.mean()) if len(chosen) else None
    return {
        "accuracy": 100.0 * int(correct.sum()) / len(labels),
        "balanced_accuracy": float(recall[present].mean()),
        "per_class": [float(r) if p else None for r, p in zip(recall, present, strict=True)],
        **groups,
        "test_images": len(labels),
    }


def calibration_error(logits: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Return the expected calibration error in percent: how far confidence is from accuracy.

    ECE = sum over bins m of |B_m| / N * |acc(B_m) - conf(B_m)|, with equally wide bins ((m - 1) / M, m / M]
    of the predicted class's probability (Guo et al. 2017, arXiv 1706.04599, equation 3; their M is 15).

    Args:
        logits: `[N, C]`; minus infinity for a class that is never predicted.
        labels: true classes `[N]`, integer.
        bins: M.

    Raises:
        DataError: for an empty test set, or labels outside `[0, C)`.
    """
    if len(logits) == 0:
        raise DataError("calibration error: the test set is empty, expected at least one labelled image")
    check_labels(labels, "test labels", count=len(logits), num_classes=logits.shape[1])
    confidence, predicted = logits.double().cpu().softmax(dim=1).max(dim=1)
    right = (predicted == labels.cpu()).double()
    place = (confidence * bins).ceil().long().clamp(1, bins) - 1
    gap = torch.zeros(bins, dtype=torch.float64).index_add_(0, place, right - confidence)
    return 100.0 * float(gap.abs().sum()) / len(logits)


def _count(predictions: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return how many images of each class are right, and how many there are, both `[C]`."""
    labels, predictions = labels.cpu(), predictions.cpu()
    hits = torch.bincount(labels[predictions == labels], minlength=num_classes)
    return hits, torch.bincount(labels, minlength=num_classes)


def mean_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float | None]:
    """Return the mean of values and half the width of its interval, t((1 + level) / 2, n - 1) s / sqrt(n).

    Args:
        values: n of them, of seeds or draws; s is their sample standard deviation.
        level: of the interval (Student's t).

    Returns:
        The mean, and None for the interval where the values say nothing of it: of a single one, or of the
        same one every time.
    """
    count = len(values)
    mean = math.fsum(values) / count
    if len({*values}) == 1:
        return mean, None
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    return mean, float(stats.t.ppf((1 + level) / 2, count - 1)) * deviation / math.sqrt(count)
