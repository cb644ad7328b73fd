"""Stopping between two steps instead of in the middle of one."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from zoo.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""A person, a scheduler that ends a job, a closed terminal, a scheduler that warns of the end (SLURM's
`--signal=USR1@120`)."""


class StopRequest:
    """The signal that asked the run to stop, if any; `number` is 0 until then."""

    number: int = 0

    @property
    def signal(self) -> str | None:
        """Its name, e.g. "SIGTERM"."""
        return signal.Signals(self.number).name if self.number else None


class _Stopped(KeyboardInterrupt):
    """No `Exception`, which code between here and there may catch; loader processes end on it silently."""


@contextmanager
def stop_on_signal(*, once: bool = True) -> Iterator[StopRequest]:
    """Turn the first SIGINT, SIGTERM, SIGHUP or SIGUSR1 into a request for the loop; a second acts as usual.

    Outside the main thread Python allows no handlers, and signals act as usual.

    Args:
        once: False lets further signals change nothing: torchrun hands on a Ctrl-C that its processes have
            had from the terminal already, and ends who does not stop by itself.
    """
    request = StopRequest()

    def ask(number: int) -> None:
        request.number = number

    with _handled(ask, once=once):
        yield request


@contextmanager
def interruptible(saved: Callable[[], str], *, once: bool = True) -> Iterator[None]:
    """End the block at the first signal, wherever it is: for what is not cut into steps.

    A `stop_on_signal` inside takes its place while that lasts.

    Args:
        saved: says what the signal has not destroyed, e.g. "nothing was begun yet".
        once: as for `stop_on_signal`.

    Raises:
        Interrupted: with the signal's name and what is saved.
    """
    name = ""

    def leave(number: int) -> None:
        nonlocal name
        name = signal.Signals(number).name
        raise _Stopped

    try:
        with _handled(leave, once=once):
            yield
    except _Stopped:
        raise Interrupted(
            f"stopped by {name}; {saved()}. Give the same command with --resume to go on"
        ) from None


@contextmanager
def _handled(react: Callable[[int], None], *, once: bool) -> Iterator[None]:
    """Let `react` have the first signal; `once` says whether the next act as they did before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    owner = os.getpid()
    reacted = False
    previous = {number: signal.getsignal(number) for number in _SIGNALS}
    if previous[signal.SIGHUP] is signal.SIG_IGN:  # under nohup a closed terminal is to change nothing
        del previous[signal.SIGHUP]

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal reacted
        if os.getpid() != owner and number == signal.SIGTERM:  # how a parent ends its children
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        if (
            os.getpid() != owner or reacted
        ):  # a Ctrl-C reaches the loader's processes, too: the run needs them
            return
        reacted = True
        if once:
            restore()
        react(number)

    for number in previous:
        signal.signal(number, handle)
    try:
        yield
    finally:
        restore()
