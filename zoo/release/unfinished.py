"""A folder whose release is still to come: of a training that runs, or was stopped.

Knows the names of a run's files alone: `zoo.training`, which writes them, is above, and torch need not read
a checkpoint to say how far it is.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from zoo.config import is_number, load_yaml
from zoo.errors import ZooError
from zoo.files import is_dir, is_file, names_in, read_text

_RUN, _RECIPE, _METRICS, _CHECKPOINTS = "run", "recipe.yaml", "metrics.jsonl", "checkpoints"
_STAGES = "stages.json"  # of a method with several trainings, which have folders of their own
_CHECKPOINT = re.compile(r"step-(\d{9,18})\.pt")
_LARGEST_RECIPE = 1 << 18  # bytes, as `load_yaml` takes them
_END = 1 << 14  # bytes of a file of rows that hold its last ones


def unfinished(folder: Path) -> str:
    """Say that a folder without a release has a training's state, how far it is, what to do; '' for none.

    The folder may be that of the release to come, or the run's own.
    """
    run = next((each for each in (folder / _RUN, folder) if _is_run(each)), None)
    if run is None:
        return ""
    recipe = _recipe(run)
    name = recipe.get("name")
    of = f" of {name}" if isinstance(name, str) else ""
    if is_file(run / _STAGES):
        return (
            f"no release yet, but an unfinished training{of}, in stages. If it was stopped, the same command "
            "with --resume continues it"
        )
    return (
        f"no release yet, but an unfinished training{of}, {_reached(run, recipe)}. If it was stopped, the "
        f'same command with --resume continues it; "zoo diagnose {folder}" shows what it has learned so far, '
        f'and "zoo snapshot {folder}" makes a release of that'
    )


def _is_run(folder: Path) -> bool:
    left = (folder / _METRICS, folder / _STAGES)
    return is_file(folder / _RECIPE) and (is_dir(folder / _CHECKPOINTS) or any(map(is_file, left)))


def _recipe(run: Path) -> dict[str, Any]:
    file = run / _RECIPE
    try:
        found = load_yaml(read_text(file, _LARGEST_RECIPE), str(file))
    except (OSError, ValueError, ZooError):
        return {}
    return found if isinstance(found, dict) else {}


def _reached(run: Path, recipe: dict[str, Any]) -> str:
    """Say after which step the newest checkpoint was written, and of how many, where the rows tell that."""
    names = (_CHECKPOINT.fullmatch(name) for name in names_in(run / _CHECKPOINTS))
    saved = max((int(name[1]) for name in names if name), default=None)
    if saved is None:
        return "of which nothing is saved yet"
    section = recipe.get("training")
    epochs = section.get("epochs") if isinstance(section, dict) else None
    row = _last_row(run / _METRICS)
    step, epoch = row.get("step"), row.get("epoch")
    if not (is_number(epochs) and is_number(step) and is_number(epoch) and step > 0 and epoch > 0):
        return f"saved after step {saved:,}"
    return f"saved after step {saved:,} of {round(step / epoch * epochs):,}"


def _last_row(file: Path) -> dict[str, Any]:
    """Return the last whole row of a file of JSON lines, which may be long; nothing where there is none."""
    try:
        with file.open("rb") as rows:
            rows.seek(max(0, file.stat().st_size - _END))
            end = rows.read(_END).splitlines()
    except OSError:
        return {}
    for line in reversed(end):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):  # cut off by a crash, or by the beginning of what was read
            continue
        if isinstance(row, dict):
            return row
    return {}
