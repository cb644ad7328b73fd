"""Metrics: accuracy overall, per class and by training frequency; calibration error; retrieval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.errors import DataError, ZooError
from zoo.functional import frequency_groups
from zoo.functional.checks import check_features, check_labels

_BINS = 15  # of the calibration error, as in its paper
BLOCK = 1 << 24  # similarities computed at a time: 64 MiB, twice that while sorting


def classification_metrics(
    predictions: Tensor, labels: Tensor, train_counts: Tensor | None, class_names: Sequence[str]
) -> dict[str, Any]:
    """Return plain numbers for JSON; accuracies are percentages from 0 to 100.

    Many, medium and few are mean class accuracies over the classes with > 100, 20 to 100 and < 20 training
    images, as in the long-tail literature, not means over images.

    Args:
        predictions: predicted classes `[N]`.
        labels: true classes `[N]`, all known.
        train_counts: training images of each class `[C]`, or None if unknown.
        class_names: the C class names.

    Returns:
        `accuracy`; `balanced_accuracy`, the mean recall of the classes in the test set; `per_class`, C
        accuracies, None without test images; `many`, `medium`, `few`, also None without `train_counts`;
        `test_images`, N. DataError for an empty test set, or classes outside `[0, C)`.
    """
    num_classes = len(class_names)
    if len(labels) == 0:
        raise DataError("accuracy: the test set is empty")
    check_labels(labels, "test labels", count=len(labels), num_classes=num_classes)
    labels, predictions = labels.cpu(), predictions.cpu()
    correct = torch.bincount(labels[predictions == labels], minlength=num_classes)
    total = torch.bincount(labels, minlength=num_classes)
    present = total > 0
    recall = 100.0 * correct.double() / total.clamp(min=1)
    groups: dict[str, float | None] = dict.fromkeys(("many", "medium", "few"))
    for name, members in {} if train_counts is None else frequency_groups(train_counts.cpu()).items():
        if (members & present).any():
            groups[name] = float(recall[members & present].mean())
    return {
        "accuracy": 100.0 * int(correct.sum()) / len(labels),
        "balanced_accuracy": float(recall[present].mean()),
        "per_class": [float(r) if p else None for r, p in zip(recall, present, strict=True)],
        **groups,
        "test_images": len(labels),
    }


def calibration_error(logits: Tensor, labels: Tensor) -> float:
    """Return the expected calibration error in percent, the gap between confidence and accuracy.

    ECE = sum over bins m of |B_m| / N * |acc(B_m) - conf(B_m)|, with M = 15 bins ((m - 1) / M, m / M] of the
    predicted class's probability (Guo et al. 2017, arXiv 1706.04599, equation 3). Logits are `[N, C]`, minus
    infinity for a class that is never predicted, and labels `[N]`.
    """
    confidence, predicted = logits.double().cpu().softmax(dim=1).max(dim=1)
    right = (predicted == labels.cpu()).double()
    place = (confidence * _BINS).ceil().long().clamp(1, _BINS) - 1
    gap = torch.zeros(_BINS, dtype=torch.float64).index_add_(0, place, right - confidence)
    return 100.0 * float(gap.abs().sum()) / len(logits)


def mean_interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean of values and half the width of its 95 % interval, t(0.975, n - 1) s / sqrt(n).

    s is the sample standard deviation of the n values (Student's t). The interval is None for a single value,
    or if all are equal.
    """
    count = len(values)
    mean = math.fsum(values) / count
    if len({*values}) == 1:
        return mean, None
    from scipy import stats

    return mean, float(stats.t.ppf(0.975, count - 1) * stats.sem(values))


