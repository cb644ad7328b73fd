"""The views of a whole batch as one CUDA graph: of a small image they cost little but their launches."""

from __future__ import annotations

from collections.abc import Callable

from torch import Generator, Tensor

from zoo import cuda_graph
from zoo.cuda_graph import Replay
from zoo.data.batch import Batch
from zoo.errors import DataError

WARM_UP = 1
"""Ordinary batches before a capture: they put constants on the device and load its libraries."""


class Replayed:
    """Calls `make` for the first batches, then captures it once and replays that.

    A replay has other contents in the same memory: the index is copied to where the captured one was, and
    what comes out is copied, since the next replay overwrites it. Random numbers are drawn on the device,
    from where `generator` is then: seeded before each batch, as it is for an ordinary one. Nothing in the
    views is drawn on the host. Smaller batches than the largest seen are not captured.

    Args:
        make: makes the batch of an index `[B]`; reads nothing else that changes.
        generator: what it draws from.
    """

    def __init__(self, make: Callable[[Tensor], Batch], generator: Generator) -> None:
        self._make = make
        self._generator = generator
        self._largest = 0
        self._ordinary = 0
        self._replay: Replay | None = None
        self._index: Tensor | None = None
        self._batch: Batch | None = None

    def __call__(self, index: Tensor) -> Batch:
        """Return the batch of `index`; the generator is then anywhere.

        Raises:
            DataError: when the views cannot be captured.
        """
        if len(index) > self._largest:
            self._largest, self._ordinary, self._replay = len(index), WARM_UP, None
        if len(index) < self._largest or self._ordinary > 0:
            self._ordinary -= len(index) == self._largest
            return self._make(index)
        if self._replay is None:
            self._index = index.clone()
            self._replay = self._captured()
        assert self._index is not None
        self._index.copy_(index)
        self._replay()
        assert self._batch is not None
        views, labels, index, candidates = self._batch
        return Batch(
            tuple(view.clone() for view in views),
            labels.clone(),
            index.clone(),
            None if candidates is None else candidates.clone(),
        )

    def _captured(self) -> Replay:
        def record() -> None:
            assert self._index is not None
            self._batch = self._make(self._index)

        with cuda_graph.capturing("the views", DataError):
            return cuda_graph.capture(record, self._generator)
