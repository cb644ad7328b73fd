"""Few-shot classification: a classifier on the features of n images of each class, over several draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.data.long_tail import rank_in_class
from zoo.errors import DataError, few
from zoo.functional import class_means
from zoo.functional.checks import check_features
from zoo.seeding import derive_seed


def few_shot_rows(
    labels: Tensor, class_names: Sequence[str], *, shots: int, draws: int, seed: int
) -> Iterator[Tensor]:
    """Yield the rows `[C * shots]`, ascending, of each draw; those of fewer shots are part of those of more.

    Args:
        labels: classes of the training rows `[N]`.
        class_names: C names.
        shots: rows of each class.
        draws: how often.
        seed: of all draws.

    Raises:
        DataError: naming the classes with fewer rows.
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
    of unit features too. A constant of each row is left out.

    Features are `[M, D]` with at least one row of each class, labels `[M]`, test features `[N, D]`.

    Raises:
        DataError: for features that do not fit.
    """
    check_features(features, "few_shot: training features")
    check_features(test, "few_shot: test features", dim=features.shape[1])
    means = class_means(F.normalize(features, dim=1), labels, num_classes)
    return F.normalize(test, dim=1) @ means.T - 0.5 * means.square().sum(dim=1)
