"""Solvers of multinomial logistic regression with an L2 penalty on the weights.

Parameters are one matrix `[C, D + 1]` for standardised features; its last column is the bias.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

_BATCH = 1024
_MOMENTUM = 0.9


@dataclass(frozen=True, eq=False)
class Problem:
    """Standardised training data of one fit.

    Attributes:
        x: `[N, D + 1]`: features of mean 0 and standard deviation 1, then a column of ones.
        y: classes `[N]`, int64, each of the C classes present.
        image_weight: `[N]`, of mean 1.
        mean, scale: `[D]`, what `x` was standardised by.
    """

    x: Tensor
    y: Tensor
    image_weight: Tensor
    mean: Tensor
    scale: Tensor

    @classmethod
    def standardised(cls, features: Tensor, y: Tensor, num_classes: int, balanced: bool) -> Problem:
        """Standardise `features` `[N, D]` by their own statistics; a constant feature becomes zero."""
        mean, std = features.mean(dim=0), features.std(dim=0, correction=0)
        # What rounding leaves of a constant feature is no signal: dividing by it would amplify noise.
        rounding = 10 * torch.finfo(features.dtype).eps * mean.abs()
        scale = torch.where(std > rounding, std, torch.ones_like(std))
        x = features.new_ones(len(features), features.shape[1] + 1)
        torch.sub(features, mean, out=x[:, :-1]).div_(scale)  # one copy of what may be gigabytes
        weight = features.new_ones(len(features))
        if balanced:
            counts = torch.bincount(y, minlength=num_classes)
            weight = (len(y) / (int((counts > 0).sum()) * counts.to(features.dtype)))[y]
        return cls(x, y, weight, mean, scale)

    def unstandardise(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weight `[C, D]` and bias `[C]` that act the same on raw features."""
        weight = parameters[:, :-1] / self.scale
        return weight, parameters[:, -1] - weight @ self.mean


def _gradient(
    x: Tensor, y: Tensor, image_weight: Tensor, parameters: Tensor, l2: float
) -> tuple[Tensor, Tensor]:
    """Return mean cross-entropy + l2 / 2 |W|^2, `[]`, and its gradient `[C, D + 1]`."""
    log_p = F.log_softmax(x @ parameters.T, dim=1)
    weight = parameters[:, :-1]
    loss = F.nll_loss(log_p, y, reduction="none").mul(image_weight).mean() + 0.5 * l2 * weight.square().sum()
    return loss, _gradient_at(log_p, x, y, image_weight, weight, l2)


def _gradient_at(
    log_p: Tensor, x: Tensor, y: Tensor, image_weight: Tensor, weight: Tensor, l2: float
) -> Tensor:
    """Return the gradient `[C, D + 1]` where the log-probabilities are `log_p` `[N, C]`."""
    residual = log_p.exp()
    residual[torch.arange(len(y), device=y.device), y] -= 1
    gradient = residual.mul_(image_weight[:, None] / len(y)).T @ x
    gradient[:, :-1] += l2 * weight
    return gradient


def lbfgs(problem: Problem, l2: float, start: Tensor, max_iter: int | None, seed: int) -> tuple[Tensor, bool]:
    """Return the minimiser by full-batch L-BFGS with strong-Wolfe line search, and whether it converged."""
    del seed  # nothing is drawn
    double = start.dtype == torch.float64
    max_iter = max_iter or 1000
    parameters = start.clone()
    optimizer = torch.optim.LBFGS(
        [parameters],
        max_iter=max_iter,
        max_eval=2 * max_iter,
        tolerance_grad=1e-8 if double else 1e-5,
        tolerance_change=0.0 if double else 1e-9,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        loss, parameters.grad = _gradient(problem.x, problem.y, problem.image_weight, parameters, l2)
        return loss

    with torch.no_grad():
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    # In float32 the loss stops falling before the gradient is small: what counts is who ended it.
    progress = optimizer.state_dict()["state"][0]
    return parameters, progress["n_iter"] < max_iter and progress["func_evals"] < 2 * max_iter


def sgd(problem: Problem, l2: float, start: Tensor, max_iter: int | None, seed: int) -> tuple[Tensor, bool]:
    """Return the parameters after `max_iter` epochs of SGD with Nesterov momentum and a cosine schedule.

    The rate is the inverse of the loss's largest curvature, so it needs no tuning for other features.
    """
    epochs = max_iter or 100
    n = len(problem.y)
    parameters = start.clone()
    rate = 1 / _curvature(problem, l2)
    optimizer = torch.optim.SGD([parameters], lr=rate, momentum=_MOMENTUM, nesterov=True)
    step, steps = 0, epochs * math.ceil(n / _BATCH)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _ in range(epochs):
            for rows in torch.split(torch.randperm(n, generator=generator).to(start.device), _BATCH):
                x, y, image_weight = problem.x[rows], problem.y[rows], problem.image_weight[rows]
                log_p = F.log_softmax(x @ parameters.T, dim=1)
                parameters.grad = _gradient_at(log_p, x, y, image_weight, parameters[:, :-1], l2)
                # A scheduler object would take as long as the step itself.
                optimizer.param_groups[0]["lr"] = 0.5 * rate * (1 + math.cos(math.pi * step / steps))
                optimizer.step()
                step += 1
    _, gradient = _gradient(problem.x, problem.y, problem.image_weight, parameters, l2)
    return parameters, bool(gradient.abs().max() <= 1e-3)


def _curvature(problem: Problem, l2: float) -> float:
    """Return an estimate of the largest eigenvalue of the loss's Hessian.

    The Hessian is at most 1/2 X'X / N + l2 (Böhning 1992); power iteration on up to 8192 rows.
    """
    x = problem.x[:: max(1, len(problem.x) // 8192)]
    weight = problem.image_weight[:: max(1, len(problem.x) // 8192)]
    vector, value = x.new_ones(x.shape[1]), x.new_zeros(())
    for _ in range(30):
        vector = vector / vector.norm()
        vector = x.T @ (weight * (x @ vector)) / len(x)
        value = vector.norm()
    return 0.5 * float(value) + l2


SOLVERS: dict[str, Callable[[Problem, float, Tensor, int | None, int], tuple[Tensor, bool]]] = {
    "lbfgs": lbfgs,
    "sgd": sgd,
}
