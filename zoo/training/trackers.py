"""TensorBoard, Weights & Biases and Trackio beside metrics.jsonl, each by its own few calls.

Where they write and whether they are online is decided by their environment variables (WANDB_MODE,
WANDB_PROJECT, TRACKIO_PROJECT, ...). A tracker that fails is warned of and left out; training goes on.
"""

from __future__ import annotations

import importlib.util
import math
import os
import uuid
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from zoo.errors import TrainingError, ZooWarning, first_line
from zoo.recipe import Recipe

PROJECT = "contrastive-zoo"
"""Where the runs are, unless WANDB_PROJECT or TRACKIO_PROJECT says otherwise."""


class Tracker(Protocol):
    """A run that a tracker shows."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take in the values after a step."""

    def show(self, step: int, name: str, picture: Path) -> None:
        """Take in a PNG file."""

    def close(self) -> None:
        """End for now; the run may go on later."""


class TensorBoard:
    """Event files in `run/tensorboard`, by torch's own writer; readers forget rows that come again."""

    def __init__(self, recipe: Recipe, folder: Path, run_id: str, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else None)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def show(self, step: int, name: str, picture: Path) -> None:
        import numpy as np
        from PIL import Image

        with Image.open(picture, formats=["PNG"]) as image:
            self._writer.add_image(name, np.asarray(image.convert("RGB")), step, dataformats="HWC")

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """A run of Weights & Biases, found again by its id."""

    def __init__(self, recipe: Recipe, folder: Path, run_id: str, step: int) -> None:
        import wandb

        self._image: Any = wandb.Image
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=os.environ.get("WANDB_NAME", recipe.name),
            id=run_id,
            dir=os.environ.get("WANDB_DIR", str(folder)),
            config=recipe.model_dump(mode="json"),
            allow_val_change=True,  # how it is computed may change when it goes on
            resume="allow",
            reinit="create_new",  # beside a run of the program that calls zoo
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def show(self, step: int, name: str, picture: Path) -> None:
        self._run.log({name: self._image(str(picture))}, step=step)

    def close(self) -> None:
        self._run.finish()


class Trackio(Wandb):
    """A run of Trackio, found again by its name; it is called as wandb is."""

    def __init__(self, recipe: Recipe, folder: Path, run_id: str, step: int) -> None:
        import trackio

        self._image = trackio.Image
        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", PROJECT),
            name=f"{recipe.name}-{run_id}",
            config=recipe.model_dump(mode="json"),
            resume="allow",
            embed=False,
        )


TRACKERS: Mapping[str, type[TensorBoard | Wandb]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "trackio": Trackio,
}
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
    """The trackers of one run; `run/tracker_id` is by what a resumed run is found again.

    Args:
        recipe: names the trackers.
        folder: of the run; exists.
        step: the run goes on after it.
    """

    def __init__(self, recipe: Recipe, folder: Path, step: int) -> None:
        self._open: dict[str, Tracker] = {}
        names = dict.fromkeys(recipe.training.trackers)
        if not names:
            return
        id_file = folder / "tracker_id"
        if not id_file.is_file():
            id_file.write_text(uuid.uuid4().hex[:8])
        for name in names:
            try:
                self._open[name] = TRACKERS[name](recipe, folder, id_file.read_text().strip(), step)
            except Exception as error:  # whatever a library of others raises
                _warn(name, error)

    def log(self, row: Mapping[str, float | int | None]) -> None:
        """Send a row of metrics.jsonl."""
        self._send(int(row["step"] or 0), {name: row[name] for name in row if name != "step"})

    def results(self, entries: Sequence[Mapping[str, Any]], pictures: Mapping[str, Path], step: int) -> None:
        """Send the evaluations of a release as `evaluation/PROTOCOL/METRIC`, and its pictures."""
        values = {
            f"evaluation/{entry['protocol']}/{name}": value
            for entry in reversed(entries)  # of two entries of a protocol the first one stands
            for name, value in entry["metrics"].items()
        }
        self._send(step, values, {f"pictures/{name}": file for name, file in pictures.items()})

    def close(self) -> None:
        """End for now."""
        for name, tracker in self._open.items():
            try:
                tracker.close()
            except Exception as error:
                _warn(name, error)

    def _send(self, step: int, values: Mapping[str, Any], pictures: Mapping[str, Path] = {}) -> None:
        finite = {
            name: value
            for name, value in values.items()
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        }
        for name, tracker in [*self._open.items()]:
            try:
                if finite:
                    tracker.log(step, finite)
                for title, file in pictures.items():
                    tracker.show(step, title, file)
            except Exception as error:
                del self._open[name]
                _warn(name, error)


def _warn(name: str, error: Exception) -> None:
    warnings.warn(
        f"training.trackers: {name} has failed and gets nothing more: {first_line(error)[:300]}. The "
        "training goes on; metrics.jsonl has every row",
        ZooWarning,
        stacklevel=2,
    )
