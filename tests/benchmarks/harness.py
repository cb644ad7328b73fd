"""What every benchmark shares: calling all forms in turn, peak memory, and a row of the table.

A benchmark module has `rows(device) -> Iterator[Row]`; `python -m tests.benchmarks` runs them all. All forms
do the same work. Before anything is timed, `gate` compares their results; a row whose gate fails has no
ratio. On a CPU seconds are the processor's, so that other programs count less.
"""

import importlib
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch


class GateError(Exception):
    """Ours and the peer's results differ: there is nothing to compare."""


class Row(NamedTuple):
    """One line of the table: `ratio` is peer / ours (time), or ours / peer where `at_most` (memory).

    `floor` is the time of what no form can do without, as a share of ours; NaN where nothing is known.
    """

    name: str
    peer: str
    ratio: float
    target: float
    ours: str
    theirs: str
    gate: str
    at_most: bool = False
    note: str = ""
    floor: float = math.nan

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

    def cells(self) -> str:
        """Return the row as one of a Markdown table."""
        floor = "" if math.isnan(self.floor) else f"{self.floor:.2f}"
        return f"| {self.name} | {self.peer} | {self.ours} | {self.theirs} | {self.ratio:.3g} | {floor} |"


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
    cpu = device.type == "cpu"
    wait, clock = (lambda: None, time.process_time) if cpu else (torch.cuda.synchronize, time.perf_counter)
    for number in range(warmup + rounds):
        for function, taken in zip(functions, times, strict=True):
            wait()
            start = clock()
            function()
            wait()
            if number >= warmup:
                taken.append(clock() - start)
    return [statistics.median(taken) for taken in times]


def timed(
    name: str,
    peers: str | Sequence[str],
    functions: Sequence[Callable[[], object]],
    target: float,
    equal: str,
    device: torch.device,
    rounds: int = 9,
    warmup: int = 1,
    *,
    times: int = 1,
    note: str = "",
    floor: Callable[[], object] | None = None,
) -> Row:
    """Measure ours and its peers, of which the fastest counts; the row's durations are of so many times."""
    names = [peers] if isinstance(peers, str) else peers
    ours, *found = medians([*functions, *([floor] if floor else [])], device, rounds, warmup)
    limit = found.pop() if floor else math.nan
    shown = [f"{times * each:.3g} s" if times > 1 else f"{each * 1e3:.3g} ms" for each in (ours, *found)]
    best = found.index(min(found))
    others = [f"{name} {text}" for name, text in zip(names, shown[1:], strict=True) if name != names[best]]
    ratio, note = found[best] / ours, "; ".join([*([note] if note else []), *others])
    own, theirs = shown[0], shown[1 + best]
    return Row(name, names[best], ratio, target, own, theirs, equal, note=note, floor=limit / ours)


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


def optional(name: str) -> Any:
    """Return a peer's module; None where it is not installed, which is said in one line."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        print(f"    no {name} here: without that peer", flush=True)


def machine() -> str:
    """Name what the figures were measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ", no GPU"
    threads = f"{torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}"
    return f"{len(names)} x {names[:1]}{gpu}; torch {torch.__version__}, {threads}"
