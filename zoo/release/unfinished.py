"""What to say of a folder that has no release yet: of a training that runs, or was stopped.

Knows the names of a run's files alone: `zoo.training`, which writes them, is above.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from zoo.config import is_number, load_yaml
from zoo.errors import ZooError
from zoo.files import is_dir, is_file, read_text

_RECIPE, _METRICS, _CHECKPOINTS = "recipe.yaml", "metrics.jsonl", "checkpoints"
_STAGES = "stages.json"  # of a method with several trainings, which have folders of their own
_LARGEST = 1 << 26  # bytes of the file of rows


def unfinished(folder: Path) -> str:
    """Say that a folder without a release has a training's state, how far it is, what to do; '' for none.

    The folder may be that of the release to come, or the run's own.
    """
    run = next((each for each in (folder / "run", folder) if _is_run(each)), None)
    if run is None:
        return ""
    recipe: dict[str, Any] = {}
    row: dict[str, Any] = {}
    with suppress(OSError, ValueError, ZooError, TypeError):  # then less is said
        recipe = dict(load_yaml(read_text(run / _RECIPE, _LARGEST), _RECIPE))
        row = dict(json.loads(read_text(run / _METRICS, _LARGEST).splitlines()[-1]))
    of = f" of {recipe['name']}" if isinstance(recipe.get("name"), str) else ""
    step = f", recorded up to step {row['step']:,}" if is_number(row.get("step")) else ""
    more = f'; "zoo snapshot {folder}" makes a release of what it has learned so far'
    return (
        f"no release yet, but an unfinished training{of}{step}. If it was stopped, the same command with "
        f"--resume continues it{'' if is_file(run / _STAGES) else more}"
    )


def _is_run(folder: Path) -> bool:
    begun = is_dir(folder / _CHECKPOINTS) or is_file(folder / _METRICS) or is_file(folder / _STAGES)
    return is_file(folder / _RECIPE) and begun
