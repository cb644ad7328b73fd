"""Linear probe: multinomial logistic regression on frozen, cached features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from zoo.data.stratified import stratified_split
from zoo.errors import DataError, ZooError, did_you_mean
from zoo.evaluation.metrics import classification_metrics
from zoo.evaluation.solvers import SOLVERS, Problem
from zoo.functional.checks import check_features, check_labels
from zoo.seeding import derive_seed

Select = Literal["accuracy", "balanced_accuracy"]
Solver = Literal["lbfgs", "sgd"]

L2_GRID = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
"""As of `zoo evaluate linear`."""


@dataclass(frozen=True, eq=False)
class LinearClassifier:
    """A fitted probe; its logits are `weight @ x + bias` on raw features.

    Attributes:
        weight: `[C, D]`, float32 or float64 as the features were; standardisation is folded in.
        bias: `[C]`; minus infinity for a class without training images, which is never predicted.
        l2: strength used: the loss is mean cross-entropy + l2 / 2 * |W|^2 on standardised features.
            In scikit-learn's terms C = 1 / (l2 * N).
        validation_scores: for each strength tried, strongest first, the score in percent on the
            validation part; empty when the grid had one value.
        converged: whether the last fit ended by itself (L-BFGS: before `max_iter`; SGD: with no component
            of the gradient above 1e-3).
    """

    weight: Tensor
    bias: Tensor
    l2: float
    validation_scores: dict[float, float]
    converged: bool

    def logits(self, features: Tensor) -> Tensor:
        """Return the logits `[N, C]` of `features` `[N, D]`, on the probe's device."""
        check_features(features, "linear probe: features", dim=self.weight.shape[1])
        return features.to(self.weight) @ self.weight.T + self.bias

    def predict(self, features: Tensor) -> Tensor:
        """Return the predicted classes `[N]`, int64, of `features` `[N, D]`."""
        return self.logits(features).argmax(dim=1)


def fit_linear(
    features: Tensor,
    labels: Tensor,
    num_classes: int,
    *,
    l2_grid: Sequence[float] = L2_GRID,
    validation_fraction: float = 0.2,
    select: Select = "balanced_accuracy",
    seed: int = 0,
    balanced: bool = False,
    max_iter: int | None = None,
    solver: Solver = "lbfgs",
    augmented: Tensor | None = None,
) -> LinearClassifier:
    """Fit on training features alone; the strength of the penalty is chosen inside the training set.

    A stratified part of the training set is put aside, the grid is fitted on the rest from the strongest
    penalty to the weakest, each fit starting from the last, the best score wins (the stronger of equals),
    and that strength is fitted again on all of the training set. Test data is no argument, so it cannot
    be selected on. Features are standardised by the statistics of the rows that are fitted.

    With `augmented` views, those of the fitted images are fitted too; those of the images put aside are not,
    and the score is on the evaluation view alone, as at the end.

    Small classes: one image stays in the fitted part (validated by nothing); from two on, at least one
    is put aside and at least one is fitted. A class without images is never predicted.

    Args:
        features: `[N, D]`; computed on their device, in float64 if they are float64, else in float32.
        labels: `[N]`, integer.
        num_classes: C.
        l2_grid: strengths of the penalty on the weights (the bias has none).
        validation_fraction: part of each class that is put aside, in (0, 1).
        select: the score on the validation part that chooses.
        seed: of the split and of the order of SGD's batches.
        balanced: weigh each image by N / (classes present * images of its class).
        max_iter: iterations of L-BFGS (default 1000) or epochs of SGD (default 100) per fit.
        solver: `"lbfgs"` (full batch) or `"sgd"` (batches of 1024) for sets too large for that.
        augmented: features of A augmented views of the same images `[A, N, D]`.

    Raises:
        DataError: for features that are not finite, labels outside `[0, C)`, fewer than two classes, or
            a choice to make when no class has two images.
        ZooError: for an impossible setting.
    """
    grid = _check_settings(l2_grid, validation_fraction, select, solver, max_iter)
    check_features(features, "linear probe: training features")
    check_labels(labels, "linear probe: training labels", count=len(features), num_classes=num_classes)
    features = features.detach().to(torch.float64 if features.dtype == torch.float64 else torch.float32)
    classes, targets = torch.unique(labels.to(features.device), return_inverse=True)
    if len(classes) < 2:
        raise DataError(f"linear probe: found only class {int(classes[0])} in training, expected two or more")
    views = features[None]  # [1 + A, N, D]
    if augmented is not None:
        _check_augmented(augmented, features)
        views = torch.cat([views, augmented.detach().to(features)])
    run = SOLVERS[solver]
    start = features.new_zeros(len(classes), features.shape[1] + 1)
    scores: dict[float, float] = {}
    best = grid[0]
    if len(grid) > 1:
        part = derive_seed("linear", seed, "split")
        fit_rows, held_rows = stratified_split(targets, validation_fraction, part)
        if len(held_rows) == 0:
            raise DataError(
                f"linear probe: each of the {len(classes)} classes has a single training image, so none can"
                f" validate the {len(grid)} strengths; expected an l2_grid of one value"
            )
        problem = _problem(views[:, fit_rows], targets[fit_rows], len(classes), balanced)
        held, held_targets = features[held_rows], targets[held_rows]
        names = [str(int(c)) for c in classes]
        current = start
        for l2 in grid:
            current, _ = run(problem, l2, current, max_iter, derive_seed("linear", seed, "select"))
            weight, bias = problem.unstandardise(current)
            predictions = (held @ weight.T + bias).argmax(dim=1)
            scores[l2] = classification_metrics(predictions, held_targets, None, names)[select]
            if l2 == grid[0] or scores[l2] > scores[best]:
                best, start = l2, current
        del problem
    problem = _problem(views, targets, len(classes), balanced)
    solution, converged = run(problem, best, start, max_iter, derive_seed("linear", seed, "refit"))
    seen_weight, seen_bias = problem.unstandardise(solution)
    weight = features.new_zeros(num_classes, features.shape[1]).index_copy_(0, classes, seen_weight)
    bias = features.new_full((num_classes,), -math.inf).index_copy_(0, classes, seen_bias)
    return LinearClassifier(weight, bias, best, scores, converged)


