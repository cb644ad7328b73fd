"""Between the live state, which every rank has, and the run's folder, which the first one writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from zoo.errors import TrainingError
from zoo.ranks import Ranks
from zoo.recipe import Recipe
from zoo.training.failures import is_out_of_memory
from zoo.training.nested import map_tensors
from zoo.training.run_folder import Checkpoint, RunFolder
from zoo.training.step import Stepper
from zoo.training.stopping import Stopping


class Keeper:
    """Saves the state of a run and takes it up again; leaving the block waits for what is being written.

    Args:
        run: locked by the first rank.
        recipe: what the run does, and how often it is saved.
        stepper: has the live state.
        ranks: call the same methods in the same order, except where those of one rank are named.
        stopping: has the best state, where a run stops early.

    Attributes:
        saved: the step of the newest checkpoint; -1 before there is one.
    """

    def __init__(
        self,
        run: RunFolder,
        recipe: Recipe,
        stepper: Stepper,
        ranks: Ranks,
        stopping: Stopping | None = None,
    ) -> None:
        self.ranks = ranks
        self.saved = -1
        self._run, self._recipe, self._stepper, self._stopping = run, recipe, stepper, stopping
        self._first = ranks.rank == 0
        keep = recipe.training.keep_checkpoints
        self._saver = Saver(lambda checkpoint: run.save(checkpoint, keep=keep))
        self._began = self._last = time.monotonic()
        self._earlier = 0.0
        self._newest: Checkpoint | None = None  # without its state

    def begin(self, *, resume: bool) -> int:
        """Take up the newest checkpoint, or write that of step 0; return the steps done.

        Raises:
            TrainingError: if the folder cannot be used, or another rank does not see what the first wrote.
        """
        found = self._run.start(self._recipe, resume=resume) if self._first else None
        self.ranks.wait()  # reading what is large takes its time
        (step,) = self.ranks.vote(-1 if found is None else found.step)
        if step >= 0:
            self._newest = self._take_up(found, step)._replace(state={})
            self._earlier = self._newest.seconds
            return step
        self.save(0)
        self.wait()  # a disk that cannot hold it shows now, not after an epoch
        self.ranks.wait()
        if not self._run.holds(0):
            raise TrainingError(
                f'rank {self.ranks.rank} finds no checkpoint in "{self._run.path}"; expected --out on a file '
                "system that all nodes share"
            )
        return 0

    def save(self, step: int) -> None:
        """Begin to write the state after `step`, unless it is written already."""
        self._last = time.monotonic()
        if self.saved == step:
            return
        state = self._stepper.state()
        if self._stopping is not None:
            state["stopping"] = self._stopping.state()
        checkpoint = Checkpoint(step, self.seconds(), state, time.time())
        self._newest = checkpoint._replace(state={})
        if self._first:
            self._saver.save(checkpoint)
        self.saved = step

    def _take_up(self, found: Checkpoint | None, step: int) -> Checkpoint:
        """Put the checkpoint of `step`, which the first rank has `found`, into the live objects."""
        checkpoint = found or self._run.load(step)
        assert checkpoint is not None
        try:
            self._stepper.load_state(checkpoint.state)
            if self._stopping is not None:
                self._stopping.load_state(checkpoint.state["stopping"])
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            if is_out_of_memory(error):
                raise
            problem = str(TrainingError(str(error)))[:200] or type(error).__name__  # cut where it is one line
            raise TrainingError(
                f'the checkpoint of step {step} in "{self._run.path}" does not fit this recipe: {problem}'
            ) from None
        self.saved = step
        self.ranks.wait()
        return checkpoint

    def late(self) -> bool:
        """Whether the recipe's time between checkpoints is over."""
        minutes = self._recipe.training.checkpoint_minutes
        return minutes is not None and time.monotonic() - self._last >= 60 * minutes

    def seconds(self) -> float:
        """Return the training time so far, interruptions left out."""
        return self._earlier + time.monotonic() - self._began

    def ended(self, step: int) -> tuple[float, float]:
        """Return the training time up to the last `step`, and when that was, in seconds since 1970.

        Both are the checkpoint's, if there is one of this step: a finished run that is taken up again, to be
        measured, has the same.
        """
        newest = self._newest
        if newest is not None and newest.step == step:
            return newest.seconds, newest.written
        return self.seconds(), time.time()

    def check(self) -> None:
        """Raise the error of a write that has failed meanwhile; never waits. One rank may call it alone."""
        self._saver.check()

    def wait(self) -> None:
        """Wait until everything is on disk. One rank may call it alone."""
        self._saver.wait()

    def kept(self, step: int | None = None) -> str:
        """Say which state is on disk, once what is being written is; `step` is the one it should be of.

        One rank may call it alone.
        """
        if self.saved < 0:
            return "no state is saved yet"
        self.wait()
        which = "" if self.saved == step else f" after step {self.saved}"
        return f'the state{which} is saved in "{self._run.path}"'

    def log(self, row: Mapping[str, float]) -> None:
        """Append a row to the metrics."""
        if self._first:
            self._run.log(row)

    def log_classes(self, row: Mapping[str, Any]) -> None:
        """Append a row to what is recorded of the classes."""
        if self._first:
            self._run.log_classes(row)

    def note_unreadable(self, names: Sequence[str]) -> None:
        """Keep the names of unreadable images."""
        if self._first:
            self._run.note_unreadable(names)

    def __enter__(self) -> Keeper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._saver.close()


class Saver:
    """Writes one checkpoint at a time in a thread: the training waits for a copy in memory, not for the disk.

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
