"""What a sweep has planned, as its folder says it, and which of that nobody has begun."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from zoo.api import sharing
from zoo.api.facts import start_facts
from zoo.api.run_results import group_of
from zoo.api.swept import Run
from zoo.errors import ZooError
from zoo.evaluation.results import NOT_BEGUN, Key, Unfinished
from zoo.files import is_dir
from zoo.training import Recipe

_WHERE = ("--out", "--data", "--seeds")
"""Options with which a sweep is no other one."""


class Planned(NamedTuple):
    """A run of a plan.

    Attributes:
        key: the same for the same training, wherever it is planned.
        as_unfinished: what a table says of it; None where its folder is there and speaks for itself.
    """

    key: Key
    as_unfinished: Unfinished | None


def written_plan(command: str, runs: Sequence[Run]) -> dict[str, Any]:
    """Return what a sweep writes down of its runs: by each one's folder, what training it is."""
    return {"command": command, "runs": [run.id for run in runs], "planned": trainings(runs)}


def trainings(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Return name, seed and group of each run, by its folder in the sweep's."""
    starts: dict[str, str | None] = {}
    return {
        run.id: {"name": run.recipe.name, "seed": run.seed, "group": _group(run.recipe, starts)}
        for run in runs
    }


def read_plan(folder: Path) -> list[Planned]:
    """Return the runs that the sweep of a folder has planned; none where there is no sweep."""
    plan = sharing.read_json(folder / sharing.PLAN)
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
        key = (sweep, run) if group is None else (group, seed)
        state = _state(folder / run, "" if name.endswith(point) else f", {point}")
        place = str(folder / run)
        open_ = Unfinished(place=place, name=name, seed=seed, group=group, state=state) if state else None
        found.append(Planned(key, open_))
    return found


def not_begun(planned: Iterable[Planned], known: set[Key]) -> list[Unfinished]:
    """Return what has been planned and begun nowhere, each training once.

    Args:
        planned: of all folders.
        known: trainings that are finished or begun.
    """
    found: dict[Key, Unfinished | None] = {}
    for each in planned:
        before = found.setdefault(each.key, each.as_unfinished)
        if before is not None and before.state.startswith(NOT_BEGUN):  # here it may be begun
            found[each.key] = each.as_unfinished
    return [each for key, each in found.items() if each is not None and key not in known]


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
    if not is_dir(folder):
        return f"{NOT_BEGUN}{words}"
    why = sharing.read_json(folder / sharing.FAILED).get("reason")
    return f"failed: {why}" if why else None


def _sweep(command: str) -> str:
    """Return a command line without what makes it no other sweep."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    where = {i for i, word in enumerate(words) if word in _WHERE}
    return shlex.join(word for i, word in enumerate(words) if not {i, i - 1} & where)
