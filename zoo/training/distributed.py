"""Connects the processes that torchrun has started, and says so when one of them is lost."""

import atexit
import inspect
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from zoo.errors import RanksLost, TrainingError, first_line, processes
from zoo.modules.ranks import ALONE, Ranks

TIMEOUT_VARIABLE = "ZOO_RANK_TIMEOUT"  # in seconds, 600: a step, its data included, takes less
# gloo and NCCL report lost ranks as RuntimeErrors like any other
_LOST = re.compile(r"connection|timed? ?out|broken pipe|socket|remote process|aborted|pair closure", re.I)


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
        if device == "cuda":
            torch.cuda.set_device(dist.get_node_local_rank(fallback_rank=0))
        if not dist.is_initialized():
            _connect(rank, size, timedelta(seconds=seconds))
        ranks = Ranks(rank, size, device)
    except (RuntimeError, ValueError) as error:
        raise TrainingError(f"the {size} ranks cannot meet: {first_line(error)}") from None
    try:
        yield ranks
    except BaseException as error:
        atexit.unregister(dist.destroy_process_group)  # it may wait for ranks that are lost
        lost = isinstance(error, RuntimeError) and _LOST.search(str(error))
        if not (lost or isinstance(error, dist.DistError)):
            raise
        raise RanksLost(
            f"rank {ranks.rank} of {ranks.size} lost the others ({first_line(error)}): one ended, or did not "
            f"answer within {seconds:g} s ({TIMEOUT_VARIABLE}). --resume goes on from the last checkpoint"
        ) from None


def _connect(rank: int, size: int, timeout: timedelta) -> None:
    """Make the process group of all trainings of this process, with gloo for what is on the CPU."""
    store, _, _ = next(rendezvous("env://", timeout=timeout))
    # torchrun's static rendezvous keeps the store, with addresses of processes that are gone
    store = PrefixStore(f"zoo/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    atexit.register(dist.destroy_process_group)


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
