"""Start a program as torchrun does, on this machine, with gloo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAUNCH = (sys.executable, "-m", "torch.distributed.run")


def environment(**more: str) -> dict[str, str]:
    """One thread for each process, this checkout's code."""
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, **more}


def command(ranks: int, *arguments: str, options: tuple[str, ...] = ()) -> list[str]:
    """Return torchrun's command line for `ranks` processes of a program, or of `-m module`."""
    return [*LAUNCH, "--standalone", "--nproc-per-node", str(ranks), *options, *arguments]


def torchrun(
    *arguments: str, ranks: int, options: tuple[str, ...] = (), timeout: float = 900, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run to the end; `more` goes into the environment."""
    return subprocess.run(
        command(ranks, *arguments, options=options),
        cwd=ROOT,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
