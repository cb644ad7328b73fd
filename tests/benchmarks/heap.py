"""What it saves a training on a CPU that the command line keeps the memory that its steps free.

Both sides are processes of their own, in turn. The gate: the same gradients after the same steps.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import torch

from tests.benchmarks.harness import Row, gate, milliseconds

ROUNDS = 5


def measure(side: str) -> dict[str, Any]:
    """Run the steps in a process of their own."""
    command = [sys.executable, "-m", "tests.programs.heap", side]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def rows(device: torch.device) -> Iterator[Row]:
    """Measure steps of ResNet-32 on a batch of 128 in float32."""
    if device.type != "cpu":
        return
    ours, theirs = [], []
    for _ in range(ROUNDS):
        theirs.append(measure("given_back"))
        ours.append(measure("kept"))
    equal = gate("gradients", abs(ours[0]["gradient"] / theirs[0]["gradient"] - 1), 1e-6)
    seconds = [statistics.median(each["seconds"] for each in side) for side in (ours, theirs)]
    faults = [statistics.median(each["faults"] for each in side) for side in (ours, theirs)]
    peaks = [statistics.median(each["peak"] for each in side) / 2**20 for side in (ours, theirs)]
    note = f"page faults per step {faults[0]:.0f}, {faults[1]:.0f}; peak {peaks[0]:.0f}, {peaks[1]:.0f} MiB"
    yield Row(
        "ResNet-32 step on a batch of 128, freed memory kept",
        "glibc's defaults",
        seconds[1] / seconds[0],
        1.0,
        milliseconds(seconds[0]),
        milliseconds(seconds[1]),
        equal,
        note=note,
    )
