"""Connects the processes that torchrun has started, and says so when one of them is lost."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from zoo.errors import RanksLost, TrainingError, first_line, processes
from zoo.modules.ranks import ALONE, Ranks

TIMEOUT_VARIABLE = "ZOO_RANK_TIMEOUT"  # in seconds, 600: a step, its data included, takes less
# gloo and NCCL report lost ranks as RuntimeErrors like any other
_LOST = re.compile(r"connection|timed? ?out|broken pipe|socket|remote process|aborted|pair closure", re.I)
_store: Store | None = None
_joined = 0


@contextmanager
def join(device: str) -> Iterator[Ranks]:
    """Join the processes that torchrun has started, for as long as the block lasts.

    On "cuda" each process of a node takes the GPU of its number there. TrainingError when they cannot meet,
    RanksLost when another one ended, or did not answer in time.
    """
    rank, size = processes()
    if size == 1:
        yield ALONE
        return
    seconds = float(os.environ.get(TIMEOUT_VARIABLE, "600"))
    try:
        timeout = timedelta(seconds=seconds)
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        if device == "cuda":
            torch.cuda.set_device(local_rank)
        _connect(device, timeout)
        ranks = Ranks(rank, size, local_rank=local_rank, device=device, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        raise TrainingError(f"the {size} ranks cannot meet: {first_line(error)}") from None
    try:
        yield ranks
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or _LOST.search(str(error))):
            raise
        raise RanksLost(
            f"rank {ranks.rank} of {ranks.size} lost the others ({first_line(error)}): one ended, or did not "
            f"answer within {seconds:g} s ({TIMEOUT_VARIABLE}). --resume goes on from the last checkpoint"
        ) from None
    else:
        dist.destroy_process_group()


def _connect(device: str, timeout: timedelta) -> None:
    """Make the process group under a prefix of its own: the store has addresses of processes now gone."""
    global _store, _joined  # noqa: PLW0603  # a process meets the others in one store, as long as it lives
    if _store is None:
        _store, _, _ = next(rendezvous("env://", timeout=timeout))
        _store.set_timeout(timeout)
    _joined += 1
    store = PrefixStore(f"zoo/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{_joined}", _store)
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    rank, size = processes()
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)


def data_parallel(module: nn.Module, device: torch.device) -> DistributedDataParallel:
    """Wrap a module so that gradients are averaged over the ranks during the backward pass."""
    known = inspect.signature(DistributedDataParallel).parameters
    keep = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"  # renamed
    return DistributedDataParallel(
        module,
        **{keep: False},  # type: ignore[arg-type]  # buffers are equal already
        gradient_as_bucket_view=True,
        # without, buckets are filled anew after the first step, so that a resumed run would add in
        # another order than one that never stopped: a CPU's results are promised to be the same bits
        find_unused_parameters=device.type == "cpu",
    )
