"""Linear probe: multinomial logistic regression on frozen, cached features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.data.long_tail import rank_in_class
from zoo.errors import DataError, ZooError, did_you_mean
from zoo.functional.checks import check_features, check_labels
from zoo.seeding import derive_seed

Select = Literal["accuracy", "balanced_accuracy"]

L2_GRID = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
"""As of `zoo evaluate linear`."""

_ROWS = 1 << 16  # whose logits are in memory together: those of a million images of 1,000 classes take 8 GB


@dataclass(frozen=True, eq=False)
class LinearClassifier:
    """A fitted probe; its logits are `weight @ x + bias` on raw features.

    Attributes:
        weight: `[C, D]`, float64; standardisation is folded in.
        bias: `[C]`; minus infinity for a class without training images, which is never predicted.
        l2: strength used: the loss is mean cross-entropy + l2 / 2 * |W|^2 on standardised features.
            In scikit-learn's terms C = 1 / (l2 * N).
        validation_losses: for each strength tried, strongest first, the cross-entropy of held-out images;
            empty when the grid had one value.
        converged: whether the last fit ended before `max_iter`.
    """

    weight: Tensor
    bias: Tensor
    l2: float
    validation_losses: dict[float, float]
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
    folds: int = 5,
    select: Select = "balanced_accuracy",
    seed: int = 0,
    balanced: bool = False,
    max_iter: int = 1000,
) -> LinearClassifier:
    """Fit on training features; cross-validation over all of them chooses the strength of the penalty.

    Every image is held out once, with its fold, and the strength with the lowest cross-entropy of held-out
    images wins; with that, all images are fitted. Test data is no argument, so nothing can be selected on it.

    The figure is the same on any processor: cross-entropy is continuous, where counts of right images tie
    and flip with the last bit; and the fit is in float64, which reaches the one minimum that there is.
    Features are standardised by the statistics of the rows that are fitted. The only image of a class is
    always fitted and never held out. A class without images is never predicted.

    Args:
        features: `[N, D]`; computed on their device.
        labels: `[N]`, integer.
        num_classes: C.
        l2_grid: strengths of the penalty on the weights (the bias has none).
        folds: parts of the training images.
        select: whether held-out images count alike ("accuracy") or classes do ("balanced_accuracy").
        seed: decides the folds.
        balanced: weigh each image by N / (classes present * images of its class).
        max_iter: iterations of L-BFGS for each fit.

    Raises:
        DataError: for features that are not finite, labels outside `[0, C)`, fewer than two classes, or
            a choice to make when no class has two images.
        ZooError: for an impossible setting.
    """
    grid = _check_settings(l2_grid, folds, select, max_iter)
    check_features(features, "linear probe: training features")
    check_labels(labels, "linear probe: training labels", count=len(features), num_classes=num_classes)
    features = features.detach()
    classes, targets = torch.unique(labels.to(features.device), return_inverse=True)
    if len(classes) < 2:
        raise DataError(f"linear probe: found only class {int(classes[0])} in training, expected two or more")
    losses: dict[float, float] = {}
    if len(grid) > 1:
        losses = _cross_validate(features, targets, grid, folds, select, seed, balanced, max_iter)
    best = min(grid, key=lambda l2: losses.get(l2, 0.0))  # of equal ones the strongest
    problem = _standardise(features, targets, balanced)
    solution, converged = _minimise(problem, best, None, max_iter, tolerance=1e-8)
    seen_weight, seen_bias = problem.unstandardise(solution)
    weight = seen_weight.new_zeros(num_classes, features.shape[1]).index_copy_(0, classes, seen_weight)
    bias = seen_bias.new_full((num_classes,), -math.inf).index_copy_(0, classes, seen_bias)
    return LinearClassifier(weight, bias, best, losses, converged)


def _cross_validate(
    features: Tensor,
    targets: Tensor,
    grid: Sequence[float],
    folds: int,
    select: Select,
    seed: int,
    balanced: bool,
    max_iter: int,
) -> dict[float, float]:
    """Return for each strength the cross-entropy of images that the fit did not see."""
    counts = torch.bincount(targets)
    rank = rank_in_class(targets, derive_seed("linear", seed, "split")).to(targets.device)
    # a class's images go round the folds, from another fold for each class: rare ones fill no single fold
    fold = torch.where(counts[targets] > 1, (rank + targets) % folds, -1)
    if int(fold.max()) < 0:
        raise DataError(
            f"linear probe: each of the {len(counts)} classes has a single training image, so none can"
            f" validate the {len(grid)} strengths; expected an l2_grid of one value"
        )
    entropy = {l2: targets.new_zeros(len(targets), dtype=torch.float64) for l2 in grid}
    for number in range(folds):
        held = fold == number
        if not bool(held.any()):
            continue
        problem = _standardise(features[~held], targets[~held], balanced)
        current = None
        for l2 in grid:  # each fit starts from that of the stronger penalty before
            current, _ = _minimise(problem, l2, current, max_iter, tolerance=1e-5)
            weight, bias = problem.unstandardise(current)
            logits = features[held].double() @ weight.T + bias
            entropy[l2][held] = F.cross_entropy(logits, targets[held], reduction="none")
    seen = fold >= 0
    share = seen.double()
    if select == "balanced_accuracy":
        share = share / torch.bincount(targets[seen], minlength=len(counts)).clamp(min=1)[targets]
    return {l2: float((values * share).sum() / share.sum()) for l2, values in entropy.items()}


class _Problem(NamedTuple):
    """Standardised training data of one fit, in float64.

    Attributes:
        x: `[N, D + 1]`: features of mean 0 and standard deviation 1, then a column of ones.
        y: classes `[N]`, int64, each of the C classes present.
        image_weight: `[N]`, of sum 1.
        mean: `[D]`, what `x` was standardised by.
        scale: likewise.
    """

    x: Tensor
    y: Tensor
    image_weight: Tensor
    mean: Tensor
    scale: Tensor

    def unstandardise(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weight `[C, D]` and bias `[C]` that act the same on raw features."""
        weight = parameters[:, :-1] / self.scale
        return weight, parameters[:, -1] - weight @ self.mean


