"""Means of metrics over an interval of steps, fetched from the device once per interval."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from zoo.objectives import Output


class Meter:
    """Collects each step's detached scalars and averages them when asked."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Tensor]] = []
        self._images = 0
        self._began = time.monotonic()

    def add(self, output: Output, images: int) -> None:
        """Take in one step's loss and metrics; no value is read back to the host."""
        self._rows.append({"loss": output.loss.detach(), **output.metrics})
        self._images += images

    def flush(self) -> dict[str, float]:
        """Return means over the steps since the last call, with `images_per_second`, and begin anew.

        A metric that is NaN on some steps (the negatives' scores before there is a negative) is averaged
        over the others; the loss is not, so that one bad step shows.
        """
        means: dict[str, Tensor] = {}
        for name in sorted({name for row in self._rows for name in row}):
            values = torch.stack([row[name].float() for row in self._rows if name in row])
            means[name] = values.mean() if name == "loss" else values.nanmean()
        fetched = dict(zip(means, torch.stack(list(means.values())).tolist(), strict=True)) if means else {}
        now = time.monotonic()
        speed = self._images / max(now - self._began, 1e-9)
        self._rows, self._images, self._began = [], 0, now
        return {"images_per_second": speed, **fetched}
