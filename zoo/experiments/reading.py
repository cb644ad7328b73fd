"""Which records lie in folders, releases and files of results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zoo import catalog, hub
from zoo.config import parse
from zoo.errors import ReleaseError, ZooError
from zoo.experiments.record import RunRecord, flat, from_release, shipped_leaves
from zoo.files import is_dir, is_file, names_in, read_text
from zoo.release import Release, format

RESULTS = "results.json"
KEPT = "results"
"""A folder of this name keeps the records of runs whose weights lie elsewhere."""

_LARGEST, _DEEPEST = 1 << 26, 32  # bytes of a file of records, folders


@dataclass
class Found:
    """What lies in folders, releases and files of results.

    Attributes:
        records: of finished runs, each once; of copies the one on which most was measured.
        unfinished: folders of runs that were begun and have no release.
        left_out: why releases that lie there have no record.
    """

    records: list[RunRecord] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def find(names: Sequence[str | Path | Release]) -> Found:
    """Read releases by name, files `results.json`, and all that lies in folders at any depth.

    In a folder called `results` every .json file is one of records.

    Raises:
        ZooError: for a name that is none of these, a folder without any run, or a damaged file.
    """
    found = Found()
    for name in (hub.named(each) for each in names):
        if is_file(name):
            found.records += read_results(Path(name))
        elif not is_dir(name) or _is_release(Path(name)):
            opened = hub.open(Path(name).absolute() if is_dir(name) else name)
            found.records.append(from_release(opened, str(name)))
        else:
            below = Found()
            _walk(Path(name), below, 0)
            if not (below.records or below.unfinished or below.left_out):
                there = ", ".join(names_in(Path(name))[:4]) or "nothing"
                raise ZooError(
                    f'"{name}": found {there}, expected releases or runs in it, at any depth, or a folder '
                    f'"{KEPT}" with files of results'
                )
            found.records += below.records
            found.unfinished += below.unfinished
            found.left_out += below.left_out
    found.records = different(found.records)
    return found


def different(records: Iterable[RunRecord]) -> list[RunRecord]:
    """Return each run once, the copy on which most was measured."""
    runs: dict[tuple[str, str, str], RunRecord] = {}
    for record in records:
        known = runs.setdefault(record.identity, record)
        if len(record.evaluations) > len(known.evaluations):
            runs[record.identity] = record
    return list(runs.values())


def _walk(folder: Path, found: Found, depth: int) -> None:
    if _is_release(folder):
        try:
            found.records.append(from_release(Release.at(folder), str(folder)))
        except ReleaseError as error:
            found.left_out.append(str(error))
        return
    if is_file(folder / "run" / format.RECIPE):
        found.unfinished.append(str(folder))
        return
    for name in names_in(folder):
        below = folder / name
        if name.startswith(".") or not is_dir(below) or below.is_symlink() or depth == _DEEPEST:
            continue
        if name == KEPT:
            for file in (below / each for each in names_in(below) if each.endswith(".json")):
                found.records += read_results(file)
        _walk(below, found, depth + 1)


def _is_release(folder: Path) -> bool:
    """Whether a release lies there, or what is left of one."""
    parts = (format.RECIPE, format.METRICS, format.WEIGHTS)
    return format.holds_release(folder) and any(is_file(folder / name) for name in parts)


def read_results(file: Path) -> list[RunRecord]:
    """Read a file of results, of format 2 or of the earlier format 1.

    Raises:
        ZooError: naming what is wrong with it.
    """
    try:
        data = json.loads(read_text(file, _LARGEST))
    except (OSError, ValueError, RecursionError) as error:
        raise ZooError(f'"{file}" cannot be read as results: {error}') from None
    if not isinstance(data, dict) or not isinstance(data.get("runs"), list):
        raise ZooError(f'"{file}": found no results, expected a {RESULTS} that "zoo table" has written')
    if data.get("format") not in (1, 2):
        raise ZooError(f'"{file}": found format {data.get("format")!r}, expected 1 or 2')
    runs = data["runs"] if data["format"] == 2 else map(_of_format_1, data["runs"])
    return [parse(RunRecord, run, f'"{file}"', ZooError) for run in runs]


def _of_format_1(run: Any) -> Any:
    """Return a run of the earlier format as one of today's: it has what was changed in a shipped recipe."""
    if not isinstance(run, Mapping):
        return run
    changed, name = run.get("changed"), run.get("name")
    if isinstance(changed, Mapping) and name in catalog.list_recipes():
        leaves = dict(shipped_leaves(str(name)))
        for key, pair in changed.items():
            leaves = {k: v for k, v in leaves.items() if not f"{k}.".startswith(f"{key}.")}
            leaves |= flat(pair[1], key)
        leaves["training.seed"] = run.get("seed")
    else:
        leaves = {"group": run.get("group")}
    old = ("changed", "group", "images_per_second")
    evaluations = [
        {key: value for key, value in each.items() if key not in ("metric", "value")}
        for each in run.get("evaluations", ())
    ]
    kept = {key: value for key, value in run.items() if key not in old}
    return {**kept, "recipe": leaves, "evaluations": evaluations}


def as_json(records: Sequence[RunRecord]) -> str:
    """Return what `results.json` holds."""
    return json.dumps({"format": 2, "runs": [each.model_dump() for each in records]}, indent=1) + "\n"
