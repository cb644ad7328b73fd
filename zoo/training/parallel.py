"""How the ranks' gradients become one: replicas that average them (DDP).

A rank's loss is weighted by its share of the batch, so that the mean over ranks is the whole batch's loss.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from torch.nn.parallel import DistributedDataParallel

from zoo.data import Batch
from zoo.objectives import Objective, Output
from zoo.ranks import Ranks


class Parallel(Protocol):
    """What the step needs of the way in which ranks share the work."""

    forward: Callable[[Batch], Output]
    """The objective's, which makes its backward pass send gradients."""

    def sending(self, last: bool) -> AbstractContextManager[object]:
        """Open a context for one part of the batch; gradients travel with the last one."""


class Single:
    """One rank: nothing travels."""

    def __init__(self, objective: Objective) -> None:
        self.forward: Callable[[Batch], Output] = objective

    def sending(self, last: bool) -> AbstractContextManager[object]:
        """See `Parallel`."""
        return nullcontext()


class Replicated:
    """Every rank has the whole model; gradients are averaged while the backward pass runs."""

    def __init__(self, objective: Objective) -> None:
        on_cpu = all(parameter.device.type == "cpu" for parameter in objective.parameters())
        sync = inspect.signature(DistributedDataParallel).parameters
        keep = "forward_sync_buffers" if "forward_sync_buffers" in sync else "broadcast_buffers"
        self._model = DistributedDataParallel(
            objective,
            **{keep: False},  # type: ignore[arg-type]  # buffers are equal already; torch has renamed it
            gradient_as_bucket_view=True,
            # without, buckets are filled anew after the first step, so that a resumed run would add in
            # another order than one that never stopped: a CPU's results are promised to be the same bits
            find_unused_parameters=on_cpu,
        )
        self.forward: Callable[[Batch], Output] = self._model

    def sending(self, last: bool) -> AbstractContextManager[object]:
        """See `Parallel`."""
        return nullcontext() if last else self._model.no_sync()


def distributed(objective: Objective, ranks: Ranks) -> Parallel:
    """Make `objective`, equal on all ranks, one model that they train together."""
    return Single(objective) if ranks.alone else Replicated(objective)