def _standardise(features: Tensor, y: Tensor, balanced: bool) -> _Problem:
    """Standardise `features` `[N, D]` by their own statistics; a constant feature becomes zero."""
    x = features.new_ones(len(features), features.shape[1] + 1, dtype=torch.float64)
    x[:, :-1] = features
    std, mean = torch.std_mean(x[:, :-1], dim=0, correction=0)
    # what rounding leaves of a constant feature is no signal: dividing by it would amplify noise
    rounding = 10 * torch.finfo(features.dtype).eps * mean.abs()
    scale = torch.where(std > rounding, std, torch.ones_like(std))
    x[:, :-1].sub_(mean).div_(scale)
    weight = x.new_full((len(y),), 1 / len(y))
    if balanced:
        counts = torch.bincount(y)
        weight = (1 / (int((counts > 0).sum()) * counts.double()))[y]
    return _Problem(x, y, weight, mean, scale)


def _minimise(
    problem: _Problem, l2: float, start: Tensor | None, max_iter: int, *, tolerance: float
) -> tuple[Tensor, bool]:
    """Return the minimiser `[C, D + 1]` of the loss, and whether it was reached.

    Full-batch L-BFGS with strong-Wolfe line search; it ends where no component of the gradient is above
    `tolerance`. The last column of the parameters is the bias.
    """
    if start is None:
        start = problem.x.new_zeros(int(problem.y.max()) + 1, problem.x.shape[1])
    parameters = start.clone()
    optimizer = torch.optim.LBFGS(
        [parameters],
        max_iter=max_iter,
        max_eval=2 * max_iter,
        tolerance_grad=tolerance,
        tolerance_change=0.0,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        """Return mean cross-entropy + l2 / 2 |W|^2 and leave its gradient with the parameters."""
        weight = parameters[:, :-1]
        loss = 0.5 * l2 * weight.square().sum()
        gradient = F.pad(l2 * weight, (0, 1))
        for x, y, image_weight in zip(*(torch.split(each, _ROWS) for each in problem[:3]), strict=True):
            log_p = F.log_softmax(x @ parameters.T, dim=1)
            loss += F.nll_loss(log_p, y, reduction="none") @ image_weight
            residual = log_p.exp_()
            residual[torch.arange(len(y), device=y.device), y] -= 1
            gradient += residual.mul_(image_weight[:, None]).T @ x
        parameters.grad = gradient
        return loss

    with torch.no_grad():
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    progress = optimizer.state_dict()["state"][0]
    return parameters, progress["n_iter"] < max_iter and progress["func_evals"] < 2 * max_iter


def _check_settings(l2_grid: Sequence[float], folds: int, select: str, max_iter: int) -> list[float]:
    """Return the grid, strongest first and without repetition."""
    choices = ("accuracy", "balanced_accuracy")
    if select not in choices:
        raise ZooError(
            f'linear probe: found select "{select}", expected {" or ".join(choices)}.'
            f"{did_you_mean(select, choices)}"
        )
    grid = sorted({float(l2) for l2 in l2_grid}, reverse=True)
    if not grid or not all(math.isfinite(l2) and l2 > 0 for l2 in grid):
        raise ZooError(f"linear probe: found l2_grid {list(l2_grid)}, expected one or more numbers above 0")
    for name, value, least in (("folds", folds, 2), ("max_iter", max_iter, 1)):
        if value < least:
            raise ZooError(f"linear probe: found {name} {value}, expected {least} or more")
    return grid
