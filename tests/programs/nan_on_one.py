"""Started by torchrun in tests/test_ranks_runs.py: `zoo`, whose loss becomes nan in step 8 on rank 1."""

from __future__ import annotations

import os

import torch

from zoo.cli import main
from zoo.data import Batch
from zoo.objectives import MoCo, Output

forward = MoCo.forward


def spoilt(self: MoCo, batch: Batch) -> Output:
    output = forward(self, batch)
    if os.environ["RANK"] == "1" and round(self.progress * 24) == 7:
        output = output._replace(loss=output.loss * torch.nan)
    return output


MoCo.forward = spoilt
main()
