"""A whole training step as one CUDA graph: what a small network costs is launching its kernels."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from zoo import cuda_graph
from zoo.cuda_graph import Replay
from zoo.data import Batch
from zoo.errors import RecipeError, TrainingError
from zoo.modules import Dial
from zoo.objectives import Objective, Output
from zoo.training.optim import FUSED

T = TypeVar("T")
Advance = Callable[[Batch], Output]

WARM_UP = 3
"""Ordinary steps before a capture: they make the optimizer's state and choose kernels."""


class Aside(Protocol):
    """Runs functions on a stream of their own."""

    def __call__(self, function: Callable[[], T]) -> T:
        """Return what the function returns, safe to use on the caller's stream."""


class GraphedStep:
    """Calls `advance` for the first steps, then captures it once and replays that.

    Replaying repeats what was captured with other contents in the same memory: so a batch is copied to where
    the captured one was, and whatever is no tensor must be as it was then. `Objective.constants` says what
    that is; when it changes (FT begins, say) the step is captured anew. Smaller batches than the largest seen
    are not captured.

    Args:
        advance: does a step; touches nothing but tensors on the device and `objective`'s constants.
        objective: whose step it is.
        optimizer: must be able to step without reading from the device.
        capture: records a function without running it, and returns what replays it; for tests.
        aside: runs a function on a stream of its own; for tests.

    Raises:
        RecipeError: if optimizer or objective cannot be captured.
    """

    def __init__(
        self,
        advance: Advance,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        *,
        capture: Callable[[Callable[[], None]], Replay] | None = None,
        aside: Aside | None = None,
    ) -> None:
        if type(optimizer) not in FUSED:
            raise RecipeError(
                f"training.cuda_graph: optimizer {type(optimizer).__name__} cannot be captured; expected "
                "SGD, Adam or AdamW (optimizer.name sgd, momentum, adam or adamw), or cuda_graph: false"
            )
        if objective.constants() is None:
            raise RecipeError(
                f'training.cuda_graph: objective "{objective.config.name}" cannot be captured; set false'
            )
        for group in optimizer.param_groups:
            if "capturable" in group:
                group["capturable"] = True
                # else torch warns of the ordinary steps, and advises to set it false
                optimizer._warned_capturable_if_run_uncaptured = True
        self._dials = [each for each in objective.modules() if isinstance(each, Dial)]
        for dial in self._dials:
            dial.lie_on(next(objective.parameters()).device)
        self._advance = advance
        self._objective = objective
        self._optimizer = optimizer
        self._capture = capture or cuda_graph.capture
        self._aside = aside or _Aside()
        self._judges = True
        self._shapes: list[torch.Size] | None = None
        self._images = 0
        self._constants: Hashable = None
        self._ordinary = WARM_UP
        self._changes = 0
        self._replay: Replay | None = None
        self._batch: Batch | None = None
        self._names: tuple[str, ...] = ()
        self._metrics: Tensor | None = None

    def __call__(self, batch: Batch) -> Output:
        """Do a step on `batch`; the output has no carry once replayed."""
        self._turn()
        shapes = [tensor.shape for tensor in _tensors(batch)]
        larger = shapes != self._shapes and len(batch.index) > self._images
        if larger:  # a run may go on with the small last batch of an epoch
            self._shapes, self._images = shapes, len(batch.index)
        elif shapes != self._shapes:
            return self.ordinary(batch)
        constants = self._objective.constants()
        if larger or constants != self._constants:
            self._change(constants)
        if self._ordinary > 0:
            self._ordinary -= 1
            return self.ordinary(batch)
        if self._replay is None:
            self._changes = 0
            self._replay = self._captured(batch)
        assert self._batch is not None
        for place, tensor in zip(_tensors(self._batch), _tensors(batch), strict=True):
            place.copy_(tensor, non_blocking=True)
        self._replay()
        assert self._metrics is not None
        loss, *metrics = self._metrics.clone().unbind()  # the next replay overwrites them
        return Output(loss, dict(zip(self._names, metrics, strict=True)))

    def ordinary(self, batch: Batch) -> Output:
        """Do a step on `batch` without a graph."""
        self._turn()
        return self._aside(lambda: self._advance(batch))

    def _turn(self) -> None:
        for dial in self._dials:
            dial.turn(self._objective.progress)

    def beside(self) -> GraphedStep:
        """Return another one, for the rarer steps of the same training that do something more.

        It has a graph and memory of its own, and the same stream for what is not captured. How often the
        constants change is for this one to judge, which sees more of the steps.
        """
        other = GraphedStep(
            self._advance, self._objective, self._optimizer, capture=self._capture, aside=self._aside
        )
        other._judges = False
        return other

    def forget(self) -> None:
        """Capture anew: tensors that the step reads have come to lie elsewhere."""
        self._replay, self._ordinary, self._changes = None, WARM_UP, 0

    def _change(self, constants: Hashable) -> None:
        self._changes += 1
        if self._changes > WARM_UP and self._judges:
            raise RecipeError(
                f'training.cuda_graph: objective "{self._objective.config.name}" changes its constants with '
                f"every step (now {constants}); expected such numbers on the device "
                "(zoo.modules.Dial), or cuda_graph: false"
            )
        self._constants, self._replay, self._ordinary = constants, None, WARM_UP

    def _captured(self, batch: Batch) -> Replay:
        clone = [tensor.clone() for tensor in _tensors(batch)]
        views = len(batch.views)
        self._batch = Batch(tuple(clone[:views]), *clone[views:])

        def record() -> None:
            assert self._batch is not None
            output = self._advance(self._batch)
            self._names = tuple(output.metrics)
            scalars = [output.loss.detach(), *output.metrics.values()]
            self._metrics = torch.stack([scalar.float() for scalar in scalars])

        with cuda_graph.capturing("the step", TrainingError):
            return self._aside(lambda: self._capture(record))  # where the ordinary steps were done


def _tensors(batch: Batch) -> list[Tensor]:
    rest: list[Any] = [batch.labels, batch.index, batch.candidates]
    return [*batch.views, *(tensor for tensor in rest if tensor is not None)]


class _Aside:
    """Runs functions on a side stream: gradients that accumulate on the default one could never be captured.

    It is always the same: memory freed on one stream is not used again on another.
    """

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, function: Callable[[], T]) -> T:
        self._stream = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        main, side = torch.cuda.current_stream(), self._stream
        side.wait_stream(main)
        with torch.cuda.stream(side):
            output = function()
        main.wait_stream(side)
        return output
