"""How time and memory of a loss grow: `python -m tests.benchmarks.scaling --out DIR [--quick]`.

Forward and backward of InfoNCE against the number of keys K, the batch N and the dimension D, and of PaCo
against K and the number of classes C (whose centers' logits are N x C by nature). Each curve is fitted with a
power of its variable over its larger half, where fixed costs no longer show: 1 is linear. DIR gets a figure.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.benchmarks.harness import Row, machine, mebibytes, medians, milliseconds
from zoo import functional

TIME, MEMORY = 1.1, 1.02
"""Highest exponents that count as linear: times scatter, allocations do not."""


class Size(NamedTuple):
    """What one measurement is made of."""

    keys: int = 8192
    batch: int = 128
    dim: int = 64
    classes: int = 1000


class Curve(NamedTuple):
    """A loss measured while one of its sizes grows."""

    loss: str
    variable: str
    values: tuple[int, ...]

    def name(self) -> str:
        return f"{self.loss} against {self.variable}"


class Point(NamedTuple):
    """Seconds and peak bytes of a forward and backward pass."""

    seconds: float
    bytes: float


CURVES = (
    Curve("InfoNCE", "keys", tuple(2**e for e in range(10, 19))),
    Curve("InfoNCE", "batch", tuple(2**e for e in range(5, 13))),
    Curve("InfoNCE", "dim", tuple(2**e for e in range(4, 11))),
    Curve("PaCo", "keys", tuple(2**e for e in range(10, 19))),
    Curve("PaCo", "classes", (10, 100, 1000, 10_000, 30_000, 100_000)),
)


def rows(device: torch.device) -> Iterator[Row]:
    """Give each curve's exponents of time and memory."""
    for curve in CURVES:
        yield from _rows(curve, measure(curve, device))


def _rows(curve: Curve, points: list[Point]) -> Iterator[Row]:
    kinds = (("time", TIME, milliseconds), ("peak memory", MEMORY, mebibytes))
    for (kind, target, write), ys in zip(kinds, zip(*points, strict=True), strict=True):
        yield Row(
            f"{kind} of {curve.name()}, fitted exponent",
            f"at {curve.values[0]}",
            exponent(curve.values, ys),
            target,
            f"at {curve.values[-1]} {write(ys[-1])}",
            write(ys[0]),
            "tests/test_streaming.py",
            at_most=True,
        )


def exponent(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Slope of log y over log x by least squares, over the larger half."""
    pairs = [(math.log(x), math.log(y)) for x, y in zip(xs, ys, strict=True)][len(xs) // 2 :]
    mean_x, mean_y = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
    covariance = sum((x - mean_x) * (y - mean_y) for x, y in pairs)
    return covariance / sum((x - mean_x) ** 2 for x, _ in pairs)


def measure(curve: Curve, device: torch.device, rounds: int = 3) -> list[Point]:
    """Measure a curve's points, each size in turn."""
    steps = [_step(curve.loss, Size()._replace(**{curve.variable: value}), device) for value in curve.values]
    return [
        Point(seconds, peak_bytes(step, device))
        for seconds, step in zip(medians(steps, device=device, rounds=rounds), steps, strict=True)
    ]


def _step(loss: str, size: Size, device: torch.device) -> Callable[[], object]:
    torch.manual_seed(0)

    def unit(count: int) -> Tensor:
        return F.normalize(torch.randn(count, size.dim, device=device), dim=1)

    q, k, queue = unit(size.batch).requires_grad_(), unit(size.batch), unit(size.keys)
    if loss == "InfoNCE":
        return lambda: torch.autograd.grad(functional.info_nce(q, k, queue, tau=0.2), q)
    labels, stored = (torch.randint(size.classes, (n,), device=device) for n in (size.batch, size.keys))
    logits = torch.randn(size.batch, size.classes, device=device, requires_grad=True)
    prior = torch.zeros(size.classes, device=device).log_softmax(0)
    return lambda: torch.autograd.grad(
        functional.paco(q, k, labels, queue, stored, logits, prior, alpha=0.05, tau=0.2), [q, logits]
    )


def peak_bytes(step: Callable[[], object], device: torch.device) -> float:
    """Return the most memory that a step holds at a time, beside its inputs."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        return torch.cuda.max_memory_allocated(device) - before
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as seen:
        step()
    held = peak = 0
    for event in seen.profiler.kineto_results.events():  # in the order of time
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def plot(measured: dict[Curve, list[Point]], file: Path) -> None:
    """Draw every curve, with a line of slope 1 through its last point."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, len(measured), figsize=(4 * len(measured), 7), squeeze=False)
    for column, (curve, points) in zip(axes.T, measured.items(), strict=True):
        kinds = (("ms", 1e-3), ("MiB", 2**20))
        for axis, (label, scale), ys in zip(column, kinds, zip(*points, strict=True), strict=True):
            scaled = [y / scale for y in ys]
            axis.loglog(curve.values, scaled, "o-", label=f"exponent {exponent(curve.values, ys):.2f}")
            linear = [scaled[-1] * x / curve.values[-1] for x in curve.values]
            axis.loglog(curve.values, linear, ":", color="gray", label="linear")
            axis.set(xlabel=curve.variable, ylabel=label, title=curve.name())
            axis.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=100)
    pyplot.close(figure)


def main() -> int:
    """Measure, print and draw."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.scaling", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="gets scaling.png")
    parser.add_argument("--quick", action="store_true", help="one round, without the largest quarter")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    print(machine(), flush=True)
    measured: dict[Curve, list[Point]] = {}
    reached = True
    for whole in CURVES:
        few = math.ceil(0.75 * len(whole.values))
        curve = whole._replace(values=whole.values[:few]) if asked.quick else whole
        measured[curve] = measure(curve, torch.device(asked.device), rounds=1 if asked.quick else 3)
        for row in _rows(curve, measured[curve]):
            reached &= row.reached
            print(row, flush=True)
    plot(measured, asked.out / "scaling.png")
    print(asked.out / "scaling.png")
    return int(not reached)


if __name__ == "__main__":
    sys.exit(main())
