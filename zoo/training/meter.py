"""Means of metrics over an interval of steps, fetched from the device without waiting for it."""

from __future__ import annotations

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
        self._steps: list[dict[str, Tensor]] = []
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
        values = {"loss": output.loss.detach(), **output.metrics}
        if not self._ranks.alone:  # so that the mean over ranks is the mean over images
            values = {name: value * (rows * self._ranks.size / total) for name, value in values.items()}
        self._steps.append(values)
        self._images += total

    def close(self, facts: Row) -> None:
        """End the interval: a row of `facts`, `images_per_second` and the means is to come; begin anew.

        A metric that is NaN on some steps (the negatives' scores before there is a negative) is averaged
        over the others; the loss is not, so that one bad step shows. An interval without a step gives no row.
        """
        if not self._steps:
            return
        now = time.monotonic()
        row = {**facts, "images_per_second": self._images / max(now - self._began, 1e-9)}
        means: dict[str, Tensor] = {}
        for name in sorted({name for step in self._steps for name in step}):
            values = torch.stack([step[name].float() for step in self._steps if name in step])
            means[name] = values.mean() if name == "loss" else values.nanmean()
        self._steps, self._images, self._began = [], 0, now
        together = torch.stack(list(means.values()))
        self._ranks.average_([together])
        arrived = None
        if together.device.type == "cuda":
            together = torch.empty_like(together, device="cpu", pin_memory=True).copy_(
                together, non_blocking=True
            )
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
        self._underway.append(_Underway(row, tuple(means), together, arrived))

    def rows(self, *, wait: bool) -> list[Row]:
        """Return the rows that have arrived since the last call, oldest first; with `wait`, all."""
        rows = []
        while self._underway:
            facts, names, means, arrived = self._underway[0]
            if arrived is not None and not arrived.query():  # type: ignore[no-untyped-call]
                if not wait:
                    break
                arrived.synchronize()
            self._underway.popleft()
            rows.append({**facts, **dict(zip(names, means.tolist(), strict=True))})
        return rows
