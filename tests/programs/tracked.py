"""A short training with every tracker, which may be killed: `python -m tests.programs.tracked OUT [STEP]`."""

from __future__ import annotations

import os
import signal
import sys
import time
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

if __name__ == "__main__":
    out, last = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None
    log = RunFolder.log

    def log_then_die(run: RunFolder, row: Any) -> None:
        log(run, row)
        if row["step"] == last:
            time.sleep(6)  # the trackers write in threads and processes of their own
            os.kill(os.getpid(), signal.SIGKILL)

    RunFolder.log = log_then_die
    zoo.pretrain("cifar_resnet20.paco_digits_lt50", out=out, resume=True, overrides=CHANGES)
