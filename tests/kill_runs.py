"""Runs killed with SIGKILL at random moments: every one must end in the same bits.

    python -m tests.kill_runs --count 100 --seed 0

Each run is a child of a warm parent, killed up to three times and started again with the same arguments and
`resume=True` until it is done. All state of its last checkpoint and its rows of metrics are compared with
those of a run that was left alone.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from torch.utils._pytree import tree_leaves

from zoo.data import open_dataset
from zoo.recipe import Recipe
from zoo.training import RunFolder, build_objective, train

SHORT = (
    *("training.epochs=2", "schedule.warmup_epochs=1", "training.batch_size=64", "training.log_every=1"),
    "training.checkpoint_minutes=0.002",  # every 0.12 s: many moments at which one is being written
    *("training.threads=1", "training.device=cpu"),
)
RECIPES = {  # with a queue and its pointer, a teacher, drawn coefficients; labels, centers; prototypes
    "cifar_resnet20.moco_v2_ft_digits_lt50": (*SHORT, "objective.feature_transform.start_epoch=1"),
    "cifar_resnet20.paco_digits_lt50": SHORT,
    "cifar_resnet20.pico_digits_q05": (*SHORT, "objective.prototype_start=1"),
}


def start(name: str, out: Path) -> int:
    """Fork a child that trains into `out`; return its process id."""
    if pid := os.fork():
        return pid
    try:
        torch.set_num_threads(1)
        r = Recipe.load(name, RECIPES[name])
        data = open_dataset(r.data, "train", None)
        train(build_objective(r, data), data, r, RunFolder(out), resume=True)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def finish(pid: int) -> int:
    """Wait for a child; return its exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def result(out: Path) -> list[object]:
    """Return what a finished run leaves: all state and all rows."""
    saved = RunFolder(out).load()
    assert saved is not None
    leaves = [each.tolist() if isinstance(each, torch.Tensor) else each for each in tree_leaves(saved.state)]
    rows = RunFolder(out).rows()
    return leaves + [{k: v for k, v in row.items() if k != "images_per_second"} for row in rows]


def kill(pid: int, out: Path, seconds: float, in_writing: bool) -> bool:
    """Kill a child after so long, or in the write of a checkpoint after that; False if it ended before."""
    until = time.monotonic() + seconds
    while time.monotonic() < until or (in_writing and not any((out / "checkpoints").glob(".*"))):
        if os.waitpid(pid, os.WNOHANG)[0]:
            return False
        time.sleep(0.0002)
    os.kill(pid, signal.SIGKILL)
    return finish(pid) == -signal.SIGKILL


def campaign(count: int, seed: int, work: Path) -> tuple[int, list[int]]:
    """Disturb runs; return how often they were killed, and which did not end in the same bits."""
    drawn, kills, failed = random.Random(seed), 0, list[int]()
    references: dict[str, tuple[list[object], float]] = {}
    for number in range(count):
        name, out = [*RECIPES][number % len(RECIPES)], work / "run"
        if name not in references:
            began = time.monotonic()
            assert finish(start(name, work / name)) == 0
            references[name] = result(work / name), time.monotonic() - began
        expected, took = references[name]
        for _ in range(drawn.randint(1, 3)):
            in_writing = drawn.random() < 0.4
            if not kill(start(name, out), out, drawn.random() * took, in_writing):
                break
            kills += 1
        if finish(start(name, out)) != 0 or result(out) != expected:
            failed.append(number)
        shutil.rmtree(out)
    return kills, failed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kill-runs-") as work:
        kills, failed = campaign(arguments.count, arguments.seed, Path(work))
    print(f"{arguments.count} runs, killed {kills} times; not identical: {failed or 'none'}")
    sys.exit(bool(failed))
