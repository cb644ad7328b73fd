"""What a run logs: means of a step's metrics for metrics.jsonl, and the trackers that show the same rows."""

from __future__ import annotations

import importlib.util
import math
import os
import time
import uuid
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zoo.errors import TrainingError, ZooWarning, first_line
from zoo.objectives import Output
from zoo.ranks import ALONE, Ranks
from zoo.recipe import Recipe

Row = dict[str, float]


class _Pending(NamedTuple):
    """A row whose means are on their way to the host."""

    facts: Row
    first_step: float
    names: tuple[str, ...]
    means: Tensor
    arrived: torch.cuda.Event | None


class Metrics:
    """Collects each step's detached scalars and averages them over intervals and ranks, without waiting.

    Args:
        ranks: all close their intervals after the same steps.
    """

    def __init__(self, ranks: Ranks = ALONE) -> None:
        self._ranks = ranks
        self._steps: list[dict[str, Tensor]] = []
        self._images = 0
        self._began = time.monotonic()
        self._pending: list[_Pending] = []

    def add(self, output: Output, images: int) -> None:
        """Take in one step's loss and metrics, means over this rank's rows of its `images`."""
        self._steps.append({"loss": output.loss.detach(), **output.metrics})
        self._images += images

    def close(self, facts: Row) -> None:
        """End the interval: a row of `facts`, `images_per_second` and the means is to come; begin anew.

        A metric is averaged over the steps and ranks that have it and where it is not NaN (a class, say, is
        not in every batch); the loss over all, so that one bad step shows. No steps give no row.
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
        self._pending.append(_Pending(row, first, ("loss", *names), means, arrived))

    def rows(self, *, wait: bool) -> list[Row]:
        """Return the rows that have arrived since the last call, oldest first; with `wait`, all.

        One whose loss is not finite also has `first_bad_step`.
        """
        rows = []
        while self._pending:
            facts, first, names, means, arrived = self._pending[0]
            if arrived is not None and not arrived.query():  # type: ignore[no-untyped-call]
                if not wait:
                    break
                arrived.synchronize()
            del self._pending[0]
            loss, finite, *others = means.tolist()
            row = {**facts, **dict(zip(names, [loss, *others], strict=True))}
            if not math.isfinite(loss):
                row["first_bad_step"] = first + finite
            rows.append(row)
        return rows


PROJECT = "contrastive-zoo"
"""Where the runs are, unless WANDB_PROJECT or TRACKIO_PROJECT says otherwise."""


class Tracker(NamedTuple):
    """A run that a tracker shows: `log(step, values)` adds to it, `close()` ends it for now."""

    log: Callable[[int, Mapping[str, float]], object]
    close: Callable[[], object]


def _tensorboard(recipe: Recipe, folder: Path, run_id: str, step: int) -> Tracker:
    """Write event files into `run/tensorboard`; readers forget rows that come again."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else None)

    def log(step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return Tracker(log, writer.close)


def _wandb(recipe: Recipe, folder: Path, run_id: str, step: int) -> Tracker:
    """Open a run of Weights & Biases, found again by its id; WANDB_MODE=offline keeps it here."""
    import wandb

    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        name=os.environ.get("WANDB_NAME", recipe.name),
        id=run_id,
        dir=os.environ.get("WANDB_DIR", str(folder)),
        config=recipe.model_dump(mode="json"),
        allow_val_change=True,  # how it is computed may change when it goes on
        resume="allow",
        reinit="create_new",  # beside a run of the program that calls zoo
    )
    return Tracker(lambda step, values: run.log(dict(values), step=step), run.finish)


def _trackio(recipe: Recipe, folder: Path, run_id: str, step: int) -> Tracker:
    """Open a run of Trackio, found again by its name."""
    import trackio

    run = trackio.init(
        project=os.environ.get("TRACKIO_PROJECT", PROJECT),
        name=f"{recipe.name}-{run_id}",
        config=recipe.model_dump(mode="json"),
        resume="allow",
        embed=False,
    )
    return Tracker(lambda step, values: run.log(dict(values), step=step), run.finish)


TRACKERS = {"tensorboard": _tensorboard, "wandb": _wandb, "trackio": _trackio}
"""By the name in the recipe, which is that of the package."""


def require_trackers(recipe: Recipe) -> None:
    """Make sure that the packages of the recipe's trackers are installed.

    Raises:
        TrainingError: naming the package.
    """
    for name in recipe.training.trackers:
        if importlib.util.find_spec(name) is None:
            raise TrainingError(
                f'training.trackers: "{name}" needs the package {name}. Expected pip install {name}, or '
                "training.trackers without it; metrics.jsonl is written in any case"
            )


class Trackers:
    """The trackers of one run; one that fails is warned of and left out, and training goes on.

    Args:
        recipe: names the trackers.
        folder: of the run; `tracker_id` in it lets a resumed run be found again.
        step: the run goes on after it.
    """

    def __init__(self, recipe: Recipe, folder: Path, step: int) -> None:
        self._open: dict[str, Tracker] = {}
        id_file = folder / "tracker_id"
        if recipe.training.trackers and not id_file.is_file():
            id_file.write_text(uuid.uuid4().hex[:8])
        for name in recipe.training.trackers:
            try:
                self._open[name] = TRACKERS[name](recipe, folder, id_file.read_text().strip(), step)
            except Exception as error:  # whatever another library raises
                self._leave_out(name, error)

    def log(self, row: Mapping[str, float | None]) -> None:
        """Send a row of metrics.jsonl, without `step` and what is not known."""
        values = {name: value for name, value in row.items() if value is not None and name != "step"}
        self._call("log", int(row["step"] or 0), values)

    def close(self) -> None:
        """End for now; the runs may go on later."""
        self._call("close")

    def _call(self, method: str, *arguments: Any) -> None:
        for name, tracker in [*self._open.items()]:
            try:
                getattr(tracker, method)(*arguments)
            except Exception as error:
                self._leave_out(name, error)

    def _leave_out(self, name: str, error: Exception) -> None:
        self._open.pop(name, None)
        warnings.warn(
            f"training.trackers: {name} has failed and gets nothing more: {first_line(error)[:300]}. The "
            "training goes on; metrics.jsonl has every row",
            ZooWarning,
            stacklevel=2,
        )
