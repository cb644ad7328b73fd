"""Means of a step's scalars over an interval of steps, fetched from the device without waiting for it."""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import torch
from torch import Tensor

from zoo.objectives import Output
from zoo.ranks import ALONE, Ranks

Row = dict[str, float]


class _Underway(NamedTuple):
    """A row whose means are on their way to the host."""

    facts: Row
    first_step: float
    names: tuple[str, ...]
    means: Tensor
    arrived: torch.cuda.Event | None


class Metrics:
    """Collects each step's detached scalars and averages them over intervals, and over ranks.

    Args:
        ranks: all close their intervals after the same steps.
    """

    def __init__(self, ranks: Ranks = ALONE) -> None:
        self._ranks = ranks
        self._steps: list[dict[str, Tensor]] = []
        self._images = 0
        self._began = time.monotonic()
        self._underway: list[_Underway] = []

    def add(self, output: Output, images: int) -> None:
        """Take in one step's loss and metrics, means over this rank's images; no value is read back.

        Args:
            output: of the step.
            images: of all ranks.
        """
        self._steps.append({"loss": output.loss.detach(), **output.metrics})
        self._images += images

    def close(self, facts: Row) -> None:
        """End the interval: a row of `facts`, `images_per_second` and the means is to come; begin anew.

        A metric that is NaN on some steps or ranks (the negatives' scores before there is a negative, what is
        of a class that is not in the batch), or that some steps do not have, is averaged over the others; the
        loss is not, so that one bad step shows. An interval without a step gives no row.
        """
        if not self._steps:
            return
        now = time.monotonic()
        first = facts["step"] - len(self._steps) + 1
        row = {**facts, "images_per_second": self._images / max(now - self._began, 1e-9)}
        names = tuple(sorted({name for step in self._steps for name in step} - {"loss"}))
        nothing = torch.full_like(self._steps[0]["loss"], torch.nan, dtype=torch.float32)
        # a row of the table for each step: few operations, however many metrics there are
        table = torch.stack(
            [
                torch.stack([nothing, *(step.get(name, nothing).float() for name in names)])
                for step in self._steps
            ]
        )
        losses = torch.stack([step["loss"] for step in self._steps]).float()
        self._steps, self._images, self._began = [], 0, now
        both = torch.cat([losses, table.nansum(dim=0)[1:], (~table.isnan()).float().sum(dim=0)[1:]])
        self._ranks.average_([both])
        losses, sums, counts = torch.split(both, [len(losses), len(names), len(names)])
        finite = losses.isfinite().cumprod(dim=0).sum()  # steps before the first loss that is not
        means = torch.cat([torch.stack([losses.mean(), finite.float()]), sums / counts])
        arrived = None
        if means.device.type == "cuda":
            means = torch.empty_like(means, device="cpu", pin_memory=True).copy_(means, non_blocking=True)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
        self._underway.append(_Underway(row, first, ("loss", *names), means, arrived))

    def rows(self, *, wait: bool) -> list[Row]:
        """Return the rows that have arrived since the last call, oldest first; with `wait`, all.

        One whose loss is not finite also has `first_bad_step`.
        """
        rows = []
        while self._underway:
            facts, first, names, means, arrived = self._underway[0]
            if arrived is not None and not arrived.query():  # type: ignore[no-untyped-call]
                if not wait:
                    break
                arrived.synchronize()
            del self._underway[0]
            loss, finite, *others = means.tolist()
            row = {**facts, **dict(zip(names, [loss, *others], strict=True))}
            if not math.isfinite(loss):
                row["first_bad_step"] = first + finite
            rows.append(row)
        return rows
