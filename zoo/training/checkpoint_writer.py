"""Checkpoints written beside the training: it waits for a copy in memory, not for the disk."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from zoo.training.checkpoint import Checkpoint
from zoo.training.nested import map_tensors


def to_host(state: Any) -> Any:
    """Copy every tensor of nested dicts, lists and tuples into host memory of its own.

    From a GPU all copies are under way at once, and waited for together.
    """
    copied = map_tensors(state, _copy)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    return copied


def _copy(tensor: Tensor) -> Tensor:
    if tensor.device.type == "cpu":
        return tensor.detach().clone()
    host = torch.empty_like(tensor, device="cpu", pin_memory=True)
    return host.copy_(tensor.detach(), non_blocking=True)


class Saver:
    """Writes one checkpoint at a time in a thread.

    Args:
        write: writes a checkpoint to disk.
    """

    def __init__(self, write: Callable[[Checkpoint], None]) -> None:
        self._write = write
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._underway: Future[None] | None = None

    def save(self, checkpoint: Checkpoint) -> None:
        """Copy the checkpoint and begin to write it, once the one before it is written.

        Raises:
            TrainingError: if the one before could not be written.
        """
        self.wait()
        copied = checkpoint._replace(state=to_host(checkpoint.state))
        self._underway = self._thread.submit(self._write, copied)

    def check(self) -> None:
        """Raise the error of a write that has failed; never waits."""
        if self._underway is not None and self._underway.done():
            self.wait()

    def wait(self) -> None:
        """Wait until everything is on disk.

        Raises:
            TrainingError: if it could not be written.
        """
        underway, self._underway = self._underway, None
        if underway is not None:
            underway.result()

    def close(self) -> None:
        """End the thread; what is being written is finished, whatever else went wrong."""
        self._thread.shutdown()
