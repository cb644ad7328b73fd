"""Many trainings, shared by one or several processes: each takes the next that nobody has."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from zoo.api.pretraining import pretrain
from zoo.api.sweep_folder import FAILED, PLAN
from zoo.api.sweeps.estimate import Pace
from zoo.api.sweeps.grid import Run
from zoo.data.embedded import folder_for
from zoo.errors import Interrupted, InUse, TrainingError, ZooError
from zoo.files import exists, is_dir, read_object, write_text
from zoo.launch import job, local_rank
from zoo.release.format import holds_release
from zoo.training.disk import writing
from zoo.training.lock import is_held, turn
from zoo.training.progress import say

LOCK = ".lock"

_TRIES = 3


def begin(out: Path, plan: Mapping[str, Any], *, resume: bool) -> None:
    """Write down in `out` what is going to be done there.

    Raises:
        TrainingError: if it holds something and `resume` is off, unless a process of the same start of
            torchrun, or of the same array job, has begun it; if an earlier plan's runs lie there that `plan`
            leaves out, since its record would take the place of theirs; if it cannot be written.
    """
    if exists(out) and not is_dir(out):
        raise TrainingError(f'"{out}" is no folder; choose another --out')
    with turn(out / LOCK):
        there = [path for path in out.iterdir() if path.name != LOCK]
        earlier = read_object(out / PLAN)
        begun = earlier.get("job")
        if there and not resume and (begun is None or begun != job()):
            raise TrainingError(
                f'"{out}" is not an empty folder; go on with a sweep by --resume, as does each process '
                f"that shares its runs, or choose another --out{_whose(earlier)}"
            )
        _require_all(out, earlier, plan)
        with writing(f'"{out / PLAN}"', out):
            write_text(out / PLAN, json.dumps({"format": 1, "job": job(), **plan}, indent=2) + "\n")


def _whose(earlier: Mapping[str, Any]) -> str:
    command = earlier.get("command")
    return f". It has the sweep begun by: {command}" if isinstance(command, str) else ""


def _require_all(out: Path, earlier: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
    """Refuse a plan that leaves out runs of an earlier one that lie in `out`."""
    before = earlier.get("runs")
    names = [name for name in before if isinstance(name, str)] if isinstance(before, list) else []
    there = [name for name in names if name not in plan.get("runs", ()) and is_dir(out / name)]
    if there:
        named = f"{', '.join(there[:3])}{', ...' if len(there) > 3 else ''}"
        raise TrainingError(
            f'"{out}" holds {len(there)} run{"s" if len(there) > 1 else ""} of the sweep begun there that '
            f"this one leaves out: {named}; expected all of its "
            f"values and seeds, and any others besides. It was begun by: {earlier.get('command')}. Give "
            "those as well, choose another --out, or remove the runs' folders first"
        )


def take_gpu() -> None:
    """Compute on the GPU with this process's number; where there are fewer, several share one."""
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank() % torch.cuda.device_count())


def is_finished(run: Run) -> bool:
    """Whether its release is there."""
    return holds_release(run.folder)


def train_all(
    runs: Sequence[Run],
    data: str | Path | None,
    words: Callable[[Run], str],
    pace: Pace,
    who: str = "",
) -> bool:
    """Train, one after another, what nobody has trained or is training.

    A run that fails is noted, with the reason, and the others go on. What failed before this process began
    is tried again.

    Args:
        runs: all of them.
        data: folder of the data, for the recipes that read one.
        words: names a run for people.
        pace: says after each run what is to be expected of the rest.
        who: names this process where there are several.

    Returns:
        Whether nothing is left; False where other processes are still training some.

    Raises:
        Interrupted: on a signal.
    """
    earlier = {run.folder: read_object(run.folder / FAILED).get("id") for run in runs}
    tries = dict.fromkeys((run.folder for run in runs), 0)

    def is_open(run: Run) -> bool:
        failure = read_object(run.folder / FAILED).get("id")
        return not is_finished(run) and (failure is None or failure == earlier[run.folder])

    while True:
        free = (r for r in runs if is_open(r) and tries[r.folder] < _TRIES and not is_held(r.folder / "run"))
        run = next(free, None)
        if run is None:
            return not any(is_open(each) for each in runs)
        say(f"{who}{runs.index(run) + 1} of {len(runs)}: {words(run)}, seed {run.seed}")
        try:
            (run.folder / FAILED).unlink(missing_ok=True)
            pace.start()
            root = folder_for(run.recipe.data, data)
            pretrain(run.recipe, out=run.folder, data=root, resume=True)
            for text in pace.done(run, len(finished(runs)), sum(map(is_open, runs))):
                say(f"{who}{text}")
        except InUse:  # another process was faster
            say(f"{who}{words(run)}, seed {run.seed}: another process is training it")
            tries[run.folder] += 1
            time.sleep(0.2)
        except Interrupted:
            raise
        except ZooError as error:
            if is_finished(run):  # another process was faster by the whole run
                continue
            say(f"{who}{words(run)}, seed {run.seed} failed: {error}")
            note = {"id": uuid.uuid4().hex, "reason": str(error)}
            with writing(f'"{run.folder / FAILED}"', run.folder):
                write_text(run.folder / FAILED, json.dumps(note) + "\n")


def finished(runs: Iterable[Run]) -> list[Run]:
    """Return those whose releases are there."""
    return [run for run in runs if is_finished(run)]
