"""Connects the processes that torchrun has started, and says so when one of them is lost."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from zoo.errors import RanksLost, TrainingError, first_line
from zoo.launch import launched, local_rank, rank
from zoo.ranks import ALONE, Ranks

TIMEOUT_VARIABLE = "ZOO_RANK_TIMEOUT"
TIMEOUT = 600.0  # seconds; a step, its data included, takes less on every rank

_LOST = re.compile(
    r"connection (?:closed|reset|refused)|timed? ?out|broken pipe|socket|remote process|aborted|pair closure",
    re.IGNORECASE,
)
"""How gloo and NCCL say that the others are gone: their errors are RuntimeErrors like any other."""

_store: Store | None = None
_joined = 0


@contextmanager
def join(device: str) -> Iterator[Ranks]:
    """Join the processes that torchrun has started, for as long as the block lasts.

    Args:
        device: "cpu" or "cuda", of the training; each process of a node takes the GPU of its number there.

    Raises:
        RanksLost: when another rank ended, or did not answer in time.
        TrainingError: when the processes cannot meet, or are more than a node has GPUs.
    """
    if launched() == 1:
        yield ALONE
        return
    if device == "cuda":
        if (gpus := torch.cuda.device_count()) <= local_rank():
            raise TrainingError(
                f"torchrun --nproc-per-node: found more than {local_rank()} processes, expected at most "
                f"{gpus}, the GPUs of the node"
            )
        torch.cuda.set_device(local_rank())
    timeout = timedelta(seconds=float(os.environ.get(TIMEOUT_VARIABLE, TIMEOUT)))
    try:
        _connect(device, timeout)
        ranks = Ranks(rank(), launched(), local_rank=local_rank(), device=device, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        raise TrainingError(f"the {launched()} ranks cannot meet: {_reason(error)}") from None
    try:
        yield ranks
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or _LOST.search(str(error))):
            raise
        raise RanksLost(
            f"rank {ranks.rank} of {ranks.size} lost the others: one of them ended, and says why in its own "
            f"output, or did not answer within {timeout.total_seconds():g} s ({TIMEOUT_VARIABLE}). The last "
            f"checkpoint is kept: the same command with --resume goes on from it ({_reason(error)})"
        ) from None
    else:
        dist.destroy_process_group()


def _connect(device: str, timeout: timedelta) -> None:
    """Make the process group, under a prefix of its own in the launcher's store.

    torchrun's restarts, and the next training of a script, go on with the same store, where they would find
    the addresses of processes that are gone.
    """
    global _store, _joined  # noqa: PLW0603  # a process meets the others in one store, as long as it lives
    if _store is None:
        _store, _, _ = next(rendezvous("env://", timeout=timeout))
        _store.set_timeout(timeout)
    _joined += 1
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo",
        store=PrefixStore(f"zoo/{restart}/{_joined}", _store),
        rank=rank(),
        world_size=launched(),
        timeout=timeout,
    )


def _reason(error: Exception) -> str:
    return first_line(error).partition(". This is typically")[0]  # without gloo's advice
