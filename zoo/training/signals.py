"""Signals stop a training between two steps instead of in the middle of one."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from zoo.errors import Interrupted

# from a person, a job scheduler, a closed terminal, and SLURM's warning before the time limit
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


class _Stopped(KeyboardInterrupt):
    """Not an `Exception`, which libraries catch; DataLoader workers exit on it silently."""


@contextmanager
def stop_on_signal() -> Iterator[list[int]]:
    """Yield a list that receives the first SIGINT, SIGTERM, SIGHUP or SIGUSR1; a second one acts as usual."""
    with _handled((caught := list[int]()).append):
        yield caught


@contextmanager
def interruptible(saved: Callable[[], str]) -> Iterator[None]:
    """End the block immediately at the first signal; Interrupted names it and says what is `saved`."""

    def leave(number: int) -> None:
        raise _Stopped(signal.Signals(number).name)

    try:
        with _handled(leave):
            yield
    except _Stopped as stopped:
        raise Interrupted(f"stopped by {stopped}; {saved()}. Use --resume to go on") from None


@contextmanager
def _handled(react: Callable[[int], object]) -> Iterator[None]:
    """Call `react` with the first signal; the next one acts as usual, or is ignored under torchrun.

    torchrun forwards a Ctrl-C that its processes have received already, and kills those that do not stop.
    """
    if threading.current_thread() is not threading.main_thread():  # where Python allows no handlers
        yield
        return
    owner, previous = os.getpid(), {n: signal.getsignal(n) or signal.SIG_DFL for n in _SIGNALS}
    if previous[signal.SIGHUP] is signal.SIG_IGN:  # under nohup a closed terminal changes nothing
        del previous[signal.SIGHUP]

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal react
        if os.getpid() == owner:
            first, react = react, lambda _: None
            if "TORCHELASTIC_RUN_ID" not in os.environ:
                restore()
            first(number)
        elif number == signal.SIGTERM:  # sent to end a DataLoader worker, which survives a Ctrl-C
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    for number in previous:
        signal.signal(number, handle)
    try:
        yield
    finally:
        restore()
