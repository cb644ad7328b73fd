"""What a sweep has planned, as its folder says it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from zoo.api import work_queue
from zoo.api.facts import start_facts
from zoo.api.sweeps.grid import Run
from zoo.api.tables.release_results import group_of
from zoo.errors import ZooError
from zoo.evaluation.results.rows import NOT_BEGUN, Key, Unfinished
from zoo.files import is_file
from zoo.release.format import RECIPE, holds_release
from zoo.training import Recipe

_WHERE = ("--out", "--data", "--seeds")
"""Options with which a sweep is no other one."""


class Planned(NamedTuple):
    """A run of a plan.

    Attributes:
        key: the same for a training of the same recipe and seed, wherever it is planned.
        train_sha256: of its training images; None where the plan does not say it.
        place: its folder.
        as_unfinished: what a table says of it; None where its folder is there and speaks for itself.
    """

    key: Key
    train_sha256: str | None
    place: str
    as_unfinished: Unfinished | None


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


def read_plan(folder: Path) -> list[Planned]:
    """Return the runs that the sweep of a folder has planned; none where there is no sweep."""
    plan = work_queue.read_json(folder / work_queue.PLAN)
    runs, known = plan.get("runs"), plan.get("planned")
    sweep = _sweep(str(plan.get("command", "")))
    found = []
    for run in runs if isinstance(runs, list) else []:
        if not isinstance(run, str):
            continue
        entry = known.get(run) if isinstance(known, dict) else None
        point, _, number = run.rpartition("/seed_")
        if not isinstance(entry, dict):  # plans had none at first
            entry = {"name": point, "seed": int(number) if number.isdecimal() else None}
        name, seed, group = entry.get("name"), entry.get("seed"), entry.get("group")
        if not (isinstance(name, str) and isinstance(seed, int | None) and isinstance(group, str | None)):
            continue  # damaged
        train = images_hash(entry.get("train_sha256"))
        key = (sweep, run) if group is None else (group, seed)
        state = _state(folder / run, "" if name.endswith(point) else f", {point}")
        place = str(folder / run)
        open_ = None
        if state:
            open_ = Unfinished(
                place=place, name=name, seed=seed, group=group, train_sha256=train, state=state
            )
        found.append(Planned(key, train, place, open_))
    return found


def images_hash(found: object) -> str | None:
    """Return a SHA-256 as a file of ours has it; None for anything else."""
    return found if isinstance(found, str) and re.fullmatch(r"[0-9a-f]{64}", found) else None


def _group(recipe: Recipe, starts: dict[str, str | None]) -> str:
    """Return the group that the finished run will have."""
    init = recipe.model_dump_json(include={"init"})
    if init not in starts:
        try:
            starts[init] = start_facts(recipe).get("init_weights_sha256")
        except ZooError:  # the training says it
            starts[init] = None
    return group_of(recipe.model_dump(mode="json"), starts[init])


def _state(folder: Path, words: str) -> str | None:
    why = work_queue.read_json(folder / work_queue.FAILED).get("reason")
    if why:
        return f"failed: {why}"
    begun = holds_release(folder) or is_file(folder / "run" / RECIPE)
    return None if begun else f"{NOT_BEGUN}{words}"


def _sweep(command: str) -> str:
    """Return a command line without what makes it no other sweep."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    where = {i for i, word in enumerate(words) if word in _WHERE}
    return shlex.join(word for i, word in enumerate(words) if not {i, i - 1} & where)
