"""Which finished trainings lie in folders, which are not finished, and what cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

from zoo import release as releases
from zoo.api.diagnoses.subjects import open_subject
from zoo.api.sweep_folder import Planned, images_hash, read_plan, why_failed
from zoo.api.tables.release_results import group_of, run_result
from zoo.config import Config, load_yaml, parse
from zoo.errors import RecipeError, ReleaseError, ZooError
from zoo.evaluation.results.rows import RunResult, Unfinished
from zoo.files import is_dir, is_file, names_in, read_object, read_text
from zoo.release import Release
from zoo.release.format import METRICS, RECIPE, WEIGHTS, holds_release
from zoo.training import RunFolder

RESULTS = "results.json"
KEPT = "results"
"""Folder of results of runs whose weights lie elsewhere."""

_LARGEST = 1 << 26  # bytes of a file of results
_DEEPEST = 32  # folders


class ResultsFile(Config):
    """What `results.json` holds, of which a table is made again."""

    format: int
    runs: list[RunResult]
    unfinished: list[Unfinished]


class Finished:
    """Collects what lies in folders, releases and files of results.

    Attributes:
        runs: finished ones; a run that lies in two places stands there twice.
        unfinished: those that were planned or begun.
        left_out: why releases that lie there are none of a table.
        planned: the runs of the folders' sweeps, begun or not.
    """

    def __init__(self) -> None:
        self.runs: list[RunResult] = []
        self.unfinished: list[Unfinished] = []
        self.left_out: list[str] = []
        self.planned: list[Planned] = []
        self._seen: set[Path] = set()

    def add(self, name: str | Path | Release) -> None:
        """Add all of a folder (whatever lies below it), a file of results, or a release by its name.

        Raises:
            ZooError: for what is none of them, or holds no run, finished or not; for a damaged release or
                file that is given by itself.
        """
        name = releases.named(name)
        if is_file(name):
            self._add_file(Path(name))
            return
        if not is_dir(name):
            self.runs.append(run_result(releases.open(name), str(name)))
            return
        folder, before = Path(name), self._count()
        if _looks_like_release(folder):
            self.runs.append(run_result(releases.open(folder.absolute()), str(folder)))
            return
        if folder.resolve() in self._seen:
            return
        self._walk(folder, 0)
        if self._count() == before:
            found = names_in(folder)
            shown = ", ".join(found[:4]) + (", ..." if len(found) > 4 else "") if found else "nothing"
            raise ZooError(
                f'"{folder}": found {shown}, expected releases or runs in it, at any depth, or a folder '
                f'"{KEPT}" with files of results'
            )

    def add_run(self, folder: Path, place: str) -> None:
        """Add the finished run of a sweep; why it cannot be read is noted."""
        try:
            self.runs.append(run_result(Release.at(folder), place))
        except ReleaseError as error:
            self.left_out.append(str(error))

    def _count(self) -> int:
        return len(self.runs) + len(self.unfinished) + len(self.left_out) + len(self.planned)

    def _walk(self, folder: Path, depth: int) -> None:
        place = folder.resolve()
        if place in self._seen or depth > _DEEPEST:
            return
        self._seen.add(place)
        if _looks_like_release(folder):
            self.add_run(folder, str(folder))
            return
        if is_file(folder / "run" / RECIPE) or (depth == 0 and RunFolder(folder).is_one()):
            self.unfinished.append(_unfinished(folder, str(folder)))
            return
        for name in names_in(folder):
            below = folder / name
            if name.startswith(".") or not is_dir(below) or below.is_symlink():
                continue
            if name == KEPT:
                for file in (below / each for each in names_in(below) if each.endswith(".json")):
                    self._add_file(file)
            self._walk(below, depth + 1)
        self.planned += read_plan(folder)

    def _add_file(self, file: Path) -> None:
        found = read_results(file)
        self.runs += found.runs
        self.unfinished += found.unfinished


def read_results(file: Path) -> ResultsFile:
    """Read a file of results.

    Raises:
        ZooError: naming what is wrong with it.
    """
    try:
        data = json.loads(read_text(file, _LARGEST))
    except (OSError, ValueError, RecursionError) as error:
        raise ZooError(f'"{file}" cannot be read as results: {error}') from None
    if not isinstance(data, dict) or "runs" not in data or "rows" not in data:
        raise ZooError(f'"{file}": found no results, expected a {RESULTS} that "zoo table" has written')
    if data.get("format") != 1:
        raise ZooError(f'"{file}": found format {data.get("format")!r}, expected 1')
    known = {key: data.get(key) for key in ResultsFile.model_fields}
    return parse(ResultsFile, known, f'"{file}"', ZooError)


def _looks_like_release(folder: Path) -> bool:
    """Whether there is a whole release, or what is left of one."""
    return holds_release(folder) and any(is_file(folder / name) for name in (RECIPE, METRICS, WEIGHTS))


def _unfinished(folder: Path, place: str) -> Unfinished:
    """Describe a training that was begun."""
    run = folder / "run" if is_dir(folder / "run") else folder
    name, seed, group = folder.name, None, None
    train = _images_of(run)
    try:
        recipe = load_yaml(read_text(run / RECIPE, _LARGEST), str(run / RECIPE))
        name, seed, group = str(recipe["name"]), int(recipe["training"]["seed"]), group_of(recipe)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecipeError):
        pass  # the state says why
    why = why_failed(folder)
    state = f"failed: {why}" if why else _state(folder)
    return Unfinished(place=place, name=name, seed=seed, group=group, train_sha256=train, state=state)


def _images_of(run: Path) -> str | None:
    """Return the hash of the images that a run, or a stage of its method, has noted."""
    places = [RunFolder(run), *_stages_of(run)]
    found = (images_hash(read_object(place.data_file).get("sha256")) for place in places)
    return next((each for each in found if each is not None), None)


def _stages_of(run: Path) -> list[RunFolder]:
    try:
        return RunFolder(run).stages()
    except ZooError:  # the state says why
        return []


def _state(folder: Path) -> str:
    try:
        return open_subject(folder).state.removeprefix("unfinished run: ")
    except ZooError as error:
        return f"its record cannot be read: {error}"
