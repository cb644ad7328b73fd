"""Started by torchrun in tests/benchmarks/communication.py: the bytes that real steps hand to the sockets.

Takes cases as JSON: a name, a recipe and its changes. Prints for each the mean over ranks and steps, and what
the loopback interface says, which counts TCP's headers and whatever else runs on the machine.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from zoo.rendezvous import join

from zoo.data import TrainLoader, open_dataset
from zoo.ranks import Ranks
from zoo.recipe import Recipe
from zoo.training import build_objective
from zoo.training.step import Stepper

CPU = torch.device("cpu")
WARM_UP, STEPS = 2, 4


def written() -> int:
    """Bytes that this process has given to write calls so far; gloo's sockets get theirs by those."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["wchar"])


def on_loopback() -> int:
    """Bytes that the loopback interface has sent."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "lo":
            return int(counts.split()[8])
    raise RuntimeError("/proc/net/dev has no loopback interface")


def measure(recipe: Recipe, ranks: Ranks) -> tuple[float, float]:
    """Return bytes of a step and rank: written, and seen on the loopback interface."""
    dataset = open_dataset(recipe.data, "train", None)
    size = recipe.training.batch_size
    loader = TrainLoader(
        dataset,
        recipe.views,
        mean=recipe.data.mean,
        std=recipe.data.std,
        batch_size=size,
        drop_last=True,
        seed=0,
        device=CPU,
        rank=ranks.rank,
        world_size=ranks.size,
    )
    objective = build_objective(recipe, dataset).train()
    stepper = Stepper(objective, recipe, loader.steps_per_epoch, CPU, ranks=ranks)
    before = lo = 0
    for step, batch in enumerate(loader.stream(0, WARM_UP + STEPS)):
        if step == WARM_UP:
            ranks.wait()
            before, lo = written(), on_loopback()
        stepper(step, batch, size)
    sent = torch.tensor(float(written() - before), dtype=torch.float64)
    ranks.wait()
    seen = on_loopback() - lo
    return ranks.sum(sent).item() / ranks.size / STEPS, seen / ranks.size / STEPS


with join("cpu") as ranks:
    torch.set_num_threads(1)
    for case, name, changes in json.loads(sys.argv[1]):
        sent, seen = measure(Recipe.load(name, changes), ranks)
        if ranks.rank == 0:
            print(json.dumps([case, sent, seen]), flush=True)
