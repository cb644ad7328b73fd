"""The next batch is made while a step computes: in a thread of the CPU, or on a stream of the GPU.

On a CPU neither is used for augmentation: a thread that makes the next batch would take the cores from the
step (measured on 2 cores, MoCo with a ResNet-20: 359 instead of 368 ms with 2 threads, 667 and 666 with 1).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from zoo.data.batch import Batch

T = TypeVar("T")
DEPTH = 2  # batches made ahead by a thread: one is handed over while the other is made
MOST_AHEAD = 8
"""Batches on a GPU whose steps have not begun. Graphs are launched so quickly that the host could be dozens
ahead of the device, each with its views in memory: two of 256 images at 224 px are 0.3 GB."""


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a CPU tensor in memory that `device`, if it is a GPU, copies from without waiting."""
    return tensor.pin_memory() if device.type == "cuda" else tensor


def background(items: Iterator[T]) -> Generator[T]:
    """Yield `items`, made ahead, in order, in one thread that ends with the generator.

    An error of `items` is raised here, in its turn.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="zoo-prefetch")
    end = object()
    try:
        due = deque(pool.submit(next, items, end) for _ in range(DEPTH))
        while (item := due.popleft().result()) is not end:
            due.append(pool.submit(next, items, end))
            yield item  # type: ignore[misc]  # not the end
    finally:
        pool.shutdown(cancel_futures=True)


class Lane(Protocol):
    """Where batches are made, beside the stream that uses them."""

    def make(self, produce: Callable[[], Batch]) -> Callable[[], Batch]:
        """Call `produce`; return what makes its batch safe to use on the caller's stream."""


class SideStream:
    """A CUDA stream: its copies and kernels run while those of the training step do."""

    def __init__(self, device: torch.device) -> None:
        """Begin after what has been queued on the current stream, such as the copy of the data set."""
        self._device = device
        self._begins: deque[torch.cuda.Event] = deque()  # of the steps that batches were handed over to
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(device))

    def make(self, produce: Callable[[], Batch]) -> Callable[[], Batch]:
        """Queue a batch here; the stream that is current when it is handed over waits for it.

        The host waits where it is too far ahead of that stream.
        """
        if len(self._begins) >= MOST_AHEAD:
            self._begins.popleft().synchronize()
        with torch.cuda.stream(self._stream):
            batch = produce()
            ready = self._stream.record_event()

        def hand_over() -> Batch:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(ready)
            self._begins.append(current.record_event())
            for tensor in (*batch.views, batch.labels, batch.index, batch.candidates):
                if tensor is not None:
                    tensor.record_stream(current)  # its memory is this stream's to reuse only after that one
            return batch

        return hand_over


class _Failed(NamedTuple):
    error: Exception


def one_ahead(batches: Generator[Batch], lane: Lane) -> Generator[Batch]:
    """Yield `batches`; each is queued on `lane` before the one in front of it is handed over.

    The caller's kernels of step s are still running when batch s + 2 is queued, so neither stream waits for
    this thread. An error of `batches` is raised in its turn: the batches before it come first. `batches` is
    closed with this generator.
    """

    def make() -> Callable[[], Batch] | _Failed:
        try:
            return lane.make(lambda: next(batches))
        except Exception as error:  # an end as well: StopIteration
            return _Failed(error)

    with closing(batches):
        upcoming = make()
        while not isinstance(upcoming, _Failed):
            current, upcoming = upcoming, make()
            yield current()
        if not isinstance(upcoming.error, StopIteration):
            raise upcoming.error
