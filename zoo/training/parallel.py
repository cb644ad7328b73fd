"""How the ranks' gradients become one: replicas that average them (DDP), or shards of one model (FSDP2).

A rank's loss is weighted by its share of the batch, so that the mean over ranks is the whole batch's loss.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from zoo.data import Batch
from zoo.errors import RecipeError
from zoo.objectives import Objective, Output
from zoo.ranks import Ranks
from zoo.training.nested import map_tensors


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


class Sharded:
    """Every rank has a part of each parameter, gradient and optimizer state, and gathers what it needs.

    The unit that is gathered is a block of the encoder (of its moving average, too); the rest is one unit.

    Source: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html.
    """

    def __init__(self, objective: Objective, ranks: Ranks) -> None:
        scalars = [name for name, parameter in objective.named_parameters() if parameter.ndim == 0]
        if scalars:
            raise RecipeError(
                f'training.shard: true with a learned temperature ("{scalars[0]}"), which cannot be spread '
                "over ranks; expected false, or a fixed or scheduled one"
            )
        device = next(objective.parameters()).device
        mesh = init_device_mesh(device.type, (ranks.size,))
        for block in blocks(objective):
            fully_shard(block, mesh=mesh)
        self._model = fully_shard(objective, mesh=mesh)
        self.forward: Callable[[Batch], Output] = objective

    @contextmanager
    def sending(self, last: bool) -> Iterator[None]:
        """See `Parallel`."""
        assert isinstance(self._model, FSDPModule)
        self._model.set_requires_gradient_sync(last)
        yield


def distributed(objective: Objective, ranks: Ranks, *, shard: bool) -> Parallel:
    """Make `objective`, equal on all ranks, one model that they train together.

    Raises:
        RecipeError: for what cannot be sharded.
    """
    if ranks.alone:
        return Single(objective)
    return Sharded(objective, ranks) if shard else Replicated(objective)


def blocks(module: nn.Module) -> list[nn.Module]:
    """Return the blocks that networks are stacked of, inner ones first: what lies in a list or a sequence."""
    containers = [each for each in module.modules() if isinstance(each, (nn.Sequential, nn.ModuleList))]
    found = [
        child
        for container in containers
        for child in container
        if not isinstance(child, nn.ModuleList)
        and len([each for each in child.modules() if each._parameters]) > 1
    ]
    return list(dict.fromkeys(reversed(found)))


def whole(state: Any) -> Any:
    """Return a nested state with every shard put together again, on the host; all ranks have to call it."""
    return map_tensors(state, _whole)


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor().cpu() if isinstance(tensor, DTensor) else tensor


def with_shards(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return `state`, whole tensors, cut as those of the same name in `own` are."""
    return {name: _as_sharded(value, own.get(name)) for name, value in state.items()}


def optimizer_with_shards(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Return an optimizer's state, whole tensors, cut as its parameters are."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    cut = {
        number: {
            key: _as_sharded(value, parameters[number]) if isinstance(value, Tensor) and value.ndim else value
            for key, value in values.items()
        }
        for number, values in state["state"].items()
    }
    return {**state, "state": cut}


def _as_sharded(value: Tensor, like: Tensor | None) -> Tensor:
    if not isinstance(like, DTensor):
        return value
    here = value.to(like.device, like.dtype)
    return distribute_tensor(here, like.device_mesh, like.placements, src_data_rank=None)
