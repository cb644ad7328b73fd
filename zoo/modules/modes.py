"""Evaluation mode for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode inside the block; each of its parts has its own mode again after.

    `train(True)` alone would wake the BatchNorm layers that somebody froze.
    """
    modes = [(part, part.training) for part in module.modules()]
    try:
        module.eval()
        yield
    finally:
        for part, training in modes:  # parents come first, so a child of another mode has the last word
            if part.training != training:
                part.train(training)  # not the flag alone: what a class does there, it undoes
