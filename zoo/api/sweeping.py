"""`zoo.sweep`: one training for every value and seed, and what the numbers then say."""

from __future__ import annotations

import json
import shlex
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from zoo import catalog
from zoo.api import sharing
from zoo.api.compared import Images, checked_seeds, require_same
from zoo.api.diagnosis import Report, diagnose
from zoo.api.facts import hardware, versions
from zoo.api.found import (
    Found,
    Numbers,
    along,
    as_record,
    findings,
    point_words,
    sentences,
    table,
    usual_numbers,
)
from zoo.api.swept import Plan, Run, SweepFile, Watched, is_sweep, plan_sweep, read_sweep
from zoo.data import open_dataset
from zoo.errors import RecipeError, ZooError, did_you_mean
from zoo.evaluation.diagnosis.page import Page, Picture, Table
from zoo.evaluation.diagnosis.subject import Subject
from zoo.evaluation.sweep_plot import plot_sweep
from zoo.evaluation.trend import NOTE
from zoo.files import is_file, write_text
from zoo.launch import alone, handed_on, launched, rank, restarted
from zoo.training import Recipe, RunFolder, pick_device
from zoo.training.changes import allowed_changes
from zoo.training.disk import writing
from zoo.training.lock import turn
from zoo.training.signals import interruptible

SWEEP = "sweep.json"

_NARROW = "sweep_narrow.svg"  # the same in one column, for a phone


class Sweep(NamedTuple):
    """What `sweep` found.

    Attributes:
        found: each watched number's trends.
        table: a row for each point.
        record: what `sweep.json` holds: also every run's changes, folder and numbers.
        failed: why runs failed, by `POINT/seed_N`.
        folder: with the record, `sweep.md`, `sweep.png`, `sweep.svg`, the runs' releases and `report/`.
        report: of `diagnose`, over all finished runs.
    """

    found: list[Found]
    table: Table
    record: dict[str, Any]
    failed: dict[str, str]
    folder: Path
    report: Report


def sweep(
    *recipes: Recipe | str | Path,
    out: str | Path,
    vary: Mapping[str, Any] | None = None,
    seeds: Sequence[int] | None = None,
    watch: Sequence[str] | None = None,
    data: str | Path | None = None,
    resume: bool = False,
) -> Sweep | None:
    """Train a recipe for every combination of values, over seeds, and say what moves with them.

    Several processes (torchrun's, an array job's, or some started by hand with `resume`) share the runs: each
    trains the next that nobody has, alone on its own GPU, and the last one to finish writes the report.

    Args:
        recipes: one or several to compare, or the name or file of a sweep, which has all but `out`; what is
            given beside it takes the place of its own.
        out: folder of the sweep; each run's release is in `out/POINT/seed_N`.
        vary: by key of the recipe, e.g. `objective.tau`, a list of values, or values by their labels. A
            single value is the same in all runs.
        seeds: of the trainings; 0, 1, 2 where a sweep has none.
        watch: names of `Subject.numbers`, e.g. `features/uniformity`; the usual ones when None.
        data: the folder with the data, for sources that need one.
        resume: go on with what lies in `out`; finished runs are taken as they are.

    Returns:
        What was found; None if other processes are still training the rest.

    Raises:
        Interrupted: on a signal; the same call with `resume` goes on.
        ZooError: for anything wrong with recipes, values, seeds, data or folder, before the first training;
            if no run could be trained.
    """
    out = Path(out)
    written = _file_of(recipes)
    plan = _plan(recipes, written, vary or {}, seeds, watch, out)
    command = _command(recipes, vary or {}, seeds, watch, data, out)
    images = _images(plan.runs, data)
    for run in plan.runs:  # before the first training
        _require_same(run, images)
    who = f"rank {rank()}: " if launched() > 1 else ""
    resume = resume or restarted()
    sharing.begin(out, {"command": command, "runs": [_id(run) for run in plan.runs]}, resume=resume)
    before = _reported(out)
    sharing.take_gpu()
    with interruptible(lambda: _done(plan.runs), once=not handed_on()), alone():
        whole = sharing.train_all(plan.runs, data, lambda run: point_words(plan, run), who)
        if not whole:
            return None
        with turn(out / ".report.lock"):
            if _reported(out) not in (None, before):  # by another process, which finished just before
                return None
            return _conclude(plan, written, command, data, out)


def _file_of(recipes: Sequence[Recipe | str | Path]) -> SweepFile | None:
    """Return the sweep that is meant, if it is one."""
    files = [each for each in recipes if not isinstance(each, Recipe) and is_sweep(each)]
    if files and len(recipes) > 1:
        raise RecipeError(f'sweep: found "{files[0]}" and {len(recipes) - 1} more, expected a sweep alone')
    if not files and len(recipes) == 1 and not isinstance(recipes[0], Recipe):
        name = str(recipes[0])
        hint = did_you_mean(name, catalog.list_sweeps())
        if hint and not is_file(name) and name not in catalog.list_recipes():
            raise RecipeError(f'neither a recipe nor a sweep: "{name}".{hint}')
    return read_sweep(files[0]) if files else None


