"""A process that runs cases one after another until it is told to stop, hangs or dies."""

from __future__ import annotations

import importlib
import logging
import os
import resource
import shutil
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from tests.fuzz.case import Kind
from tests.fuzz.guard import Guard
from tests.fuzz.judge import Outcome, judge

MOST_ADDRESSES = 4 << 30  # bytes beyond those in use at the start: where asking for more ends


def kind_of(name: str) -> Kind:
    """Return a kind by its name in `KINDS`, or by `module:name`."""
    module, colon, attribute = name.partition(":")
    if colon:
        found: Kind = getattr(importlib.import_module(module), attribute)
        return found
    from tests.fuzz.kinds import KINDS

    return KINDS[name]


def own_environment(folder: Path) -> None:
    """Keep everything that is cached below `folder`, and everything small; before torch is imported."""
    os.environ |= {
        "OMP_NUM_THREADS": "1",
        "XDG_CACHE_HOME": str(folder / "cache"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "HF_HOME": str(folder / "hf"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "MPLCONFIGDIR": str(folder / "matplotlib"),
    }


def work(connection: Connection, name: str, seed: int, folder: Path, seconds: float, memory: int) -> None:
    """Answer each number with an `Outcome`; None ends it."""
    own_environment(folder)
    sys.path.insert(0, str(folder))
    logging.disable()
    kind, guard = kind_of(name), Guard()
    here = folder / "case"
    for number in (-1, -2, -3):  # imports and caches are nobody's doing
        _one(kind, name, seed, number, here, guard, seconds=60, memory=memory)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_ADDRESSES, hard))
    connection.send("ready")
    while (number := connection.recv()) is not None:
        connection.send(_one(kind, name, seed, number, here, guard, seconds=seconds, memory=memory))


def _one(
    kind: Kind, name: str, seed: int, number: int, folder: Path, guard: Guard, *, seconds: float, memory: int
) -> Outcome:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.chdir(folder)
    return judge(kind, name, seed, number, folder, guard, seconds=seconds, memory=memory)
