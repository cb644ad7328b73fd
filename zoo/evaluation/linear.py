"""Linear probe: multinomial logistic regression on frozen features, by scikit-learn."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.data.batches import derive_seed
from zoo.data.long_tail import rank_in_class
from zoo.errors import DataError, ZooError
from zoo.functional.checks import check_features, check_labels


@dataclass(frozen=True, eq=False)
class LinearClassifier:
    """A fitted probe; its logits are `weight @ x + bias` on raw features.

    Attributes:
        weight: `[C, D]`, float64; standardisation is folded in.
        bias: `[C]`; minus infinity for classes without training images, which are never predicted.
        l2: strength used: the loss is mean cross-entropy + l2 / 2 * |W|^2 on standardised features.
    """

    weight: Tensor
    bias: Tensor
    l2: float

    def logits(self, features: Tensor) -> Tensor:
        """Return the logits `[N, C]` of `features` `[N, D]`, in float64 on the CPU."""
        check_features(features, "linear probe: features", dim=self.weight.shape[1])
        return features.to(self.weight) @ self.weight.T + self.bias


def fit_linear(
    features: Tensor,
    labels: Tensor,
    num_classes: int,
    *,
    l2_grid: Sequence[float] = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1),
    folds: int = 5,
    select: Literal["accuracy", "balanced_accuracy"] = "balanced_accuracy",
    seed: int = 0,
    balanced: bool = False,
) -> LinearClassifier:
    """Fit a linear classifier on training features; cross-validation chooses the penalty's strength.

    Every image is held out once, except a class's only one. The strength with the lowest held-out
    cross-entropy is used to fit all images. Test data is not an argument, so nothing can be selected on it.
    Cross-entropy is continuous, and in float64 the fit reaches its unique minimum, so that the result is the
    same on any processor. Features are standardised with the statistics of the fitted rows.

    Args:
        features: `[N, D]`.
        labels: `[N]`, from 0 to C - 1.
        num_classes: C.
        l2_grid: strengths of the penalty on the weights (the bias has none).
        folds: number of cross-validation folds.
        select: weigh held-out images equally ("accuracy") or classes equally ("balanced_accuracy").
        seed: of the folds.
        balanced: weigh each image by N / (classes present * images of its class).

    Raises:
        ZooError: for features and labels that do not match, fewer than two classes, several strengths when no
            class has two images, or an invalid setting.
    """
    grid = sorted({float(l2) for l2 in l2_grid}, reverse=True)
    if not grid or not all(0 < l2 < math.inf for l2 in grid) or folds < 2:
        found = f"l2_grid {list(l2_grid)}, folds {folds}"
        raise ZooError(f"linear probe: found {found}, expected numbers above 0, 2 folds or more")
    features, labels = torch.as_tensor(features), torch.as_tensor(labels)  # NumPy's too
    check_features(features, "linear probe: training features")
    check_labels(labels, "linear probe: training labels", count=len(features), num_classes=num_classes)
    x = features.detach().cpu()
    classes, y = torch.unique(labels.long().cpu(), return_inverse=True)
    if len(classes) < 2:
        raise DataError(f"linear probe: found only class {int(classes[0])} in training, expected two or more")
    best = grid[0] if len(grid) == 1 else _cross_validate(x, y, grid, folds, select, seed, balanced)
    ((seen_weight, seen_bias),) = _fits(x, y, [best], balanced, tol=1e-8)
    weight = seen_weight.new_zeros(num_classes, x.shape[1]).index_copy_(0, classes, seen_weight)
    bias = seen_bias.new_full((num_classes,), -math.inf).index_copy_(0, classes, seen_bias)
    return LinearClassifier(weight, bias, best)


def _cross_validate(
    x: Tensor, y: Tensor, grid: Sequence[float], folds: int, select: str, seed: int, balanced: bool
) -> float:
    """Return the strength with the lowest cross-entropy on held-out images."""
    counts = torch.bincount(y)
    # each class starts at a different fold, so that the images of rare classes are not all in one fold
    rank = rank_in_class(y, derive_seed("linear", seed, "split"))
    fold = torch.where(counts[y] > 1, (rank + y) % folds, -1)
    if int(fold.max()) < 0:
        found = f"each of the {len(counts)} classes has a single training image, so none can validate"
        raise DataError(f"linear probe: {found}; expected an l2_grid of one value")
    entropy = torch.zeros(len(grid), len(y), dtype=torch.float64)
    for held in (fold == number for number in sorted({*fold[fold >= 0].tolist()})):
        for i, (weight, bias) in enumerate(_fits(x[~held], y[~held], grid, balanced, tol=1e-5)):
            logits = x[held].double() @ weight.T + bias
            entropy[i, held] = F.cross_entropy(logits, y[held], reduction="none")
    share = (fold >= 0).double()
    if select == "balanced_accuracy":
        share = share / torch.bincount(y, weights=share).clamp(min=1)[y]
    return grid[int((entropy @ share).argmin())]  # the strongest of equals


def _fits(
    x: Tensor, y: Tensor, grid: Sequence[float], balanced: bool, tol: float
) -> list[tuple[Tensor, Tensor]]:
    """Return weight `[C, D]` and bias `[C]` for raw features `[N, D]` at each strength, strongest first.

    Classes `[N]` are 0 to C - 1 without gaps; each fit starts from the previous, stronger one.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    wide = x.double()
    std, mean = torch.std_mean(wide, dim=0, correction=0)
    # a constant feature's deviation is only rounding error: dividing by it would amplify noise
    rounding = 10 * torch.finfo(x.dtype).eps * mean.abs()
    scale = torch.where(std > rounding, std, torch.ones_like(std))
    rows = ((wide - mean) / scale).numpy()
    # for two classes scikit-learn fits one row w, the difference of our two, so that |W|^2 = |w|^2 / 2
    two = int(y.max()) == 1
    class_weight = "balanced" if balanced else None
    model: Any = LogisticRegression(tol=tol, max_iter=3000, warm_start=True, class_weight=class_weight)
    fits = []
    for l2 in grid:
        model.set_params(C=(2 if two else 1) / (l2 * len(y)))
        with warnings.catch_warnings():  # a fit that has nearly converged is good enough
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(rows, y.numpy())
        weight, bias = torch.tensor(model.coef_), torch.tensor(model.intercept_)
        if two:
            weight, bias = torch.cat([-weight, weight]) / 2, torch.cat([-bias, bias]) / 2
        fits.append((weight / scale, bias - (weight / scale) @ mean))
    return fits
