"""Where the time of one training step goes."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile

from zoo.data import Batch, ImageDataset
from zoo.modules import KeyQueue, MomentumEncoder, Teacher
from zoo.objectives import Objective
from zoo.recipe import Recipe
from zoo.training.acceleration import compiled, fastest_kernels
from zoo.training.prepare import open_loader, pick_device, place, require_batches
from zoo.training.step import Span, Stepper
from zoo.training.validation import put_aside

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else torch's profiler prints its own diagnostics

STEPS = 20
SECONDS = 30.0  # a slow step is measured fewer times
AT_LEAST = 3
WARM_UP = 5  # steps before those that are timed

INPUT, FORWARD = "input", "forward"
PARTS = {
    INPUT: "input: reading, views, copies",
    "query encoder": "query encoder, forward",
    "key encoder": "key encoder, forward",
    "teachers": "teachers, forward",
    FORWARD: "projections, scores and loss",
    "backward": "backward",
    "optimizer": "optimizer",
    "average": "key encoder's moving average",
    "queue": "queue",
    "update": "other state of the objective",
    "ema": "moving average of the weights",
}
"""Parts of a step in their order; what is inside another is not counted there."""


class Profile(NamedTuple):
    """What a step costs.

    Attributes:
        parts: seconds of each part of `PARTS` that there is, one after another: nothing compiled, and the
            device waited for after each.
        step: seconds of a step as the recipe runs it, input included.
        images: in a batch.
        steps: measured for `step`.
        total_steps: of the recipe.
        device: where.
        memory: peak bytes: allocated on a GPU, of the whole process on a CPU; None where no system tells.
        operations: torch's table of the most expensive operations.
    """

    parts: dict[str, float]
    step: float
    images: int
    steps: int
    total_steps: int
    device: torch.device
    memory: int | None
    operations: str


def profile(objective: Objective, dataset: ImageDataset, recipe: Recipe) -> Profile:
    """Measure steps of the recipe's last epochs, where every part of the objective is at work.

    The objective is trained by it; nothing is saved.

    Raises:
        ZooError: as `train`.
    """
    section, dataset = recipe.training, put_aside(dataset, recipe).training
    device = pick_device(section.device)
    place(objective, recipe, device)
    require_batches(objective, len(dataset), recipe)
    images = min(section.batch_size, len(dataset))
    # whole batches alone: what a smaller last one takes is no step's time
    whole = section.drop_last or images == section.batch_size
    loader = open_loader(dataset, _changed(recipe, drop_last=whole), device)
    per_epoch = len(dataset) // images if section.drop_last else math.ceil(len(dataset) / images)
    total, most = section.epochs * per_epoch, WARM_UP + STEPS
    start = max(0, total - most)

    def batches() -> Iterator[tuple[int, Batch]]:
        # one stream, beyond the end of a short run too: what it takes to begin another is no step's time
        for step, batch in enumerate(loader.stream(start, start + most), start):
            yield min(step, total - 1), batch

    random = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
    with fastest_kernels(device, section.precision), random:
        clock = _Clock(device)
        stepper = Stepper(objective, recipe, per_epoch, device, clock.span)
        with _watched(objective, clock.span):
            counted = _run(batches(), stepper, clock)
        del stepper  # its memory is not of the recipe's step
        parts = {part: clock.seconds[part] / counted for part in PARTS if part in clock.seconds}
        with compiled(objective, recipe.training.compile):
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            stepper = Stepper(objective, recipe, per_epoch, device)
            steps, seconds = _timed(batches(), stepper, device)
            memory = _peak(device)
        operations = _operations(batches(), stepper, device)
    return Profile(parts, seconds / steps, images, steps, total, device, memory, operations)


def _changed(recipe: Recipe, **changes: bool) -> Recipe:
    return recipe.model_copy(update={"training": recipe.training.model_copy(update=changes)})


class _Clock:
    """Adds up the time in named spans; inside another, a span's time is its own alone."""

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._device = device
        self._since = time.perf_counter()

    def _charge(self) -> None:
        _wait(self._device)
        now = time.perf_counter()
        if self._open:
            name = self._open[-1]
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        self._charge()
        self._open.append(name)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()


