"""Where the time of one training step goes."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, record_function
from torch.profiler import profile as torch_profile

from zoo.data import Batch, ImageDataset
from zoo.objectives import Objective
from zoo.recipe import Recipe
from zoo.training.monitor import split_validation
from zoo.training.precision import compiled, fastest_kernels
from zoo.training.prepare import open_loader, pick_device, place, require_batches
from zoo.training.step import Stepper

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else torch's profiler prints its own diagnostics

STEPS = 20
SECONDS = 30.0  # a slow step is measured fewer times
AT_LEAST = 3
WARM_UP = 5  # steps before those that are timed

PARTS = {
    "input": "input: reading, views, copies",
    "forward": "encoders, scores and loss",
    "backward": "backward",
    "optimizer": "optimizer",
    "update": "key encoder, queue and other state",
    "ema": "moving average of the weights",
}
"""Parts of a step in their order, by the names that `zoo.training.step` gives them."""


class Profile(NamedTuple):
    """What a step costs.

    Attributes:
        parts: seconds of each part of `PARTS` that there is, under torch's profiler; on a GPU, its kernels'.
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
    section, dataset = recipe.training, split_validation(dataset, recipe).training
    device = pick_device(section.device)
    place(objective, recipe, device)
    require_batches(objective, len(dataset), recipe)
    images = min(section.batch_size, len(dataset))
    # whole batches alone: what a smaller last one takes is no step's time
    whole = section.model_copy(update={"drop_last": section.drop_last or images == section.batch_size})
    loader = open_loader(dataset, recipe.model_copy(update={"training": whole}), device)
    per_epoch = len(dataset) // images if section.drop_last else math.ceil(len(dataset) / images)
    total, most = section.epochs * per_epoch, WARM_UP + STEPS + AT_LEAST
    start = max(0, total - most)

    def batches() -> Iterator[tuple[int, Batch]]:
        # one stream, beyond the end of a short run too: what it takes to begin another is no step's time
        for step, batch in enumerate(loader.stream(start, start + most), start):
            yield min(step, total - 1), batch

    random = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
    with fastest_kernels(device, section.precision), random, compiled(objective, section.compile):
        stepper, stream = Stepper(objective, recipe, per_epoch, device), batches()
        for step, batch in islice(stream, WARM_UP):  # compilation is in these
            stepper(step, batch)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        steps, seconds = _timed(stream, stepper, device)
        memory = _peak(device)
        parts, operations = _taken_apart(stream, stepper, device)
    return Profile(parts, seconds / steps, images, steps, total, device, memory, operations)


def _timed(stream: Iterator[tuple[int, Batch]], stepper: Stepper, device: torch.device) -> tuple[int, float]:
    """Run steps as the loop does; return how many, and their seconds."""
    _wait(device)
    steps, began = 0, time.perf_counter()
    while steps < AT_LEAST or (steps < STEPS and time.perf_counter() - began < SECONDS):
        stepper(*next(stream))
        steps += 1
    _wait(device)
    return steps, time.perf_counter() - began


def _taken_apart(
    stream: Iterator[tuple[int, Batch]], stepper: Stepper, device: torch.device
) -> tuple[dict[str, float], str]:
    """Return the seconds of each part of a step, and torch's table of operations."""
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with torch_profile(activities=activities) as found:
        for _ in range(AT_LEAST):
            with record_function("input"):
                step, batch = next(stream)
            stepper(step, batch)
        _wait(device)
    seconds = dict[str, float]()
    events = found.key_averages()
    for event in events:
        if event.key in PARTS:
            micro = event.device_time_total if on_gpu and event.key != "input" else event.cpu_time_total
            seconds[event.key] = max(seconds.get(event.key, 0.0), micro / 1e6 / AT_LEAST)
    table: str = events.table(sort_by=f"self_{'cuda' if on_gpu else 'cpu'}_time_total", row_limit=30)
    return {part: seconds[part] for part in PARTS if part in seconds}, table


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
    apart = sum(found.parts.values())
    hours = found.step * found.total_steps / 3600
    length = f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.1f} min"
    memory = "" if found.memory is None else f"; peak memory {found.memory / 2**30:.1f} GiB"
    lines = [
        f"one step: {_ms(found.step)} for {found.images} images, {found.images / found.step:,.0f} images/s "
        f"({found.steps} steps); all {found.total_steps:,} steps take {length}{memory}"
    ]
    for part, seconds in found.parts.items():
        share = seconds / apart
        lines.append(f"  {PARTS[part]:36} {_ms(seconds):>10} {share:6.1%}  {'#' * round(40 * share)}")
    if found.parts["input"] > 0.2 * apart and recipe.views.backend != "tensor":
        lines.append('the input is slow: views.backend "tensor", where the data fit, or more views.workers')
    if found.device.type == "cuda" and recipe.training.precision == "fp32":
        lines.append("training.precision=bf16 is mostly faster on a GPU")
    return lines


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f} ms"
