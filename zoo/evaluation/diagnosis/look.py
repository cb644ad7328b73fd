"""What an encoder makes of a sample of images: features, scores of pairs, accuracies, neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from zoo.data import EvalView, ImageDataset, ViewsConfig
from zoo.modules.centers import Centers


class Landmark(NamedTuple):
    """Where a reference lies in the plane of uniformity and tolerance."""

    uniformity: float
    tolerance: float


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


@dataclass(frozen=True, eq=False)
class Look:
    """What was seen.

    Attributes:
        total: test images there are; the sample has N of them.
        seed: of the sample, and of the two views.
        index: which test images `[N]`, in random order.
        features: unit rows `[N, D]` under the evaluation view.
        norms: of the features before `[N]`.
        labels: `[N]`.
        uniformity: log E exp(-2 |x - y|^2) over pairs of the sample.
        tolerance: mean cosine of pairs of one class; None where no class has two images.
        scores: cosines of A anchors, the first of the sample, with all of it `[A, N]`.
        positive_scores: cosines of two training views of the same image `[N]`; None: see `without_views`.
        alignment: E |q - k|^2 of these views.
        without_views: why there are no such views.
        per_class: accuracy of each class in percent `[C]`, NaN for a class without a test image in the sample.
        accuracy: over all images of the sample, in percent.
        classifier: what classified, in words.
        gallery: training images that were encoded, of `gallery_total`.
        gallery_total: see above.
        gradient: norm of the cross-entropy's gradient with respect to the features, at the released encoder
            and centers, mean over the gallery's images of each class `[C]`, NaN for a class without; None
            without centers.
        neighbours: of some query images.
        landmarks: by name, of those that were asked for.
    """

    total: int
    seed: int
    index: Tensor
    features: Tensor
    norms: Tensor
    labels: Tensor
    uniformity: float
    tolerance: float | None
    scores: Tensor
    positive_scores: Tensor | None
    alignment: float | None
    without_views: str | None
    per_class: Tensor
    accuracy: float
    classifier: str
    gallery: int
    gallery_total: int
    gradient: Tensor | None
    neighbours: Sequence[Neighbours]
    landmarks: Mapping[str, Landmark] = field(default_factory=dict)


def look(
    encoder: nn.Module,
    train_set: ImageDataset,
    test_set: ImageDataset,
    *,
    view: EvalView,
    mean: Sequence[float],
    std: Sequence[float],
    views: ViewsConfig | None = None,
    image_size: int | None = None,
    centers: Centers | None = None,
    sample: int = 2000,
    seed: int = 0,
    device: torch.device | str = "cpu",
    workers: int = 0,
    max_bad_images: int = 0,
    cache: bool = False,
    landmarks: Mapping[str, nn.Module] | None = None,
) -> Look:
    """Look at an encoder through a seeded sample of the test images.

    Test labels are used for measures and figures alone. The encoder is in evaluation mode throughout, and
    scores are cosines of its pooled features: a release has no projection head.

    Args:
        encoder: headless, images `[B, 3, S, S]` to features `[B, D]`.
        train_set: where neighbours come from; of more than ten times `sample` images, a seeded part.
        test_set: what the sample is drawn from.
        view: the evaluation view.
        mean: of the channels, for values in 0..1.
        std: likewise.
        views: the recipe's, for two training views of each image; None where it has none.
        image_size: the recipe's `data.image_size`.
        centers: in the space of the features; without, kNN classifies.
        sample: test images to look at; all of them when there are fewer.
        seed: of the sample, the views' draws and the query images.
        device: where to compute.
        workers: processes that decode.
        max_bad_images: of the training images, as in training.
        cache: take decoded images from the file where a training has kept them.
        landmarks: other encoders of the same images, by name; see `landmarks_of`.

    Raises:
        DataError: for an empty split, splits with other classes, or images that cannot be read.
        ZooError: for `sample` below 4.
    """
    raise NotImplementedError


def landmarks_of(arch: str, model_args: Mapping[str, object], *, seed: int) -> dict[str, nn.Module]:
    """Return what a trained encoder is compared with: raw pixels, and its architecture with random weights."""
    raise NotImplementedError
