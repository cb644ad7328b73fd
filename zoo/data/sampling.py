"""Epochs in which rare classes come more often than they are in the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from zoo.errors import DataError

Sampling = Literal["instance", "class_balanced", "square_root"]

Draw = Callable[[Generator], Tensor]
"""Draws the images of an epoch: their places in the data set `[N]`, int64."""

_POWER = {"class_balanced": 0.0, "square_root": 0.5}


def drawn_by(sampling: Sampling, labels: NDArray[np.int64]) -> Draw | None:
    """Return what draws an epoch of the images with `labels` `[N]`, as many as there are; None: each once.

    Drawn with replacement are a class, with the probability n_c^q / sum n^q, then one of its n_c images, each
    equally likely. `class_balanced` is q = 0, `square_root` q = 1/2. A class without images is never drawn.

    Source: Kang et al. 2020, https://arxiv.org/abs/1910.09217, equation 1.

    Raises:
        DataError: for images without labels, which are of no class that could be drawn.
    """
    if sampling == "instance":
        return None
    unlabelled = int((labels < 0).sum())
    if unlabelled:
        raise DataError(
            f"sampling: {unlabelled:,} of the {len(labels):,} training images have no label, so no class of "
            f'theirs can be drawn: found "{sampling}", expected "instance"'
        )
    size = len(labels)
    of_class = torch.from_numpy(np.argsort(labels, kind="stable"))
    _, counted = np.unique(labels, return_counts=True)
    counts = torch.from_numpy(counted)
    first = counts.cumsum(0) - counts
    upto = (counts.double() ** _POWER[sampling]).cumsum(0)

    def draw(generator: Generator) -> Tensor:
        shares = torch.rand(2, size, generator=generator, dtype=torch.float64)
        # the largest share of all may round to 1
        drawn = torch.searchsorted(upto, shares[0] * upto[-1], right=True).clamp(max=len(counts) - 1)
        member = torch.minimum((shares[1] * counts[drawn]).long(), counts[drawn] - 1)
        return of_class[first[drawn] + member]

    return draw