@contextmanager
def _watched(objective: Objective, span: Span) -> Iterator[None]:
    """Open spans around the encoders, the teachers, the moving average and the queue."""
    watched: list[tuple[nn.Module, str]] = []

    def watch(module: nn.Module, method: str, name: str) -> None:
        original: Callable[..., Any] = getattr(module, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with span(name):
                return original(*args, **kwargs)

        setattr(module, method, timed)
        watched.append((module, method))

    watch(objective.encoder, "forward", "query encoder")
    for module in objective.modules():
        if isinstance(module, MomentumEncoder):
            watch(module, "forward", "key encoder")
            watch(module, "update", "average")
        elif isinstance(module, Teacher):
            watch(module, "forward", "teachers")
        elif isinstance(module, KeyQueue):
            watch(module, "enqueue", "queue")
    try:
        yield
    finally:
        for module, method in watched:
            delattr(module, method)  # the class's own is found again


def _run(batches: Iterator[tuple[int, Batch]], stepper: Stepper, clock: _Clock) -> int:
    """Time the parts of some steps; the first warms up. Return how many were counted."""
    counted, began = -1, time.perf_counter()
    while counted < AT_LEAST or (counted < STEPS and time.perf_counter() - began < SECONDS / 2):
        with clock.span(INPUT):
            step, batch = next(batches)
        stepper(step, batch)
        counted += 1
        if counted == 0:
            clock.seconds.clear()
            began = time.perf_counter()
    return counted


def _timed(batches: Iterator[tuple[int, Batch]], stepper: Stepper, device: torch.device) -> tuple[int, float]:
    """Run steps as the loop does; return how many, and their seconds."""
    for step, batch in islice(batches, WARM_UP):  # compilation is in these
        stepper(step, batch)
    _wait(device)
    steps, began = 0, time.perf_counter()
    while steps < AT_LEAST or (steps < STEPS and time.perf_counter() - began < SECONDS):
        stepper(*next(batches))
        steps += 1
    _wait(device)
    return steps, time.perf_counter() - began


def _operations(batches: Iterator[tuple[int, Batch]], stepper: Stepper, device: torch.device) -> str:
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with torch_profile(activities=activities) as found:
        stepper(*next(batches))
        _wait(device)
    kind = "cuda" if device.type == "cuda" else "cpu"
    table: str = found.key_averages().table(sort_by=f"self_{kind}_time_total", row_limit=30)
    return table


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _peak(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return None
    import resource  # not there on Windows

    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def describe(found: Profile, recipe: Recipe) -> list[str]:
    """Say a profile in a few lines, and what it suggests."""
    section = recipe.training
    apart = sum(found.parts.values())
    speed, hours = found.images / found.step, found.step * found.total_steps / 3600
    length = f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.1f} min"
    memory = "" if found.memory is None else f"; peak memory {found.memory / 2**30:.1f} GiB"
    lines = [
        f"one step: {_ms(found.step)} for {found.images} images, {speed:,.0f} images/s ({found.steps} "
        f"steps); all {found.total_steps:,} steps take {length}{memory}",
        f"taken apart, one part after another: {_ms(apart)}",
    ]
    for part, seconds in found.parts.items():
        share = seconds / apart
        lines.append(f"  {PARTS[part]:32} {_ms(seconds):>10} {share:6.1%}  {'#' * round(40 * share)}")
    if found.parts[INPUT] > 0.2 * apart:
        lines.append(
            f"the input is {found.parts[INPUT] / apart:.0%}: "
            + (
                'views.backend "tensor", where the data fit, or more views.workers'
                if recipe.views.backend != "tensor"
                else "the views are made on the training device; fewer or cheaper operations would help"
            )
        )
    if found.device.type == "cuda" and section.compile is None and not section.checkpoint_activations:
        lines.append("small kernels take less time than launching them: try training.compile=reduce-overhead")
    if found.device.type == "cuda" and section.precision == "fp32":
        lines.append("training.precision=bf16 is mostly faster on a GPU")
    if found.device.type == "cpu" and not section.channels_last:
        lines.append("on a CPU convolutions are often faster with training.channels_last: true")
    return lines


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f} ms"
