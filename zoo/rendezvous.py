"""How the processes that torchrun has started meet, and part."""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from zoo.errors import RanksLost, TrainingError, ZooError, first_line
from zoo.launch import launched, local_rank
from zoo.ranks import ALONE, WAIT, Ranks

TIMEOUT_VARIABLE = "ZOO_RANK_TIMEOUT"
TIMEOUT = 600.0  # seconds; a step, its data included, takes less on every rank
SLACK = timedelta(seconds=60)  # longer than that

_ENDED = "ended"
"""Under which name a rank that ends by an error of the user leaves it to the others."""

_LOST = re.compile(
    r"connection (?:closed|reset|refused)|timed? ?out|broken pipe|socket|remote process|aborted|pair closure",
    re.IGNORECASE,
)
"""How gloo and NCCL say that the others are gone: their errors are RuntimeErrors like any other."""


@contextmanager
def join(device: str) -> Iterator[Ranks]:
    """Join the processes that torchrun has started, for as long as the block lasts.

    A script may have connected them already (`torch.distributed.init_process_group`): then its group is used,
    and left as it is.

    Args:
        device: "cpu" or "cuda", of the training; each process of a node takes the GPU of its number there.

    Raises:
        RanksLost: when another rank ended, or did not answer in time.
        TrainingError: when the processes cannot meet, or are more than a node has GPUs; when another rank
            ended with an error that is the user's to mend.
    """
    connected = dist.is_initialized()
    if (dist.get_world_size() if connected else launched()) == 1:
        yield ALONE
        return
    if device == "cuda" and launched() > 1:
        _take_gpu()
    timeout = _timeout()
    store = None
    try:
        if connected:
            _require_backend(device)
        else:
            store = _connect(device, timeout)
        ranks = Ranks(
            dist.get_rank(), dist.get_world_size(), local_rank=local_rank(), device=device, timeout=timeout
        )
    except (RuntimeError, ValueError) as error:
        raise TrainingError(f"the {launched()} ranks cannot meet: {_reason(error)}") from None
    who = f"rank {ranks.rank} of {ranks.size}"
    try:
        yield ranks
    except RanksLost:
        raise
    except ZooError as error:
        if store is not None:
            with suppress(RuntimeError):  # its host may be gone
                store.set(_ENDED, f"{error.exit_code} {ranks.rank} {error}")
        raise
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or _LOST.search(str(error))):
            raise
        _raise_for_ended(store, who)
        raise RanksLost(
            f"{who} lost the others: one of them ended, or did not answer within "
            f"{timeout.total_seconds():g} s ({TIMEOUT_VARIABLE}). The last checkpoint is kept: "
            f"the same command with --resume goes on from it ({_reason(error)})"
        ) from None
    else:
        if not connected:
            dist.destroy_process_group()


def _take_gpu() -> None:
    """Let this process compute on the GPU that has its number."""
    place, gpus = local_rank(), torch.cuda.device_count()
    if place >= gpus:
        raise TrainingError(
            f"torchrun --nproc-per-node: found at least {place + 1} processes on a node with {gpus} "
            f"GPU(s), expected at most {gpus}"
        )
    torch.cuda.set_device(place)


def _connect(device: str, timeout: timedelta) -> Store:
    """Connect the processes; return where they can leave each other a word, also when one has ended."""
    store, rank, size, common = _meet(timeout)
    if device == "cuda":  # NCCL ends a process without a word: the host, which waits as well, speaks first
        backend, patience = "cpu:gloo,cuda:nccl", timeout + SLACK
    else:
        backend, patience = "gloo", timeout
    prefixed = PrefixStore(common, store)
    dist.init_process_group(backend, store=prefixed, rank=rank, world_size=size, timeout=patience)
    return prefixed


def _meet(timeout: timedelta) -> tuple[Store, int, int, str]:
    """Return the store that all ranks talk through, this one's number, how many there are, and `_agreed`.

    Without torchrun's agent rank 0 has the store, and a new one for each training of a script. A rank that
    comes first may find the one of the training before, which goes away: then it looks for the new one.
    """
    lost, patience = None, timeout
    while True:
        store, rank, size = next(rendezvous("env://", timeout=patience))
        store.set_timeout(timeout)
        try:
            return store, rank, size, _agreed(store, rank, size, timeout)
        except dist.DistNetworkError:
            now = time.monotonic()
            lost, patience = lost or now, min(timeout, SLACK)
            if rank == 0 or now - lost > patience.total_seconds():
                raise
            time.sleep(0.1)


def _agreed(store: Store, rank: int, size: int, timeout: timedelta) -> str:
    """Return a name that the ranks of this start alone share.

    torchrun's restarts, and the next training of a script, go on with the store of the start before, where
    they would find the addresses of processes that are gone. So each rank says a name of its own, and rank 0
    answers each with the common one.
    """
    own = uuid.uuid4().hex
    if rank > 0:
        store.set(f"zoo/hello/{rank}", own)
        common = str(store.get(f"zoo/answer/{own}").decode())
        store.add(f"zoo/heard/{common}", 1)
        return common
    answered: set[str] = set()
    until = time.monotonic() + timeout.total_seconds()
    while store.add(f"zoo/heard/{own}", 0) < size - 1:
        for other in range(1, size):
            key = f"zoo/hello/{other}"  # of an earlier start, until the rank has said its own
            said = store.get(key).decode() if store.check([key]) else ""
            if said and said not in answered:
                store.set(f"zoo/answer/{said}", own)
                answered.add(said)
        if time.monotonic() > until:
            raise RuntimeError(f"not all of them said hello within {timeout.total_seconds():g} s")
        time.sleep(0.01)
    return own


def _require_backend(device: str) -> None:
    """Refuse a script's process group that cannot send what lies on `device`."""
    needed, found = {"cpu": "cpu:gloo", "cuda": "cuda:nccl"}[device], dist.get_backend_config()
    if needed not in found:
        raise TrainingError(
            f'torch.distributed is initialized with "{found}", expected "{needed}" for a training on the '
            f"{device} device; leave init_process_group to zoo, or give it this backend"
        )


def _raise_for_ended(store: Store | None, who: str) -> None:
    """Raise what another rank has said before it ended, if it has."""
    said = ""
    with suppress(RuntimeError):  # the store's host may be gone, too
        if store is not None and store.check([_ENDED]):
            said = store.get(_ENDED).decode()
    if said:
        code, rank, message = said.split(" ", 2)
        kind = RanksLost if int(code) == RanksLost.exit_code else TrainingError
        raise kind(f"{who} ends, since rank {rank} did: {message}") from None


def _timeout() -> timedelta:
    text = os.environ.get(TIMEOUT_VARIABLE, str(TIMEOUT))
    try:
        seconds = float(text)
        if not 0 < seconds < WAIT.total_seconds():
            raise ValueError
    except ValueError:
        raise TrainingError(
            f'the variable {TIMEOUT_VARIABLE}: found "{text}", expected seconds, e.g. {TIMEOUT:g}'
        ) from None
    return timedelta(seconds=seconds)


def _reason(error: Exception) -> str:
    return first_line(error).partition(". This is typically")[0]  # gloo's advice, and its wishes