def _problem(views: Tensor, targets: Tensor, num_classes: int, balanced: bool) -> Problem:
    """Standardise all views `[V, N, D]` of images of classes `targets` `[N]` together."""
    return Problem.standardised(views.flatten(0, 1), targets.repeat(len(views)), num_classes, balanced)


def _check_settings(
    l2_grid: Sequence[float], fraction: float, select: str, solver: str, max_iter: int | None
) -> list[float]:
    """Return the grid, strongest first and without repetition."""
    for name, value, choices in (
        ("select", select, ("accuracy", "balanced_accuracy")),
        ("solver", solver, tuple(SOLVERS)),
    ):
        if value not in choices:
            expected = " or ".join(choices)
            raise ZooError(
                f'linear probe: found {name} "{value}", expected {expected}.{did_you_mean(value, choices)}'
            )
    grid = sorted({float(l2) for l2 in l2_grid}, reverse=True)
    if not grid or not all(math.isfinite(l2) and l2 > 0 for l2 in grid):
        raise ZooError(f"linear probe: found l2_grid {list(l2_grid)}, expected one or more numbers above 0")
    if not 0 < fraction < 1:
        raise ZooError(f"linear probe: found validation_fraction {fraction}, expected a number in (0, 1)")
    if max_iter is not None and max_iter < 1:
        raise ZooError(f"linear probe: found max_iter {max_iter}, expected 1 or more")
    return grid


def _check_augmented(augmented: Tensor, features: Tensor) -> None:
    """Raise `DataError` unless `augmented` is a finite floating `[A, N, D]` for `features` `[N, D]`."""
    if augmented.ndim != 3 or augmented.shape[1:] != features.shape:
        found, expected = tuple(augmented.shape), ", ".join(map(str, features.shape))
        raise DataError(f"linear probe: augmented features: found {found}, expected (A, {expected})")
    check_features(augmented.flatten(0, 1), "linear probe: augmented features")
