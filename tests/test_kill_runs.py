"""Runs killed with SIGKILL at random moments, also while they write: every one must end in the same bits.

A short campaign always, a long one with `-m slow`. Each run is a child of a warm parent, killed up to three
times and started again with the same arguments and `resume=True` until it is done. All state of its last
checkpoint and its rows of metrics are compared with those of a run that was left alone.
"""

import os
import random
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_leaves

from tests import warm
from tests.test_training import recipe, run
from zoo.training import RunFolder

OFTEN = (
    "training.checkpoint_minutes=0.002",  # every 0.12 s: many moments at which one is being written
    "training.threads=1",
)
KINDS = ("moco", "paco", "pico")  # queue, teacher, drawn coefficients; labels, centers; prototypes


def start(kind: str, out: Path) -> int:
    """Fork a child that trains into `out`; return its process id."""
    if pid := os.fork():
        return pid
    try:
        torch.set_num_threads(1)
        run(recipe(kind, *OFTEN), out, resume=True)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def finish(pid: int) -> int:
    """Wait for a child; return its exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def result(out: Path) -> list[object]:
    """Return what a finished run leaves: all state and all rows."""
    leaves = tree_leaves(RunFolder(out).load().state)
    rows = [{**row, "images_per_second": 0} for row in RunFolder(out).rows()]
    return [each.tolist() if isinstance(each, torch.Tensor) else each for each in leaves] + rows


def kill(pid: int, out: Path, seconds: float, in_writing: bool) -> bool:
    """Kill a child after so long, or in the write of a checkpoint after that; False if it ended before."""
    until = time.monotonic() + seconds
    while time.monotonic() < until or (in_writing and not any((out / "checkpoints").glob(".*"))):
        if os.waitpid(pid, os.WNOHANG)[0]:
            return False
        time.sleep(0.0002)
    os.kill(pid, signal.SIGKILL)
    return finish(pid) == -signal.SIGKILL


def campaign(count: int, work: Path) -> int:
    """Disturb runs that have to end in the same bits; return how often they were killed."""
    drawn, kills = random.Random(3), 0
    references: dict[str, tuple[list[object], float]] = {}
    for number in range(count):
        name, out = KINDS[number % len(KINDS)], work / f"run-{number}"
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
        assert finish(start(name, out)) == 0 and result(out) == expected, f"run {number}"
        shutil.rmtree(out)
    return kills


@pytest.mark.parametrize("count", [3, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(7200)])])
def test_runs_killed_at_random_moments_end_in_the_same_bits(count: int, tmp_path: Path) -> None:
    # in a process of its own, whose forks inherit no threads
    done = warm.start("-m", "tests.test_kill_runs", count, tmp_path).finish(timeout=7200)
    assert done.returncode == 0, done.stderr
    # by the clock of an undisturbed run: on a busy machine some come too late
    assert int(done.stdout) >= count // 3


if __name__ == "__main__":
    print(campaign(int(sys.argv[1]), Path(sys.argv[2])))
