"""Evaluation mode for a while.

Apart from `batchnorm`, which imports timm: timm imports `zoo.backbones`, and that needs this.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode inside the block, and restore the mode of each of its parts.

    `train(True)` alone would unfreeze BatchNorm layers that are kept in evaluation mode.
    """
    modes = [(part, part.training) for part in module.modules()]
    try:
        module.eval()
        yield
    finally:
        for part, training in modes:  # parents come first, so a child of another mode has the last word
            if part.training != training:
                part.train(training)  # not the flag alone: what a class does there, it undoes