def draws_metrics(
    draws: Tensor, labels: Tensor, class_names: Sequence[str], *, probable: bool
) -> dict[str, Any]:
    """Return each draw's accuracy, the means over draws, and the 95 % interval (Student's t) of `accuracy`.

    There is no many, medium and few, since all classes were seen equally often. Scores are `[draws, N, C]`,
    labels `[N]`; if the scores' softmax gives probabilities (`probable`), calibration error is included.
    """
    each = [classification_metrics(scores.argmax(dim=1), labels, None, class_names) for scores in draws]
    accuracies, balanced = ([metrics[key] for metrics in each] for key in ("accuracy", "balanced_accuracy"))
    accuracy, half_width = mean_interval(accuracies)
    result: dict[str, Any] = {"accuracy": accuracy, "balanced_accuracy": mean_interval(balanced)[0]}
    result |= {"accuracy_interval": half_width, "accuracy_of_draws": accuracies, "test_images": len(labels)}
    errors = [calibration_error(scores, labels) for scores in draws if probable]
    return {**result, "calibration_error": mean_interval(errors)[0]} if errors else result


def retrieval_metrics(
    queries: Tensor,
    labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    num_classes: int,
    k: Sequence[int],
) -> dict[str, float | int]:
    """Return exact recall@k and mean average precision in percent, by cosine similarity.

    Recall@k: the share of queries with an image of their class among the k nearest (Song et al. 2016,
    arXiv 1511.06452, section 6). Ties count against the query: images of other classes come first.
    Average precision: the mean over the relevant images r of the share of relevant ones among all that
    are at least as similar as r (scikit-learn's `average_precision_score`).
    Queries without an image of their class in the gallery are left out of both.

    Args:
        queries: `[N, D]`.
        labels: classes of the queries `[N]`.
        gallery: `[M, D]`, on the device to compute on; None: the queries, each excluding itself.
        gallery_labels: classes of the gallery `[M]`.
        num_classes: C.
        k: values of k for recall@k.

    Returns:
        `recall_at_K` for each k, `map`, and the numbers of `queries` and `gallery_images`. ZooError for
        arguments that do not match, or if the gallery has no image of any query's class.
    """
    if not k or min(k) < 1:
        raise ZooError(f"retrieval: found k = {list(k)}, expected one or more numbers from 1")
    alone = gallery is None
    bank = queries if gallery is None else gallery
    others = labels if gallery_labels is None else gallery_labels
    check_features(queries, "retrieval: query features")
    check_features(bank, "retrieval: gallery features", dim=queries.shape[1])
    check_labels(labels, "retrieval: query labels", count=len(queries), num_classes=num_classes)
    check_labels(others, "retrieval: gallery labels", count=len(bank), num_classes=num_classes)
    if len(torch.unique(others)) < 2:  # every result would be correct
        raise DataError("retrieval: found a gallery of 1 class, expected two or more")
    bank, others, labels = F.normalize(bank.float(), dim=1), others.cpu(), labels.cpu()
    first, precision = [], []
    for label in torch.unique(labels).tolist():
        relevant = (others == label).nonzero().flatten()
        if len(relevant) <= alone:
            continue
        for rows in torch.split((labels == label).nonzero().flatten(), max(1, BLOCK // len(bank))):
            unit = F.normalize(queries[rows.to(queries.device)].to(bank), dim=1)
            similarity = unit @ bank.T
            if alone:  # exclude the query itself, which is sorted before all others
                similarity[torch.arange(len(rows)), rows] = -torch.inf
            own = _sorted(similarity[:, relevant.to(bank.device)])[:, int(alone) :].contiguous()
            # the number of images, relevant or not, at least as similar as each relevant one
            above = len(bank) - torch.searchsorted(_sorted(similarity), own, side="left")
            above_own = own.shape[1] - torch.searchsorted(own, own, side="left")
            first.append(1 + (above - above_own)[:, -1].cpu())
            precision.append((above_own.double() / above).mean(dim=1).cpu())
    if not first:
        raise DataError("retrieval: no query has another image of its class in the gallery")
    ranks = torch.cat(first)
    return {
        **{f"recall_at_{n}": 100.0 * float((ranks <= n).double().mean()) for n in sorted(set(k))},
        "map": 100.0 * float(torch.cat(precision).mean()),
        "queries": len(ranks),
        "gallery_images": len(bank) - alone,
    }


def _sorted(values: Tensor) -> Tensor:
    """Sort the rows of `[B, M]`, ascending; on a CPU NumPy sorts ten times as fast as torch."""
    on_cpu = values.device.type == "cpu"
    return torch.from_numpy(np.sort(values.numpy(), axis=1)) if on_cpu else values.sort(dim=1).values
