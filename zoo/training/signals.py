"""Stopping between two steps instead of in the middle of one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Name of the signal that asked the run to stop, if any."""

    signal: str | None = None


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """Turn the first SIGINT or SIGTERM into a request that the loop reads; a second one acts as usual.

    Outside the main thread Python allows no handlers, and signals act as usual.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    previous = {number: signal.getsignal(number) for number in _SIGNALS}

    def handle(number: int, _frame: FrameType | None) -> None:
        request.signal = signal.Signals(number).name
        for each, handler in previous.items():
            signal.signal(each, handler)

    for number in _SIGNALS:
        signal.signal(number, handle)
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
