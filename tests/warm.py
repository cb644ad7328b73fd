"""Python programs in processes of their own that need not import torch again: forked from one that has.

Importing torch, timm and zoo takes seconds of a core, more than most of what tests ask of a command. The
standard library's fork server imports them once for each process of pytest and computes nothing, so that its
forks are as a fresh interpreter is: own memory, signals, exit status, standard streams. What a library reads
from the environment on import (`HF_ENDPOINT`, `OMP_NUM_THREADS`) is that of the first start; a test of such a
setting, of what is imported, or of torchrun itself starts Python anew.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import random
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from multiprocessing import connection
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["zoo.cli", "zoo.pretraining", "zoo.evaluation.evaluate", "matplotlib.figure", "sklearn.datasets"]
)


class Program:
    """One or more processes that run the same program, as `subprocess.Popen` has one."""

    def __init__(self, arguments: list[str], environments: list[Mapping[str, str]], cwd: Path | str) -> None:
        folder = Path(tempfile.mkdtemp(prefix="zoo-warm-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        atexit.register(self.kill)  # of a test that failed: multiprocessing would wait for it
        self.arguments = arguments
        self._files = [folder / name for name in ("stdout", "stderr")]
        for file in self._files:
            file.touch()
        self._processes = [
            CONTEXT.Process(target=_program, args=(arguments, dict(each), str(cwd), self._files))
            for each in environments
        ]
        with _importable():
            for process in self._processes:
                process.start()

    @property
    def pid(self) -> int:
        """The first process."""
        return self.pids[0]

    @property
    def pids(self) -> list[int]:
        """All of them, in the order of their ranks."""
        return [process.pid for process in self._processes]

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        """Return the first status that is not 0 once all have ended, negative for a signal."""
        codes = [process.exitcode for process in self._processes]
        return None if None in codes else next((code for code in codes if code), 0)

    def send_signal(self, number: int) -> None:
        """To the first process."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        for process in self._processes:
            if process.exitcode is None:
                process.kill()

    def wait(self, timeout: float = 900) -> int:
        """Wait for all; kill those left by then, or a minute after one of them has failed."""
        deadline = time.monotonic() + timeout
        while (left := [process for process in self._processes if process.exitcode is None]) and (
            (now := time.monotonic()) < deadline
        ):
            if any(process.exitcode for process in self._processes):
                deadline = min(deadline, now + 60)  # the others notice themselves, and say so
            connection.wait([process.sentinel for process in left], timeout=min(1.0, deadline - now))
        if left:
            self.kill()
            for process in left:
                process.join()
            if time.monotonic() > deadline and not any(p.exitcode not in (0, -9) for p in self._processes):
                raise subprocess.TimeoutExpired(self.arguments, timeout, *self._said())
        code = self.poll()
        assert code is not None
        return code

    def communicate(self, timeout: float = 900) -> tuple[str, str]:
        """Wait for all; return what they wrote to standard output and error."""
        self.wait(timeout)
        return self._said()

    def _said(self) -> tuple[str, str]:
        stdout, stderr = (file.read_text() for file in self._files)
        return stdout, stderr


def start(*arguments: object, cwd: Path | str | None = None, **environment: str) -> Program:
    """Start what `python ARGUMENTS` would: a program's path or `-m module`, and its arguments."""
    words = [str(word) for word in arguments]
    return Program(words, [{**os.environ, **environment}], cwd or Path.cwd())


def run(
    *arguments: object, cwd: Path | str | None = None, timeout: float = 900, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS` to the end."""
    return _finished(start(*arguments, cwd=cwd, **environment), timeout)


def zoo(*arguments: object, timeout: float = 900, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    return run("-m", "zoo", *arguments, timeout=timeout, **environment)


def start_ranks(*arguments: object, ranks: int, **environment: str) -> Program:
    """Start the processes that torchrun would, with what it says in their environment, and no agent."""
    port = free_port()
    told = {
        "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "ROLE_WORLD_SIZE": ranks, "GROUP_WORLD_SIZE": 1,
        "GROUP_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1,
        "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0, "TORCHELASTIC_RUN_ID": f"warm{port}",
    }  # fmt: skip
    each = [told | {"RANK": rank, "LOCAL_RANK": rank, "ROLE_RANK": rank} for rank in range(ranks)]
    words = [str(word) for word in arguments]
    return Program(
        words,
        [{**os.environ, **{key: str(value) for key, value in own.items()}, **environment} for own in each],
        ROOT,
    )


def free_port() -> int:
    """Return a port that nothing else takes until rank 0 does, which may be much later.

    Those that the system gives out to connections and to servers that ask for any begin at 32768 on Linux.
    """
    while True:
        port = random.SystemRandom().randrange(16_000, 32_000)
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


def run_ranks(
    *arguments: object, ranks: int, timeout: float = 900, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program on several ranks to the end."""
    return _finished(start_ranks(*arguments, ranks=ranks, **environment), timeout)


def _finished(program: Program, timeout: float) -> subprocess.CompletedProcess[str]:
    stdout, stderr = program.communicate(timeout)
    code = program.returncode
    assert code is not None
    return subprocess.CompletedProcess(program.arguments, code, stdout, stderr)


@contextlib.contextmanager
def _importable() -> Iterator[None]:
    """Let the server, which the first process starts, find this checkout wherever pytest stands."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [before])])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _program(arguments: list[str], environment: dict[str, str], cwd: str, files: list[Path]) -> None:
    """In the fork: become `python ARGUMENTS`."""
    for number, file in zip((1, 2), files, strict=True):
        opened = os.open(file, os.O_WRONLY | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdout.reconfigure(line_buffering=True)  # so that lines of several ranks stay whole
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    if arguments[0] == "-m":
        sys.argv = [arguments[1], *arguments[2:]]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        file = ROOT / arguments[0]
        sys.path.insert(0, str(file.parent))
        runpy.run_path(str(file), run_name="__main__")
