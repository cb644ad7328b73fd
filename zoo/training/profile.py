"""Where the time of a training step goes: the table of `zoo pretrain RECIPE --profile`."""

import os
import time

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from zoo.data import ImageDataset
from zoo.recipe import Recipe
from zoo.training.build import build_objective, open_loader, require_batches
from zoo.training.monitor import split_validation
from zoo.training.precision import compiled, cpu_threads, float32_products, pick_device, place
from zoo.training.step import Stepper

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else torch's profiler prints its own diagnostics

WARM_UP, STEPS = 5, 10
PARTS = ("input", "forward", "backward", "optimizer", "update", "ema")  # as `zoo.training.step` marks them


def step_times(recipe: Recipe, dataset: ImageDataset) -> dict[str, float]:
    """Return the seconds of each part of a step, with `step`, that of a whole one; trains nothing.

    On a GPU a part's seconds are those of its kernels, of the input those of the host.
    """
    section, training = recipe.training, split_validation(dataset, recipe)[0]
    device, objective = pick_device(section.device), build_objective(recipe, dataset)
    gpu = device.type == "cuda"
    place(objective, recipe, device)
    require_batches(objective, len(training), recipe)
    loader = open_loader(training, recipe, device)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]
    with (
        cpu_threads(section.threads),
        float32_products(section.precision, fastest=True),
        compiled(objective, section.compile),
        torch.random.fork_rng(devices=[device] if gpu else []),
    ):
        stepper = Stepper(objective, recipe, loader.steps_per_epoch, device)
        batches = iter(loader.stream(0, WARM_UP + STEPS))
        for step in range(WARM_UP):  # compilation is in these
            stepper(step, next(batches))
        began = time.perf_counter()
        with profile(activities=activities) as found:
            for step in range(WARM_UP, WARM_UP + STEPS):
                with record_function("input"):
                    batch = next(batches)
                stepper(step, batch)
            if gpu:
                torch.cuda.synchronize(device)
        whole = time.perf_counter() - began
    seconds = dict.fromkeys(PARTS, 0.0)
    for event in found.key_averages():
        if event.key in PARTS:
            micro = event.device_time_total if gpu and event.key != "input" else event.cpu_time_total
            seconds[event.key] = max(seconds[event.key], micro / 1e6 / STEPS)
    return {**{part: time for part, time in seconds.items() if time}, "step": whole / STEPS}
