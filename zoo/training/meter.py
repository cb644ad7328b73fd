"""Means of metrics over an interval of steps, fetched from the device without waiting for it."""

from __future__ import annotations

import math
import time
from collections import deque
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


class Meter:
    """Collects each step's detached scalars and averages them over intervals, and over ranks.

    Args:
        ranks: all close their intervals after the same steps.
    """

    def __init__(self, ranks: Ranks = ALONE) -> None:
        self._ranks = ranks
        self._steps: list[tuple[float, dict[str, Tensor]]] = []
        self._images = 0
        self._began = time.monotonic()
        self._underway: deque[_Underway] = deque()

    def add(self, output: Output, rows: int, total: int) -> None:
        """Take in one step's loss and metrics; no value is read back to the host.

        Args:
            output: means over this rank's images.
            rows: how many these are.
            total: images of all ranks.
        """
        # so that the mean over ranks is the mean over images
        weight = 1.0 if self._ranks.alone else rows * self._ranks.size / total
        self._steps.append((weight, {"loss": output.loss.detach(), **output.metrics}))
        self._images += total

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
        names = tuple(sorted({name for _, step in self._steps for name in step} - {"loss"}))
        nothing = torch.full_like(self._steps[0][1]["loss"], torch.nan, dtype=torch.float32)
        losses, table, found = list[Tensor](), list[Tensor](), list[Tensor]()
        for weight, step in self._steps:
            losses.append(step["loss"] * weight)
            # a row of the table for each step: few operations, however many metrics there are
            row_of_step = torch.stack([nothing, *(step.get(name, nothing).float() for name in names)])
            found.append(~row_of_step.isnan() * weight)
            table.append(row_of_step * weight)
        self._steps, self._images, self._began = [], 0, now
        each = torch.stack(losses).float()
        sums, counts = torch.stack(table).nansum(dim=0), torch.stack(found).sum(dim=0)
        both = torch.cat([each, sums[1:], counts[1:]])
        self._ranks.average_([both])
        each, sums, counts = torch.split(both, [len(each), len(names), len(names)])
        finite = each.isfinite().cumprod(dim=0).sum()  # steps before the first loss that is not
        together = torch.cat([torch.stack([each.mean(), finite.float()]), sums / counts])
        arrived = None
        if together.device.type == "cuda":
            together = torch.empty_like(together, device="cpu", pin_memory=True).copy_(
                together, non_blocking=True
            )
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
        self._underway.append(_Underway(row, first, ("loss", *names), together, arrived))

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
            self._underway.popleft()
            loss, finite, *others = means.tolist()
            row = {**facts, **dict(zip(names, [loss, *others], strict=True))}
            if not math.isfinite(loss):
                row["first_bad_step"] = first + finite
            rows.append(row)
        return rows
