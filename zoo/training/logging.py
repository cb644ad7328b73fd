"""Logging of a run: averaged metrics for metrics.jsonl, and trackers that receive the same rows."""

import os
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from zoo.errors import ZooWarning, first_line
from zoo.modules.ranks import ALONE, Ranks
from zoo.objectives import Output
from zoo.recipe import Recipe
from zoo.release.schema import LIBRARY

Row = dict[str, float]


class Metrics:
    """Collects each step's detached scalars and averages them over intervals and ranks, without waiting."""

    def __init__(self, ranks: Ranks = ALONE) -> None:
        self._ranks, self._steps, self._images = ranks, list[dict[str, Tensor]](), 0
        self._began = time.monotonic()
        # rows whose means are being copied to the host: facts, names, means, event of the copy
        self._pending: list[tuple[Row, list[str], Tensor, torch.cuda.Event | None]] = []

    def add(self, output: Output, images: int) -> None:
        """Add one step's loss and metrics, means over this rank's rows of the batch's `images`."""
        self._steps.append({"loss": output.loss.detach(), **output.metrics})
        self._images += images

    def close(self, facts: Row) -> None:
        """End the interval with a row of `facts`, `images_per_second` and the means, and start the next.

        A metric is averaged over the steps and ranks where it exists and is not NaN (a class, say, is not in
        every batch); the loss over all of them, so that one bad step shows. Without steps there is no row.
        """
        if not self._steps:
            return
        now = time.monotonic()
        row = {**facts, "images_per_second": self._images / max(now - self._began, 1e-9)}
        names = self._ranks.union({name for step in self._steps for name in step} - {"loss"})
        nothing = torch.full_like(self._steps[0]["loss"], torch.nan, dtype=torch.float32)
        # one table with a row per step: few operations, however many metrics there are
        columns = [[step.get(name, nothing).float() for name in names] for step in self._steps]
        table = torch.stack([torch.stack([nothing, *values]) for values in columns])[:, 1:]
        losses = torch.stack([step["loss"] for step in self._steps]).float()
        both = torch.cat([losses, table.nansum(dim=0), (~table.isnan()).float().sum(dim=0)])
        self._ranks.average_([both])
        losses, sums, counts = torch.split(both, [len(losses), len(names), len(names)])
        means, arrived = torch.cat([losses.mean()[None], sums / counts]), None
        if means.device.type == "cuda":
            means = torch.empty_like(means, device="cpu", pin_memory=True).copy_(means, non_blocking=True)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
        self._pending.append((row, ["loss", *names], means, arrived))
        self._steps, self._images, self._began = [], 0, now

    def rows(self, *, wait: bool) -> list[Row]:
        """Return the rows that have arrived since the last call, oldest first; with `wait`, all."""
        rows = []
        while self._pending:
            facts, names, means, arrived = self._pending[0]
            if arrived is not None and not arrived.query():  # type: ignore[no-untyped-call]
                if not wait:
                    break
                arrived.synchronize()
            del self._pending[0]
            rows.append({**facts, **dict(zip(names, means.tolist(), strict=True))})
        return rows


# a tracker's functions: log the values of a step; close
Run = tuple[Callable[[int, Mapping[str, float]], object], Callable[[], object]]


def open_tracker(name: str, recipe: Recipe, folder: Path, run_id: str, step: int) -> Run:
    """Open a run of tensorboard, wandb or trackio, or continue the one with this id after `step`."""
    config = recipe.model_dump(mode="json")
    if name == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else None)
        return lambda at, values: [writer.add_scalar(key, values[key], at) for key in values], writer.close
    if name == "wandb":
        import wandb

        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", LIBRARY),
            name=os.environ.get("WANDB_NAME", recipe.name),
            id=run_id,
            dir=os.environ.get("WANDB_DIR", str(folder)),
            config=config,
            allow_val_change=True,  # hardware may change on resume
            resume="allow",
            reinit="create_new",  # the program that calls zoo may have a run of its own
        )
    else:
        import trackio

        project, name = os.environ.get("TRACKIO_PROJECT", LIBRARY), f"{recipe.name}-{run_id}"
        run = trackio.init(project, name=name, config=config, resume="allow", embed=False)
    return lambda at, values: run.log(dict(values), step=at), run.finish


class Trackers:
    """The trackers of one run, resumed by `tracker_id`; one that fails is dropped with a warning."""

    def __init__(self, recipe: Recipe, folder: Path, step: int) -> None:
        self._open = dict[str, Run]()
        id_file = folder / "tracker_id"
        if recipe.training.trackers and not id_file.is_file():
            id_file.write_text(uuid.uuid4().hex[:8])
        for name in recipe.training.trackers:
            with self._left_out_on_error(name):
                self._open[name] = open_tracker(name, recipe, folder, id_file.read_text(), step)

    def log(self, row: Mapping[str, float | None]) -> None:
        """Send a row of metrics.jsonl, without `step` and missing values."""
        values = {name: value for name, value in row.items() if value is not None and name != "step"}
        for name, (log, _) in [*self._open.items()]:
            with self._left_out_on_error(name):
                log(int(row["step"] or 0), values)

    def close(self) -> None:
        """Close the trackers; a resumed run may open them again."""
        for name, (_, close) in [*self._open.items()]:
            with self._left_out_on_error(name):
                close()

    @contextmanager
    def _left_out_on_error(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever another library raises
            self._open.pop(name, None)
            message = f"training.trackers: {name} failed and is left out: {first_line(error)[:300]}"
            warnings.warn(message, ZooWarning, stacklevel=3)
