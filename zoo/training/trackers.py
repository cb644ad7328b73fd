"""TensorBoard, Weights & Biases and Trackio: what each is told of a run, in its own terms.

What none of them is told here is where to write, or whether to be online: their environment variables decide
(WANDB_MODE, WANDB_DIR, WANDB_PROJECT, TRACKIO_DIR, TRACKIO_PROJECT, ...). Each module is imported when it is
used; each of the classes is one run, whose methods are called one after another.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FLUSH = "x_transaction_log_flush_interval"  # of wandb, from 0.31 on
PROJECT = "contrastive-zoo"
"""Where the runs are, unless WANDB_PROJECT or TRACKIO_PROJECT says otherwise."""

# In a process of its own, which has no terminal to ask at: wandb settles its mode for good when it is first
# asked, and what it reads (variables, two settings files, netrc) is its own affair.
_LOGIN = """
import sys, wandb
try:
    wandb.login(verify=False)
except Exception as error:
    sys.exit(" ".join(str(error).split())[:300])
"""
_LOGIN_SECONDS = 60.0


@dataclass(frozen=True)
class About:
    """What a tracker is told of a run when it begins or goes on.

    Attributes:
        name: the recipe's.
        id: tells this run from others of the recipe; the same when it goes on.
        folder: of the run.
        recipe: as plain values, which the tracker keeps as the run's configuration.
        text: the recipe as YAML.
        step: the run goes on after it; 0 at the beginning.
    """

    name: str
    id: str
    folder: Path
    recipe: Mapping[str, Any]
    text: str
    step: int


class Tracker:
    """A run that a tracker shows.

    Attributes:
        can_drop: whether rows that it has can be taken back; if not, they must not be sent again.
        keeps_late: whether it keeps a step's values only when those of a later step come, or at the end.
    """

    can_drop = False
    keeps_late = False

    def __init__(self, about: About) -> None:
        """Begin the run, or go on with it."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take in the values after a step."""
        raise NotImplementedError

    def results(self, step: int, values: Mapping[str, float], pictures: Mapping[str, Path]) -> None:
        """Take in what was measured and drawn at the end."""
        raise NotImplementedError

    def drop_after(self, step: int) -> None:
        """Forget what came after a step, where that can be."""

    def flush(self) -> None:
        """Write what it holds back, where that is not out soon by itself."""

    def close(self) -> None:
        """End for now; the run may go on later."""
        raise NotImplementedError


class TensorBoard(Tracker):
    """Event files in `run/tensorboard`, by torch's own writer."""

    can_drop = True

    def __init__(self, about: About) -> None:
        self._folder = about.folder / "tensorboard"
        begun = self._folder.exists()
        self._open(about.step + 1 if begun else None)
        if not begun:
            indented = "\n".join(f"    {line}" for line in about.text.splitlines())  # Markdown's code
            self._writer.add_text("recipe", indented, 0)

    def _open(self, purge_step: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # readers forget what earlier files have from `purge_step` on
        self._writer = SummaryWriter(str(self._folder), purge_step=purge_step, flush_secs=10)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def results(self, step: int, values: Mapping[str, float], pictures: Mapping[str, Path]) -> None:
        self.log(step, values)
        for name, file in pictures.items():
            self._writer.add_image(f"pictures/{name}", _pixels(file), step, dataformats="HWC")

    def drop_after(self, step: int) -> None:
        self.close()
        self._open(step + 1)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _WithRun(Tracker):
    """wandb's and Trackio's: rows go to a run, which passes them on at once or within half a second."""

    _run: Any

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class Wandb(_WithRun):
    """A run of Weights & Biases; offline its files lie in `run/wandb`, unless WANDB_DIR says otherwise."""

    keeps_late = True

    def __init__(self, about: About) -> None:
        import wandb

        if (lack := wandb_lacks()) is not None:  # it would ask at the terminal, from this thread
            raise RuntimeError(lack)
        self._wandb = wandb
        settings: dict[str, Any] = {}
        if "WANDB_CONSOLE" not in os.environ:
            settings["console"] = "off"  # what zoo prints is no log
        if _FLUSH in wandb.Settings.model_fields:
            settings[_FLUSH] = 1.0  # seconds; of the default 15 a killed process takes all rows with it
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=os.environ.get("WANDB_NAME", about.name),
            id=about.id,
            dir=os.environ.get("WANDB_DIR", str(about.folder)),
            config=dict(about.recipe),
            allow_val_change=True,  # how it is computed may change when it goes on
            resume="allow",
            reinit="create_new",  # beside a run of the program that calls zoo
            settings=settings,
        )

    def results(self, step: int, values: Mapping[str, float], pictures: Mapping[str, Path]) -> None:
        self._run.summary.update(dict(values))
        images = {f"pictures/{name}": self._wandb.Image(str(file)) for name, file in pictures.items()}
        if images:
            self._run.log(images, step=step)


class Trackio(_WithRun):
    """A run of Trackio, in its own local database unless its environment variables say otherwise."""

    def __init__(self, about: About) -> None:
        import trackio

        self._trackio = trackio
        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", PROJECT),
            name=f"{about.name}-{about.id}",  # by its name it is found again
            config=dict(about.recipe),
            resume="allow",
            embed=False,
        )

    def results(self, step: int, values: Mapping[str, float], pictures: Mapping[str, Path]) -> None:
        images = {f"pictures/{name}": self._trackio.Image(str(file)) for name, file in pictures.items()}
        self._run.log({**values, **images}, step=step)


TRACKERS: Mapping[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "trackio": Trackio,
}
"""By the name of the recipe, of the package and of the extra that brings it."""


def wandb_lacks() -> str | None:
    """Say why wandb could not begin a run without asking, e.g. that no API key is known; None if it could.

    Nothing is sent to its server, so a key may still be refused.
    """
    if os.environ.get("WANDB_MODE") in ("offline", "dryrun", "disabled"):
        return None
    if getattr(sys.modules.get("wandb"), "run", None) is not None:
        return None  # the program that calls zoo has one already
    try:
        tried = subprocess.run(
            [sys.executable, "-P", "-c", _LOGIN],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LOGIN_SECONDS,
            env=os.environ | {"WANDB_SILENT": "true"},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"wandb.login() has not ended after {_LOGIN_SECONDS:g} s"
    if tried.returncode == 0:
        return None
    said = tried.stderr.strip().splitlines() or [f"wandb.login() ended with status {tried.returncode}"]
    return said[-1].strip()


def _pixels(file: Path) -> Any:
    import numpy as np
    from PIL import Image

    with Image.open(file) as image:
        return np.asarray(image.convert("RGB"))
