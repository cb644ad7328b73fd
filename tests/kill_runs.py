"""Runs killed with SIGKILL at random moments: every one must end in the same bits.

    python -m tests.kill_runs --count 100 --seed 0

Each run is a child of a warm parent, killed up to three times and started again with the same arguments and
`resume=True` until it is done. All state of its last checkpoint and its rows of metrics are compared with
those of a run that was left alone.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from torch.utils._pytree import tree_leaves

from zoo.data import open_dataset
from zoo.recipe import Recipe
from zoo.training import RunFolder, build_objective, train

RECIPES = (
    "cifar_resnet20.moco_v2_ft_digits_lt50",  # a queue with its pointer, a teacher, drawn coefficients
    "cifar_resnet20.paco_digits_lt50",  # and labels, centers
    "cifar_resnet20.pico_digits_q05",  # prototypes, confidences
)
SHORT = (
    "training.epochs=2",
    "schedule.warmup_epochs=1",
    "training.batch_size=64",
    "training.log_every=1",
    "training.checkpoint_every=1",
    "training.checkpoint_minutes=0.002",  # every 0.12 s: many moments at which one is being written
    "training.threads=1",
    "training.device=cpu",
)
STARTS = {"moco": "objective.feature_transform.start_epoch=1", "pico": "objective.prototype_start=1"}


def recipe(number: int) -> Recipe:
    """Return the recipe of run `number`."""
    name = RECIPES[number % len(RECIPES)]
    return Recipe.load(name, [*SHORT, *(value for key, value in STARTS.items() if f".{key}" in name)])


def start(number: int, out: Path) -> int:
    """Fork a child that trains into `out`; return its process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        torch.set_num_threads(1)
        r = recipe(number)
        data = open_dataset(r.data, "train", None)
        train(build_objective(r, data), data, r, RunFolder(out), resume=True)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def finish(pid: int) -> int:
    """Wait for a child; return its exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def result(out: Path) -> list[object]:
    """Return what a finished run leaves: all state and all rows."""
    run = RunFolder(out)
    saved = run.load()
    assert saved is not None
    leaves = [each.tolist() if isinstance(each, torch.Tensor) else each for each in tree_leaves(saved.state)]
    return leaves + [{k: v for k, v in row.items() if k != "images_per_second"} for row in run.rows()]


def half_written(out: Path) -> bool:
    """Whether a checkpoint is half written."""
    names = {file.name for file in (out / "checkpoints").glob("*")}
    hidden = any((out / "checkpoints").glob(".*"))
    return hidden or any(n.endswith(".json") and f"{n[:-5]}.pt" not in names for n in names)


def kill(pid: int, out: Path, seconds: float, in_writing: bool) -> bool:
    """Kill a child after so long, or in the write of a checkpoint after that; False if it ended before."""
    until = time.monotonic() + seconds
    while time.monotonic() < until or (in_writing and not half_written(out)):
        if os.waitpid(pid, os.WNOHANG)[0]:
            return False
        time.sleep(0.0002)
    os.kill(pid, signal.SIGKILL)
    return finish(pid) == -signal.SIGKILL


def campaign(count: int, seed: int, work: Path) -> tuple[Counter[str], list[int]]:
    """Disturb runs; return how many were killed where, and which did not end in the same bits."""
    drawn, counts, failed = random.Random(seed), Counter[str](), list[int]()
    references: dict[int, tuple[list[object], float]] = {}
    for number in range(count):
        key = number % len(RECIPES)
        if key not in references:
            began = time.monotonic()
            assert finish(start(number, work / "reference")) == 0
            references[key] = result(work / "reference"), time.monotonic() - began
            shutil.rmtree(work / "reference")
        expected, took = references[key]
        out = work / "run"
        for _ in range(drawn.randint(1, 3)):
            in_writing = drawn.random() < 0.4
            if not kill(start(number, out), out, drawn.random() * took, in_writing):
                break
            counts["in checkpoint writing" if half_written(out) else "elsewhere"] += 1
        if finish(start(number, out)) != 0 or result(out) != expected:
            failed.append(number)
        shutil.rmtree(out)
    return counts, failed


def main() -> None:
    """Run the campaign; the exit status is 1 if any run is not identical."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kill-runs-") as work:
        counts, failed = campaign(arguments.count, arguments.seed, Path(work))
    print(f"{arguments.count} runs, killed {dict(counts)}; not identical: {failed or 'none'}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
