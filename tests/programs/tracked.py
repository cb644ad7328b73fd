"""A short training with every tracker, which may be killed: `python -m tests.programs.tracked OUT [STEP]`."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import zoo
from zoo.training import RunFolder

CHANGES = (
    "training.epochs=3",
    "schedule.warmup_epochs=1",
    "training.device=cpu",
    "training.threads=1",
    "training.log_every=2",
    "training.checkpoint_every=1",
    "evaluation=[{protocol: classifier}, {protocol: knn, k: 5}]",
    "training.trackers=[tensorboard,wandb,trackio]",
)


def wait_for_trackers(step: int) -> None:
    """Wait for what the trackers write in threads and processes of their own; Trackio says how far it is."""
    database = Path(os.environ["TRACKIO_DIR"], "contrastive-zoo.db")
    for _ in range(300):
        time.sleep(1)
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(database)) as open_:
            if (open_.execute("select max(step) from metrics").fetchone()[0] or 0) >= step:
                break
    time.sleep(4)  # the other two flush each second


if __name__ == "__main__":
    out, last = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None
    log = RunFolder.log

    def log_then_die(run: RunFolder, row: Any) -> None:
        log(run, row)
        if row["step"] == last:
            wait_for_trackers(row["step"])
            os.kill(os.getpid(), signal.SIGKILL)

    RunFolder.log = log_then_die
    zoo.pretrain("cifar_resnet20.paco_digits_lt50", out=out, resume=True, overrides=CHANGES)
