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
"""Of a person, a scheduler that ends a job, a closed terminal, a scheduler that warns of the end (SLURM's
`--signal=USR1@120`)."""


class StopRequest:
    """The signal that asked the run to stop, if any; `number` is 0 until then."""

    number: int = 0

    @property
    def signal(self) -> str | None:
        """Its name, e.g. "SIGTERM"."""
        return signal.Signals(self.number).name if self.number else None


class _Stopped(KeyboardInterrupt):
    """Not an `Exception`, which libraries catch; loader processes end on it silently."""


@contextmanager
def stop_on_signal(*, once: bool = True) -> Iterator[StopRequest]:
    """Turn the first SIGINT, SIGTERM, SIGHUP or SIGUSR1 into a request for the loop; a second acts as usual.

    Outside the main thread Python allows no handlers, and signals act as usual.

    Args:
        once: False ignores further signals: torchrun forwards a Ctrl-C that its processes have had from the
            terminal already, and kills what does not stop by itself.
    """
    request = StopRequest()
    with _handled(lambda number: setattr(request, "number", number), once=once):
        yield request


@contextmanager
def interruptible(saved: Callable[[], str], *, once: bool = True) -> Iterator[None]:
    """End the block at the first signal, wherever it is: for work that is not cut into steps.

    A `stop_on_signal` inside takes its place while that lasts.

    Args:
        saved: says what the signal has not destroyed, e.g. "nothing was begun yet".
        once: as for `stop_on_signal`.

    Raises:
        Interrupted: with the signal's name and what is saved.
    """

    def leave(number: int) -> None:
        raise _Stopped(signal.Signals(number).name)

    try:
        with _handled(leave, once=once):
            yield
    except _Stopped as stopped:
        raise Interrupted(
            f"stopped by {stopped}; {saved()}. Give the same command with --resume to go on"
        ) from None


@contextmanager
def _handled(react: Callable[[int], object], *, once: bool) -> Iterator[None]:
    """Call `react` with the first signal; with `once` the next act as they did before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    owner, reacted = os.getpid(), False
    previous = {number: signal.getsignal(number) for number in _SIGNALS}
    if previous[signal.SIGHUP] is signal.SIG_IGN:  # under nohup a closed terminal changes nothing
        del previous[signal.SIGHUP]

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal reacted
        if os.getpid() != owner:  # in a loader's process, which the run needs after a Ctrl-C as well
            if number == signal.SIGTERM:  # how a parent ends its children
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
        elif not reacted:
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
