"""The process group of the ranks that torchrun starts, and clear errors when a rank is lost."""

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

from zoo.errors import RanksLost, TrainingError, first_line, rank_and_size
from zoo.modules.ranks import ALONE, Ranks

TIMEOUT_VARIABLE = "ZOO_RANK_TIMEOUT"  # in seconds, by default 600: a step takes less, data loading included
# gloo and NCCL report lost ranks as RuntimeErrors like any other
_LOST = re.compile(r"connection|timed? ?out|broken pipe|socket|remote process|aborted|pair closure", re.I)


@contextmanager
def join(device: str) -> Iterator[Ranks]:
    """Join the processes that torchrun started, for the duration of the block.

    On "cuda" each process uses the GPU of its local rank. TrainingError if the processes cannot connect,
    RanksLost if another one ended or did not answer in time.
    """
    rank, size = rank_and_size()
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
        atexit.unregister(dist.destroy_process_group)  # could wait for lost ranks
        lost = isinstance(error, RuntimeError) and _LOST.search(str(error))
        if not (lost or isinstance(error, dist.DistError)):
            raise
        raise RanksLost(
            f"rank {ranks.rank} of {ranks.size} lost the others ({first_line(error)}): one ended, or did not "
            f"answer within {seconds:g} s ({TIMEOUT_VARIABLE}). --resume goes on from the last checkpoint"
        ) from None


def _connect(rank: int, size: int, timeout: timedelta) -> None:
    """Create the process group for all trainings of this process; gloo serves tensors on the CPU."""
    store, _, _ = next(rendezvous("env://", timeout=timeout))
    # torchrun's static rendezvous reuses the store, which still has addresses of ended processes
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
        # otherwise buckets are rebuilt after the first step, and a resumed run would sum gradients in
        # another order than an uninterrupted one; on a CPU results must be bit for bit the same
        find_unused_parameters=device.type == "cpu",
    )
