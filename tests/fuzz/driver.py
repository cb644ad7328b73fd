"""Runs cases of a kind in worker processes, which may hang, die or fill their memory without harm."""

from __future__ import annotations

import contextlib
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from tests.fuzz.judge import Outcome
from tests.fuzz.worker import work

GRACE = 2.0  # seconds after a call's deadline until its process is ended
START = 180.0  # seconds that a worker may take to import everything


class Failure(NamedTuple):
    """A case that did not end as it should.

    Attributes:
        kind, seed, number: which one.
        problems: one line each.
        details: tracebacks.
        note: what the case changed.
        saved: a copy of its files, if it was kept.
    """

    kind: str
    seed: int
    number: int
    problems: list[str]
    details: str
    note: str
    saved: Path | None

    @property
    def command(self) -> str:
        """The line that runs this case again."""
        return f"python -m tests.fuzz {self.kind} --seed {self.seed} --only {self.number}"


class Tally(NamedTuple):
    """A kind's cases: those in which every call succeeded, those in which one was refused, and failures."""

    kind: str
    tried: int
    succeeded: int
    refused: int
    failures: list[Failure]
    slowest: float
    largest: int


class _Worker:
    """A process and the pipe to it."""

    def __init__(self, kind: str, seed: int, seconds: float, memory: int) -> None:
        self._arguments = (kind, seed)
        self._limits = (seconds, memory)
        self._folder = Path(tempfile.mkdtemp(prefix="zoo-fuzz-"))
        self.process: Any = None
        self._pipe: Connection | None = None

    @property
    def case_folder(self) -> Path:
        return self._folder / "case"

    def ask(self, number: int) -> Outcome:
        """Run one case; a worker that hangs or dies is an outcome too, and is replaced."""
        if self.process is None:
            self._start()
        assert self._pipe is not None
        self._pipe.send(number)
        answer = self._answer(10 * self._limits[0] + GRACE)
        if isinstance(answer, Outcome):
            return answer
        self.stop()
        return Outcome(0, 0, [answer], "", "", 0.0, 0)

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, *self._arguments, self._folder, *self._limits)
        self.process = context.Process(target=work, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        answer = self._answer(START)
        if answer != "ready":
            raise RuntimeError(f"the worker for {self._arguments} does not start: {answer}")

    def _answer(self, seconds: float) -> Any:
        assert self._pipe is not None
        try:
            if self._pipe.poll(seconds):
                return self._pipe.recv()
        except (EOFError, OSError):
            self.process.join(10)
            return f"the process died, exit code {self.process.exitcode}"
        return f"hangs: no answer in {seconds:g} s, not even to a signal"

    def stop(self) -> None:
        """End the process, and wait for it."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.process = None
        if self._pipe is not None:
            self._pipe.close()

    def close(self) -> None:
        """End everything."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


def fuzz(
    kind: str,
    numbers: range,
    seed: int,
    *,
    seconds: float = 40.0,
    memory: int = 2 << 30,
    keep: Path | None = None,
) -> Iterator[Tally]:
    """Yield the tally after every case; limits as `judge.run` has them.

    Args:
        kind: a name in `tests.fuzz.kinds.KINDS`, or `module:name`.
        numbers: which cases.
        seed: with the kind and the number it decides a case.
        seconds: that one call may take; its process is ended some seconds later.
        memory: bytes that a case may need.
        keep: copy the files of failing cases below this folder.
    """
    tally = Tally(kind, 0, 0, 0, [], 0.0, 0)
    with contextlib.closing(_Worker(kind, seed, seconds, memory)) as worker:
        for number in numbers:
            start = time.perf_counter()
            outcome = worker.ask(number)
            took = time.perf_counter() - start
            if outcome.failures:
                saved = (
                    None
                    if keep is None
                    else _saved(worker.case_folder, keep / f"{kind}-{seed}-{number}", outcome)
                )
                found = (outcome.failures, outcome.details, outcome.note, saved)
                tally.failures.append(Failure(kind, seed, number, *found))
            tally = tally._replace(
                tried=tally.tried + 1,
                succeeded=tally.succeeded + (not outcome.failures and outcome.refused == 0),
                refused=tally.refused + (not outcome.failures and outcome.refused > 0),
                slowest=max(tally.slowest, took),
                largest=max(tally.largest, outcome.growth),
            )
            yield tally


def _saved(folder: Path, target: Path, outcome: Outcome) -> Path:
    """Keep what is small of a case's files, and what was wrong."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for file in folder.rglob("*"):
        if file.is_file() and not file.is_symlink() and file.stat().st_size < 4 << 20:
            copy = target / file.relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
    (target / "FAILURE.txt").write_text(
        "\n".join([outcome.note, *outcome.failures, "", outcome.details]), "utf-8", "backslashreplace"
    )
    return target