def _plan(
    recipes: Sequence[Recipe | str | Path],
    written: SweepFile | None,
    vary: Mapping[str, Any],
    seeds: Sequence[int] | None,
    watch: Sequence[str] | None,
    out: Path,
) -> Plan:
    watched = None if watch is None else _named(watch, written)
    if written is not None:
        recipes, vary = written.recipes, {**written.set, **vary}
        seeds = written.seeds if seeds is None else seeds
        watched = written.watch if watched is None else watched
    seeds = checked_seeds((0, 1, 2) if seeds is None else seeds)
    return plan_sweep(recipes, vary, seeds, watched, out)


def _named(names: Sequence[str], written: SweepFile | None) -> list[Watched]:
    """Return numbers by their names, with what a sweep says of them."""
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ZooError(f"watch: found {names!r}, expected a list of names, e.g. features/uniformity")
    known = {each.number: each for each in written.watch} if written else {}
    return [
        known.get(name) or Watched(number=name, title=name.partition("/")[2].replace("_", " "))
        for name in names
    ]


def _command(
    recipes: Sequence[Recipe | str | Path],
    vary: Mapping[str, Any],
    seeds: Sequence[int] | None,
    watch: Sequence[str] | None,
    data: str | Path | None,
    out: Path,
) -> str:
    """Return the command line that does the same."""
    words = ["zoo", "sweep", *(each.name if isinstance(each, Recipe) else str(each) for each in recipes)]
    for key, given in vary.items():
        values = given.values() if isinstance(given, Mapping) else given
        words += ["--set", f"{key}={','.join(json.dumps(value) for value in values)}"]
    if seeds is not None:
        words += ["--seeds", ",".join(map(str, seeds))]
    if watch is not None:
        words += ["--watch", ",".join(watch)]
    if data is not None:
        words += ["--data", str(data)]
    return shlex.join([*words, "--out", str(out)])


def _images(runs: Sequence[Run], data: str | Path | None) -> dict[str, Images]:
    """Return which images each kind of data has, by the recipe's section as text."""
    found: dict[str, Images] = {}
    for run in runs:
        section = run.recipe.data
        key = section.model_dump_json()
        if key not in found:
            hashes = (open_dataset(section, split, data).describe()["sha256"] for split in ("train", "test"))
            found[key] = Images(*hashes)
    return found


def _require_same(run: Run, images: Mapping[str, Images]) -> None:
    """Make sure that what lies in a run's folder, finished or not, is of its recipe and data."""
    if sharing.is_finished(run):
        require_same(run.folder, run.recipe, images[run.recipe.data.model_dump_json()])
        return
    begun = RunFolder(run.folder / "run")
    if begun.recipe_file.is_file():
        allowed_changes(Recipe.load(begun.recipe_file), run.recipe, str(begun.path))


def _id(run: Run) -> str:
    return f"{run.point}/seed_{run.seed}"


def _done(runs: Sequence[Run]) -> str:
    return f"{len(sharing.finished(runs))} of {len(runs)} runs are finished"


def _reported(out: Path) -> str | None:
    """Return the id of the record that is in the folder, if there is one."""
    found = sharing.read_json(out / SWEEP).get("id")
    return None if found is None else str(found)


def _conclude(
    plan: Plan, written: SweepFile | None, command: str, data: str | Path | None, out: Path
) -> Sweep:
    """Compare all finished runs, and write what was found."""
    failed = {_id(run): why for run in plan.runs if (why := sharing.reason(run)) is not None}
    runs = sharing.finished(plan.runs)
    if not runs:
        raise ZooError(f"none of the {len(plan.runs)} runs could be trained: {next(iter(failed.values()))}")
    result = _Result(plan, written, command, failed, out)
    report = diagnose(
        *(run.folder for run in runs),
        out=out / "report",
        data=None if data is None else str(data),
        device=runs[0].recipe.training.device,
        page=lambda subjects: result.page(runs, subjects),
    )
    numbers = dict(zip(runs, (subject.numbers for subject in report.subjects), strict=True))
    found = result.found(numbers)
    record = result.record(numbers, found)
    with writing(f'"{out / SWEEP}"', out):
        write_text(out / "sweep.md", result.markdown(numbers, found))
        write_text(out / SWEEP, json.dumps(record, indent=2) + "\n")  # last: by it the sweep is whole
    return Sweep(found, result.table(numbers), record, failed, out, report)


