"""Started as ranks in tests/test_ranks.py: they meet twice, and rank 0 lets go of the first store late."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from typing import Any

from zoo import rendezvous
from zoo.launch import rank
from zoo.training.distributed import join

meet, kept = rendezvous.rendezvous, list[Any]()


def keeping(*arguments: Any, **options: Any) -> Iterator[Any]:
    for found in meet(*arguments, **options):
        kept.append(found[0])
        yield found


rendezvous.rendezvous = keeping
with join("cpu"):
    pass
if rank() == 0:
    time.sleep(2)  # the other has come back by then, to the store that there is
    kept.clear()
    gc.collect()
with join("cpu") as ranks:
    sys.stdout.write(f"rank {ranks.rank} met again\n")
