"""The processes that train one model together, as each of them sees them.

`torchrun` starts them and torch.distributed connects them (`zoo.training.distributed`). Every rank has the
same number of rows of a batch. With one process every method is the identity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

WAIT = timedelta(days=7)  # for what one rank does while the others wait: decoding, measuring

_T = TypeVar("_T")

# torch 2.14 has renamed both, and warns of the names that earlier ones have alone
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Ranks:
    """One of `size` processes, each with its rows of every batch, in rank order.

    Attributes:
        rank: number of this process, from 0.
        size: how many there are.
        alone: whether there is no other rank.
        generator: for draws that have to be the same on all ranks, made for the whole batch; None with one
            rank, whose default generator it is then.
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        *,
        local_rank: int = 0,
        device: str = "cpu",
        timeout: timedelta | None = None,
    ) -> None:
        self.rank, self.size, self.alone = rank, size, size == 1
        self.generator: torch.Generator | None = None
        self._local_rank = local_rank
        self._host: Any = None
        self._patient: Any = None
        if size > 1:
            self.generator = torch.Generator(device)
            # also beside NCCL: what the host decides is no GPU's. It would wait for half an hour by default
            self._host = dist.new_group(backend="gloo", timeout=timeout)
            # a barrier's own timeout holds on rank 0 alone: the others wait as long as their group does
            self._patient = dist.new_group(backend="gloo", timeout=WAIT)

    def __deepcopy__(self, memo: dict[int, Any]) -> Ranks:
        """Return itself: the copy of a module is in the same process."""
        return self

    def gather(self, rows: Tensor) -> Tensor:
        """Return the rows of all ranks `[N, ...]`, given this one's `[n, ...]` of any type.

        Differentiable: a rank's rows get the sum of the gradients that all ranks have for them.
        """
        return rows if self.alone else _Gather.apply(rows, self)

    def others(self, rows: Tensor) -> Tensor:
        """Return the rows of the other ranks `[N - n, ...]`; differentiable as `gather` is."""
        if self.alone:
            return rows[:0]
        everyones, n = self.gather(rows), len(rows)
        return torch.cat([everyones[: n * self.rank], everyones[n * (self.rank + 1) :]])

    @torch.no_grad()
    def average_(self, tensors: Sequence[Tensor]) -> None:
        """Replace float tensors by their means over the ranks, in place."""
        if self.alone or not tensors:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(flat)
        flat /= self.size
        means = torch.split(flat, [tensor.numel() for tensor in tensors])
        for tensor, mean in zip(tensors, means, strict=True):
            tensor.copy_(mean.view_as(tensor))

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Return the sum over ranks of a tensor that has the same shape on all."""
        if not self.alone:
            tensor = tensor.clone()
            dist.all_reduce(tensor)
        return tensor

    def all_reduce_max(self, *values: int) -> tuple[int, ...]:
        """Return the largest of each value over the ranks; the host's, no GPU is waited for.

        Since all ranks get the same answer after the same step, they can act on it alike.
        """
        if self.alone:
            return values
        ballot = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(ballot, op=dist.ReduceOp.MAX, group=self._host)
        return tuple(ballot.tolist())

    def from_first(self, compute: Callable[[], _T]) -> _T:
        """Return what rank 0 computes, on all ranks; the others wait for it, however long it takes."""
        found = [compute() if self.rank == 0 else None]
        if not self.alone:
            dist.broadcast_object_list(found, src=0, group=self._patient)
        return found[0]  # type: ignore[return-value]  # every rank has it now

    def barrier(self) -> None:
        """Wait until every rank is here, however long one takes."""
        if not self.alone:
            dist.monitored_barrier(self._patient, timeout=WAIT)

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Let the first rank of each node go before its others, which find what it fetched or decoded."""
        waits = self._local_rank > 0
        if waits:
            self.barrier()
        try:
            yield
        finally:
            if not waits:
                self.barrier()


ALONE = Ranks()
"""One process."""


class _Gather(torch.autograd.Function):
    """All ranks' rows; backward, each rank's rows get the sum of what all ranks have for them."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, ranks: Ranks) -> Tensor:
        ctx.size = ranks.size
        out = rows.new_empty(ranks.size * len(rows), *rows.shape[1:])
        _all_gather(out.view(torch.uint8), rows.contiguous().view(torch.uint8))  # gloo knows few types
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        own = grad.new_empty(len(grad) // ctx.size, *grad.shape[1:])
        _reduce_scatter(own, grad.contiguous())
        return own, None
