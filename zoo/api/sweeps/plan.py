"""What a sweep writes down of the runs that it plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zoo.api.facts import start_facts
from zoo.api.sweeps.grid import Run
from zoo.api.tables.release_results import group_of
from zoo.errors import ZooError
from zoo.training import Recipe


def written_plan(command: str, runs: Sequence[Run], images: Mapping[str, str]) -> dict[str, Any]:
    """Return what a sweep writes down of its runs: by each one's folder, what training it is."""
    return {"command": command, "runs": [run.id for run in runs], "planned": trainings(runs, images)}


def trainings(runs: Sequence[Run], images: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return what each run's training is, by its folder in the sweep's.

    Args:
        runs: of the sweep.
        images: SHA-256 of the training images by run, as far as they are known.

    Returns:
        By run name, seed, group and the images' hash.
    """
    starts: dict[str, str | None] = {}
    return {
        run.id: {
            "name": run.recipe.name,
            "seed": run.seed,
            "group": _group(run.recipe, starts),
            "train_sha256": images.get(run.id),
        }
        for run in runs
    }


def _group(recipe: Recipe, starts: dict[str, str | None]) -> str:
    """Return the group that the finished run will have."""
    init = recipe.model_dump_json(include={"init"})
    if init not in starts:
        try:
            starts[init] = start_facts(recipe).get("init_weights_sha256")
        except ZooError:  # the training says it
            starts[init] = None
    return group_of(recipe.model_dump(mode="json"), starts[init])