class _Result:
    """A sweep whose trainings are done: its figure, its page and its record, of the runs' numbers."""

    def __init__(
        self, plan: Plan, written: SweepFile | None, command: str, failed: Mapping[str, str], out: Path
    ) -> None:
        self.plan, self.written, self.command, self.failed, self.out = plan, written, command, failed, out

    def watch(self, numbers: Mapping[Run, Numbers]) -> tuple[Watched, ...]:
        return self.plan.watch or usual_numbers(list(numbers.values()))

    def found(self, numbers: Mapping[Run, Numbers]) -> list[Found]:
        return findings(self.plan, numbers, self.watch(numbers))

    def page(self, runs: Sequence[Run], subjects: Sequence[Subject]) -> Page:
        """Draw the sweep, and return what the report begins with."""
        numbers = dict(zip(runs, (subject.numbers for subject in subjects), strict=True))
        found = self.found(numbers)
        about = self.caption(subjects)
        self.draw(found, about)
        return Page(
            title=self.title,
            paragraphs=[*self.about(), *sentences(self.plan, found, numbers), *self.failures(), NOTE],
            commands=[self.command],
            tables=[self.table(numbers)],
            pictures=[Picture(self.out / _NARROW, self.alt(found), about)],
        )

    @property
    def title(self) -> str:
        if self.written is not None:
            return self.written.question
        recipes = dict.fromkeys(run.recipe.name for run in self.plan.runs)
        varied = [axis.key for axis in self.plan.axes if axis.key != "recipe"]
        return f"{', '.join(recipes)}: sweep over {' and '.join(varied) or 'seeds'}"

    def about(self) -> list[str]:
        return [] if self.written is None else [f"Source: {self.written.source}"]

    def failures(self) -> list[str]:
        if not self.failed:
            return []
        texts = "; ".join(f"{name}: {why}" for name, why in self.failed.items())
        return [f"{len(self.failed)} of {len(self.plan.runs)} runs failed and are left out. {texts}"]

    def table(self, numbers: Mapping[Run, Numbers]) -> Table:
        return table(self.plan, numbers, self.watch(numbers))

    def caption(self, subjects: Sequence[Subject]) -> str:
        """Say what all runs have in common: a sweep may vary the rest."""
        recipes = [run.recipe for run in self.plan.runs]
        shared = (
            ("{}", {recipe.backbone.arch for recipe in recipes}),
            ("{}", {subject.data for subject in subjects}),
            ("{} epochs", {recipe.training.epochs for recipe in recipes}),
        )
        words = [text.format(*values) for text, values in shared if len(values) == 1]
        plural = "s" if len(self.plan.seeds) > 1 else ""
        return ", ".join([*words, f"training seed{plural} {', '.join(map(str, self.plan.seeds))}"])

    def alt(self, found: Sequence[Found]) -> str:
        titles = ", ".join(each.watched.title for each in found)
        return f"{titles} against {along(self.plan).title}: every seed, means and intervals, as in the table"

    def draw(self, found: Sequence[Found], about: str) -> None:
        axis = along(self.plan)
        files = [self.out / "sweep.png", self.out / "sweep.svg"]
        for paths, columns in ((files, None), ([self.out / _NARROW], 1)):
            plot_sweep(
                {each.watched.title: each.trends for each in found if each.trends},
                paths,
                axis=axis.title,
                labels=list(axis.values),
                values=axis.numbers,
                about=about,
                columns=columns,
            )

    def markdown(self, numbers: Mapping[Run, Numbers], found: Sequence[Found]) -> str:
        shown = self.table(numbers)
        rule = ["---", *("---:" for _ in shown.head[1:])]
        lines = ["| " + " | ".join(row) + " |" for row in [shown.head, rule, *shown.rows]]
        paragraphs = [
            f"# {self.title}",
            *self.about(),
            f"```\n{self.command}\n```",
            f"{shown.caption}:",
            "\n".join(lines),
            *sentences(self.plan, found, numbers),
            *self.failures(),
            NOTE,
            f"![{self.alt(found)}](sweep.png)",
            "The [report](report/report.html) lays all runs side by side.",
        ]
        return "\n\n".join(paragraphs) + "\n"

    def record(self, numbers: Mapping[Run, Numbers], found: Sequence[Found]) -> dict[str, Any]:
        runs = [
            {
                "point": run.point,
                "values": dict(zip((axis.key for axis in self.plan.axes), run.labels, strict=True)),
                "recipe": run.base,
                "changes": list(run.changes),
                "seed": run.seed,
                "folder": _id(run),
                **({"failed": self.failed[_id(run)]} if _id(run) in self.failed else {}),
                "numbers": dict(numbers.get(run, {})),
            }
            for run in self.plan.runs
        ]
        return {
            "format": 1,
            "id": uuid.uuid4().hex,
            "question": self.written.question if self.written else None,
            "source": self.written.source if self.written else None,
            "command": self.command,
            "axes": {axis.key: axis.values for axis in self.plan.axes},
            "seeds": list(self.plan.seeds),
            "runs": runs,
            "found": as_record(found),
            "hardware": hardware(pick_device(self.plan.runs[0].recipe.training.device)),
            "versions": versions(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }
