"""Started by torchrun in tests/test_ranks.py: rank 0 comes later to a wait than a step may take."""

from __future__ import annotations

import os
import time

from zoo.training.distributed import join

with join("cpu") as ranks:
    if ranks.rank == 0:
        time.sleep(1.5 * float(os.environ["ZOO_RANK_TIMEOUT"]))
    ranks.barrier()
    print("still here", flush=True)
