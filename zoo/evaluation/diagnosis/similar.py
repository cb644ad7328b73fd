"""Query images, and the images that an encoder takes for most similar to them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from zoo.data import EvalView, ImageDataset, eval_images
from zoo.errors import DataError
from zoo.evaluation.features import Features

_QUERIES, _SHOWN = 4, 4  # query images, and neighbours shown of each


class Neighbours(NamedTuple):
    """One query image of the test split and what is most similar to it.

    Attributes:
        image: the query `[3, h, w]`, uint8.
        label: its class.
        nearest: training images `[k, 3, h, w]`, most similar first.
        nearest_labels: `[k]`.
        nearest_scores: cosines `[k]`.
        hardest: test images of another class `[k, 3, h, w]`, most similar first.
        hardest_labels: `[k]`.
        hardest_scores: `[k]`.
    """

    image: Tensor
    label: int
    nearest: Tensor
    nearest_labels: Tensor
    nearest_scores: Tensor
    hardest: Tensor
    hardest_labels: Tensor
    hardest_scores: Tensor


def find_neighbours(
    tested: ImageDataset,
    gallery: ImageDataset,
    features: Tensor,
    known: Features,
    class_counts: NDArray[np.int64],
    view: EvalView,
) -> list[Neighbours]:
    """Return query images of classes from the most to the least frequent, and what is nearest to them.

    Args:
        tested: the sample of N test images.
        gallery: training images.
        features: unit rows of the sample `[N, D]`.
        known: features of the gallery's readable images, and their labels.
        class_counts: training images of each class `[C]`.
        view: how images are shown.
    """
    labels = torch.from_numpy(tested.labels.copy())
    readable = _readable(gallery, len(known.labels))
    bank = F.normalize(known.features, dim=1)
    found = []
    for query in _queries(tested.labels, class_counts):
        label = int(labels[query])
        similar = (bank @ features[query]).topk(min(_SHOWN, len(bank)))
        other = torch.where(labels == label, -torch.inf, features @ features[query])
        hard = other.topk(min(_SHOWN, int((labels != label).sum())))
        places = readable[similar.indices.numpy()]
        found.append(
            Neighbours(
                image=_pixels(tested, [query], view)[0],
                label=label,
                nearest=_pixels(gallery, places, view),
                nearest_labels=known.labels[similar.indices],
                nearest_scores=similar.values,
                hardest=_pixels(tested, hard.indices.numpy(), view),
                hardest_labels=labels[hard.indices],
                hardest_scores=hard.values,
            )
        )
    return found


def _queries(labels: NDArray[np.int64], class_counts: NDArray[np.int64]) -> list[int]:
    """Return the first image of up to four classes, evenly spaced from the most to the least frequent."""
    present = np.unique(labels)
    ordered = present[np.argsort(-class_counts[present], kind="stable")]
    places = np.unique(np.linspace(0, len(ordered) - 1, _QUERIES).round().astype(int))
    return [int(np.flatnonzero(labels == c)[0]) for c in ordered[places]]


def _readable(dataset: ImageDataset, count: int) -> NDArray[np.int64]:
    """Return the positions of the `count` images that were encoded, since others cannot be read."""
    if count == len(dataset):
        return np.arange(count)
    good = []
    for index in range(len(dataset)):
        try:
            dataset.image(index)
        except DataError:
            continue
        good.append(index)
    return np.array(good, dtype=np.int64)


def _pixels(dataset: ImageDataset, indices: Any, view: EvalView) -> Tensor:
    """Return images under the evaluation view `[M, 3, S, S]`, uint8."""
    if len(indices) == 0:
        return torch.empty(0, 3, 1, 1, dtype=torch.uint8)
    plain = {"mean": (0.0,) * 3, "std": (1.0,) * 3, "device": "cpu", "batch_size": len(indices)}
    batches = eval_images(dataset.subset(indices), view, **plain)  # type: ignore[arg-type]
    return torch.cat([(images * 255).round().to(torch.uint8) for images, _ in batches])
