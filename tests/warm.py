"""Python programs in processes of their own that need not import torch again: forked from one that has.

Importing torch, timm and zoo takes seconds of a core, more than most of what tests ask of a command. The
standard library's fork server imports them once for each process of pytest and computes nothing, so that its
forks are as a fresh interpreter is: own memory, signals, exit status, standard streams. What a library reads
from the environment on import (`HF_ENDPOINT`, `OMP_NUM_THREADS`) is that of the first start; a test of such a
setting, of what is imported, or of torchrun itself starts Python anew.
"""

import atexit
import contextlib
import multiprocessing
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).parents[1]
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "zoo.cli",
        "zoo.experiments.pretraining",
        "zoo.evaluation.evaluate",
        "matplotlib.figure",
        "sklearn.datasets",
    ]
)


class Program:
    """A process that has become `python ARGUMENTS`."""

    def __init__(self, arguments: tuple[object, ...], changes: dict[str, str], cwd: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="zoo-warm-")
        self._files = [Path(self._folder.name, name) for name in ("stdout", "stderr")]
        self.arguments = [str(word) for word in arguments]
        given = self.arguments, {**os.environ, **changes}, str(cwd), self._files
        self._process = CONTEXT.Process(target=_program, args=given)
        # the server, which the first process starts, finds this checkout wherever pytest stands
        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        with mock.patch.dict(os.environ, PYTHONPATH=paths):
            self._process.start()
        atexit.register(self._process.kill)  # of a test that failed: multiprocessing would wait for it
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """Return the status of a process that has ended, negative for a signal."""
        return self._process.exitcode

    def finish(self, timeout: float = 900) -> subprocess.CompletedProcess[str]:
        """Wait for the end; kill what is left by then."""
        self._process.join(timeout)
        self._process.kill()
        self._process.join()
        code, said = self._process.exitcode, [file.read_text() for file in self._files]
        return subprocess.CompletedProcess(self.arguments, code, *said)


def start(*arguments: object, cwd: Path | None = None, **environment: str) -> Program:
    """Start what `python ARGUMENTS` would: a program's path or `-m module`, and its arguments."""
    return Program(arguments, environment, cwd or Path.cwd())


def run(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS` to the end."""
    return start(*arguments, cwd=cwd).finish()


def zoo(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    return run("-m", "zoo", *arguments)


def start_ranks(*arguments: object, ranks: int, **environment: str) -> list[Program]:
    """Start the processes that torchrun would, with what it says in their environment, and no agent."""
    common = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(ranks)) | environment
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "TORCHELASTIC_RUN_ID": "warm"}
    own = ({"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks))
    return [start(*arguments, cwd=ROOT, **common, **each) for each in own]


def free_port() -> int:
    """Return a port that nothing else takes until rank 0 does, which may be much later.

    Those that the system gives out to connections and to servers that ask for any begin at 32768 on Linux.
    """
    while True:
        port = random.SystemRandom().randrange(16_000, 32_000)
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


def _program(arguments: list[str], environment: dict[str, str], cwd: str, files: list[Path]) -> None:
    """In the fork: become `python ARGUMENTS`."""
    for number, file in zip((1, 2), files, strict=True):
        os.dup2(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        file = ROOT / arguments[0]
        sys.path.insert(0, str(file.parent))
        runpy.run_path(str(file), run_name="__main__")
