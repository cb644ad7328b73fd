"""What every benchmark shares: calling two forms in turn, peak memory, and a row of the table.

A benchmark module has `rows(device) -> Iterator[Row]`; `python -m tests.benchmarks` runs them all. Both
sides do the same work. Before anything is timed, `gate` compares their results; a row whose gate fails has no
ratio.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch


class GateError(Exception):
    """Ours and the peer's results differ: there is nothing to compare."""


class Row(NamedTuple):
    """One line of the table: `ratio` is peer / ours (time), or ours / peer where `at_most` (memory)."""

    name: str
    peer: str
    ratio: float
    target: float
    ours: str
    theirs: str
    gate: str
    at_most: bool = False
    note: str = ""

    @property
    def reached(self) -> bool:
        return self.ratio <= self.target if self.at_most else self.ratio >= self.target

    def __str__(self) -> str:
        sign, verdict = "<=" if self.at_most else ">=", "reached" if self.reached else "MISSED"
        line = (
            f"{self.name}: {self.ratio:.3g}x (target {sign} {self.target:g}, {verdict}); "
            f"ours {self.ours}, {self.peer} {self.theirs}; gate: {self.gate}"
        )
        return line + (f"\n    {self.note}" if self.note else "")


def gate(what: str, found: float, limit: float) -> str:
    """Return `what` with the difference found, or stop the row if it is above the limit or not a number."""
    if not found <= limit:
        raise GateError(f"{what}: found a difference of {found:.2g}, expected at most {limit:g}")
    return f"{what} within {found:.1g} (limit {limit:g})"


def medians(
    functions: Sequence[Callable[[], object]], device: torch.device, rounds: int = 9, warmup: int = 1
) -> list[float]:
    """Return the median seconds of each function, called in turn, so that a busy machine slows all alike."""
    times: list[list[float]] = [[] for _ in functions]
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    for number in range(warmup + rounds):
        for function, taken in zip(functions, times, strict=True):
            wait()
            start = time.perf_counter()
            function()
            wait()
            if number >= warmup:
                taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in times]


def timed(
    name: str,
    peer: str,
    functions: Sequence[Callable[[], object]],
    target: float,
    equal: str,
    device: torch.device,
    rounds: int = 9,
    warmup: int = 1,
    *,
    times: int = 1,
    note: str = "",
) -> Row:
    """Measure ours and theirs; the row's durations are of so many times."""
    ours, theirs = medians(functions, device, rounds, warmup)
    shown = (
        f"{times * seconds:.3g} s" if times > 1 else f"{seconds * 1e3:.3g} ms" for seconds in (ours, theirs)
    )
    return Row(name, peer, theirs / ours, target, *shown, equal, note=note)


def peak_memory(code: str, device: str = "cpu") -> int:
    """Return the bytes that a piece of Python adds to the peak of its process (CPU) or of the device.

    `code` has two parts separated by a line `# measure`: what prepares, and what is measured. A fresh process
    runs both, because a process's peak never falls.
    """
    prepare, _, measured = code.partition("# measure\n")
    if device == "cuda":
        before, after = "torch.cuda.reset_peak_memory_stats()", "torch.cuda.max_memory_allocated()"
        start = "torch.cuda.memory_allocated()"
    else:  # not ru_maxrss, which begins at what the parent had
        after = "int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]) * 1024"
        before, start = "pass", after
    script = ["import torch", prepare, before, f"start = {start}", measured, f"print({after} - start)"]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(script)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return int(done.stdout.split()[-1])


def machine() -> str:
    """Name what the figures were measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ", no GPU"
    threads = f"{torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}"
    return f"{len(names)} x {names[:1]}{gpu}; torch {torch.__version__}, {threads}"
