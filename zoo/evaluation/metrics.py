"""How predictions are scored: accuracy overall, per class, by training frequency; calibration; retrieval."""

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
BLOCK = 1 << 24  # similarities at a time: 64 MiB, and as much again while they are sorted


def classification_metrics(
    predictions: Tensor, labels: Tensor, train_counts: Tensor | None, class_names: Sequence[str]
) -> dict[str, Any]:
    """Return plain, JSON-able figures; every accuracy is a percentage from 0 to 100.

    Many, medium and few are means of the accuracies of classes with > 100, 20 to 100 and < 20 training
    images, as in the long-tail literature, not means over images.

    Args:
        predictions: predicted classes `[N]`.
        labels: true classes `[N]`, all known.
        train_counts: training images of each class `[C]`, or None when that is not known.
        class_names: C of them.

    Returns:
        `accuracy`; `balanced_accuracy`, the mean recall of the classes in the test set; `per_class`, C
        accuracies; `many`, `medium`, `few`; None for what no test image is of, or without `train_counts`;
        `test_images`, N. A `DataError` is for an empty test set, or classes outside `[0, C)`.
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
    """Return the expected calibration error in percent: how far confidence is from accuracy.

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

    s is the sample standard deviation of the n values (Student's t). The interval is None of a single value,
    or of the same one every time.
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

    Many, medium and few are left out: every class was seen equally often. Scores are `[draws, N, C]`, labels
    `[N]`; where the scores' softmax is `probable`, it has a calibration error.
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
    """Return recall@k and mean average precision in percent, by cosine similarity, exact.

    Recall@k: the share of queries with an image of their class among the k nearest (Song et al. 2016,
    arXiv 1511.06452, section 6). Of equally similar images those of other classes count as nearer.
    Average precision: over the relevant images r, the mean of the share of relevant ones among all that
    are at least as similar as r (scikit-learn's `average_precision_score`).
    A query without an image of its class in the gallery is left out of both.

    Args:
        queries: `[N, D]`.
        labels: classes of the queries `[N]`.
        gallery: `[M, D]`, on the device to compute on; None: the queries themselves, each without itself.
        gallery_labels: of the gallery `[M]`.
        num_classes: C.
        k: of the recalls.

    Returns:
        `recall_at_K` for each k, `map`, and how many `queries` and `gallery_images` that is over. A
        `ZooError` is for arguments that do not fit, or without an image of any query's class in the gallery.
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
    if len(torch.unique(others)) < 2:  # whatever is found is of the class
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
            if alone:  # a query itself sorts before all others, and is left out
                similarity[torch.arange(len(rows)), rows] = -torch.inf
            own = _sorted(similarity[:, relevant.to(bank.device)])[:, int(alone) :].contiguous()
            # how many are at least as similar as each relevant image, relevant or not
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
    """Sort `[B, M]` along its rows, ascending; NumPy's sort takes a tenth of torch's time on a CPU."""
    on_cpu = values.device.type == "cpu"
    return torch.from_numpy(np.sort(values.numpy(), axis=1)) if on_cpu else values.sort(dim=1).values
