"""What the folder of a sweep says of its runs: which are planned, and why some have failed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from zoo.evaluation.results.rows import NOT_BEGUN, Key, Unfinished
from zoo.files import is_file, read_object
from zoo.release.format import RECIPE, holds_release

PLAN = "plan.json"
"""In a sweep's folder."""
FAILED = "failed.json"
"""In the folder of a run that could not be trained."""


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


def read_plan(folder: Path) -> list[Planned]:
    """Return the runs that the sweep of a folder has planned; none where there is no sweep."""
    planned = read_object(folder / PLAN).get("planned")
    found = []
    for run, entry in planned.items() if isinstance(planned, dict) else ():
        facts = entry if isinstance(entry, dict) else {}
        name, seed, group = facts.get("name"), facts.get("seed"), facts.get("group")
        if not (isinstance(name, str) and isinstance(seed, int) and isinstance(group, str)):
            continue  # damaged
        train = images_hash(facts.get("train_sha256"))
        point = run.rpartition("/seed_")[0]
        state = _state(folder / run, "" if name.endswith(point) else f", {point}")
        place = str(folder / run)
        open_ = None
        if state:
            open_ = Unfinished(
                place=place, name=name, seed=seed, group=group, train_sha256=train, state=state
            )
        found.append(Planned((group, seed), train, place, open_))
    return found


def why_failed(folder: Path) -> str | None:
    """Return why the run of a folder failed, or None."""
    found = read_object(folder / FAILED).get("reason")
    return None if found is None else str(found)


def images_hash(found: object) -> str | None:
    """Return a SHA-256 as a file of ours has it; None for anything else."""
    return found if isinstance(found, str) and re.fullmatch(r"[0-9a-f]{64}", found) else None


def _state(folder: Path, words: str) -> str | None:
    why = why_failed(folder)
    if why:
        return f"failed: {why}"
    begun = holds_release(folder) or is_file(folder / "run" / RECIPE)
    return None if begun else f"{NOT_BEGUN}{words}"
