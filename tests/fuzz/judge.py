"""Runs the calls of one case and says what is wrong with their outcome."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import re
import signal
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.case import Case, Kind, random_of
from tests.fuzz.guard import Guard
from tests.process_memory import status
from zoo.errors import ZooError

LONGEST_MESSAGE = 6_000  # characters: a page
_RAW = re.compile(r" object at 0x|<(?:class|function|module|bound method) |Traceback|\bNoneType\b(?!\))")
_MEMORY = re.compile(
    r"MemoryError|[Uu]nable to allocate|can't allocate|not enough memory|bad_alloc|malloc of"
)


class Outcome(NamedTuple):
    """What became of a case.

    Attributes:
        succeeded, refused: how many of the calls ended so.
        failures: what is wrong, one line each, the call first; empty where all is well.
        details: tracebacks.
        note: what the case changed.
        seconds, growth: of all calls; seconds by the clock, and bytes that the process grew by at its peak.
    """

    succeeded: int
    refused: int
    failures: list[str]
    details: str
    note: str
    seconds: float
    growth: int


class TooSlow(BaseException):
    """Raised in the middle of a call; no handler of `Exception` takes it for an error of the file."""


def judge(
    kind: Kind, name: str, seed: int, number: int, folder: Path, guard: Guard, *, seconds: float, memory: int
) -> Outcome:
    """Make a case below `folder`, an empty one, and run it; see `run`."""
    return run(kind(random_of(name, seed, number), folder), folder, guard, seconds=seconds, memory=memory)


def run(case: Case, folder: Path, guard: Guard, *, seconds: float, memory: int) -> Outcome:
    """Run the calls of `case`, whose files are below `folder`.

    Args:
        case: what to call.
        folder: the only place besides the caches that may be written to.
        guard: sees code that runs.
        seconds: that one call may take.
        memory: bytes that the process may grow by.
    """
    failures, details, succeeded, refused = [], [], 0, 0
    before, start = _reset_peak(), time.perf_counter()
    for what, call in case.calls.items():
        caches = [Path(os.environ[key]) for key in ("XDG_CACHE_HOME", "HF_HOME") if key in os.environ]
        try:
            with guard.watching(folder, *caches), _quiet(), _deadline(seconds):
                call()
            succeeded += 1
        except ZooError as error:
            refused += 1
            failures += [f"{what}: {problem}" for problem in problems(str(error), case.names)]
        except TooSlow:
            failures.append(f"{what}: hangs: took more than {seconds:g} s")
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            line = " ".join(str(error).split())[:200]
            place = f"{frame.filename.rpartition('site-packages/')[2]}:{frame.lineno}"
            failures.append(f"{what}: {type(error).__name__} at {place}: {line}")
            details.append("".join(traceback.format_exception(error))[-6000:])
        failures += [f"{what}: code runs: {event}" for event in guard.seen]
    growth = status("VmHWM") - before
    if growth > memory:
        failures.append(f"allocates {growth >> 20} MiB, expected at most {memory >> 20}")
    return Outcome(
        succeeded, refused, failures, "\n".join(details), case.note, time.perf_counter() - start, growth
    )


def problems(message: str, names: tuple[str, ...]) -> Iterator[str]:
    """Yield what is wrong with the message of a `ZooError`."""
    shown = repr(message[:300])
    if not message.strip():
        yield "an empty message"
    if len(message.splitlines()) > 1:
        yield f"a message of several lines: {shown}"
    if re.search(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]", message):
        yield f"a message with what a terminal obeys: {shown}"
    if len(message) > LONGEST_MESSAGE:
        yield f"a message of {len(message):,} characters: {shown}"
    if _RAW.search(message) or message.strip() == "None" or re.search(r": None(?:$|[.;])", message):
        yield f"a message with Python in it: {shown}"
    if _MEMORY.search(message):
        yield f"the memory was asked for: {shown}"
    if names and not any(name in message for name in names):
        yield f"a message that names none of {names}: {shown}"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Warnings may be given, and output printed; nobody reads them here."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        with contextlib.redirect_stderr(io.StringIO()):
            yield


@contextlib.contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Raise `TooSlow` in the block after `seconds`; where Python does not come by, the driver ends it."""

    def late(*_: object) -> None:
        raise TooSlow

    earlier = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)


def _reset_peak() -> int:
    with contextlib.suppress(AttributeError):  # no glibc: its free pages would serve a case without a trace
        ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    return status("VmRSS")
