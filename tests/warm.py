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
import time
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).parents[1]
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["zoo.cli", "zoo.pretraining", "zoo.evaluation.evaluate", "matplotlib.figure", "sklearn.datasets"]
)


class Program:
    """One or more processes that run the same program, each in an environment with `changes` of its own."""

    def __init__(self, arguments: tuple[object, ...], changes: list[dict[str, str]], cwd: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="zoo-warm-")
        self._files = [Path(self._folder.name, name) for name in ("stdout", "stderr")]
        for file in self._files:
            file.touch()
        self.arguments = [str(word) for word in arguments]
        self._processes = [
            CONTEXT.Process(
                target=_program, args=(self.arguments, {**os.environ, **own}, str(cwd), self._files)
            )
            for own in changes
        ]
        # the server, which the first process starts, finds this checkout wherever pytest stands
        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        with mock.patch.dict(os.environ, PYTHONPATH=paths):
            for process in self._processes:
                process.start()
        atexit.register(self.kill)  # of a test that failed: multiprocessing would wait for it

    @property
    def pids(self) -> list[int]:
        """Of all processes, in the order of their ranks."""
        return [process.pid for process in self._processes]

    def poll(self) -> int | None:
        """Return the first status that is not 0 once all have ended, negative for a signal."""
        codes = [process.exitcode for process in self._processes]
        return None if None in codes else next((code for code in codes if code), 0)

    def kill(self) -> None:
        for process in self._processes:
            if process.exitcode is None:
                process.kill()

    def finish(self, timeout: float = 900) -> subprocess.CompletedProcess[str]:
        """Wait for all; kill those left by then, or a minute after one of them has failed."""
        deadline = time.monotonic() + timeout
        while self.poll() is None and time.monotonic() < deadline:
            if any(process.exitcode for process in self._processes):
                deadline = min(deadline, time.monotonic() + 60)  # the others notice themselves, and say so
            time.sleep(0.02)
        self.kill()
        for process in self._processes:
            process.join()
        code, said = self.poll(), [file.read_text() for file in self._files]
        assert code is not None
        return subprocess.CompletedProcess(self.arguments, code, *said)


def start(*arguments: object, cwd: Path | None = None) -> Program:
    """Start what `python ARGUMENTS` would: a program's path or `-m module`, and its arguments."""
    return Program(arguments, [{}], cwd or Path.cwd())


def run(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS` to the end."""
    return start(*arguments, cwd=cwd).finish()


def zoo(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    return run("-m", "zoo", *arguments)


def start_ranks(*arguments: object, ranks: int, **environment: str) -> Program:
    """Start the processes that torchrun would, with what it says in their environment, and no agent."""
    common = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(ranks)) | environment
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "TORCHELASTIC_RUN_ID": "warm"}
    own = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    return Program(arguments, own, ROOT)


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
        os.dup2(os.open(file, os.O_WRONLY | os.O_APPEND), number)
    sys.stdout.reconfigure(line_buffering=True)  # so that lines of several ranks stay whole
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
