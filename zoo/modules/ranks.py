"""The ranks that train one model together, from the point of view of one of them.

`torchrun` starts them and torch.distributed connects them (`zoo.training.distributed`). Every rank has the
same number of rows of a batch. With a single process every method is the identity.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

_T = TypeVar("_T")


class Ranks:
    """One of `size` processes, each with its rows of every batch, in rank order.

    Attributes:
        rank: number of this process, from 0.
        size: the world size.
        alone: whether there is no other rank.
        generator: for draws that must be the same on all ranks, made for the whole batch; None with a single
            rank, which uses the default generator.
    """

    def __init__(self, rank: int = 0, size: int = 1, device: str = "cpu") -> None:
        self.rank, self.size, self.alone = rank, size, size == 1
        self.generator = None if self.alone else torch.Generator(device)
        # for work of one rank while the others wait: decoding, evaluation
        self._patient: Any = None if self.alone else dist.new_group(backend="gloo", timeout=timedelta(days=7))

    def gather(self, rows: Tensor) -> Tensor:
        """Return the rows of all ranks `[N, ...]`, given this rank's `[n, ...]` of any dtype.

        Differentiable: a rank's rows receive the sum of all ranks' gradients.
        """
        return rows if self.alone else _Gather.apply(rows, self)

    def gather_others(self, rows: Tensor) -> Tensor:
        """Return the rows of the other ranks `[N - n, ...]`; differentiable like `gather`."""
        everyones, start = self.gather(rows), self.rank * len(rows)
        return torch.cat([everyones[:start], everyones[start + len(rows) :]])

    @torch.no_grad()
    def average_(self, tensors: Sequence[Tensor]) -> None:
        """Replace float tensors by their means over the ranks, in place."""
        if self.alone or not tensors:
            return
        means = self.all_reduce(torch.cat([tensor.flatten() for tensor in tensors])) / self.size
        parts = torch.split(means, [tensor.numel() for tensor in tensors])
        for tensor, mean in zip(tensors, parts, strict=True):
            tensor.copy_(mean.view_as(tensor))

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Return the sum over ranks of a tensor that has the same shape on all."""
        if not self.alone:
            tensor = tensor.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(tensor)
        return tensor

    def all_reduce_max(self, *values: int) -> tuple[int, ...]:
        """Return the maximum of each value over the ranks, on the hosts, without waiting for a GPU.

        Since all ranks get the same result after the same step, they can act on it alike.
        """
        if self.alone:
            return values
        ballot = torch.tensor(values)  # on the CPU, for which gloo is used even beside NCCL
        dist.all_reduce(ballot, op=dist.ReduceOp.MAX)
        return tuple(ballot.tolist())

    def union(self, names: Iterable[str]) -> list[str]:
        """Return the names that any rank has, sorted; on the hosts, without waiting for a GPU."""
        found: list[Any] = [[*names]] * self.size
        if not self.alone:
            dist.all_gather_object(found, found[0])  # on the CPU, like a ballot
        return sorted({name for each in found for name in each})

    def broadcast_from_first(self, compute: Callable[[], _T]) -> _T:
        """Return rank 0's result of `compute` on all ranks; the others wait for it as long as it takes."""
        found = [compute() if self.rank == 0 else None]
        if not self.alone:
            dist.broadcast_object_list(found, src=0, group=self._patient)
        return found[0]  # type: ignore[return-value]  # every rank has it now

    def barrier(self) -> None:
        """Wait for all ranks, as long as it takes."""
        if not self.alone:
            dist.barrier(self._patient)

    @contextmanager
    def first_rank_first(self) -> Iterator[None]:
        """Run the block on each node's first rank first; the others find what it fetched or decoded."""
        first = dist.get_node_local_rank(fallback_rank=0) == 0
        if not first:
            self.barrier()
        try:
            yield
        finally:
            if first:
                self.barrier()


ALONE = Ranks()  # a single process


class _Gather(torch.autograd.Function):
    """All ranks' rows; in the backward pass each rank's rows get the sum of all ranks' gradients.

    torch's own `torch.distributed.nn.functional.all_gather` is deprecated, and its replacement is private.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks, rows = ranks, rows.contiguous()
        parts = [torch.empty_like(rows) for _ in range(ranks.size)]
        # as bytes: gloo does not support every dtype in every version
        dist.all_gather([part.view(torch.uint8) for part in parts], rows.view(torch.uint8))
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.ranks.all_reduce(grad).chunk(ctx.ranks.size)[ctx.ranks.rank], None
