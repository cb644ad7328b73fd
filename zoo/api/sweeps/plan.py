"""What a sweep writes down of the runs that it plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zoo.api.facts import origin_facts
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
    weights: dict[str, dict[str, Any]] = {}
    return {
        run.id: {
            "name": run.recipe.name,
            "seed": run.seed,
            "group": _group(run.recipe, weights),
            "train_sha256": images.get(run.id),
        }
        for run in runs
    }


def _group(recipe: Recipe, weights: dict[str, dict[str, Any]]) -> str:
    """Return the group that the finished run will have."""
    sources = recipe.model_dump_json(include={"init": True, "objective": {"distill"}})
    if sources not in weights:
        try:
            weights[sources] = origin_facts(recipe)
        except ZooError:  # the training says it
            weights[sources] = {}
    return group_of(recipe.model_dump(mode="json"), weights[sources])
