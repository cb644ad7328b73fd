"""`zoo.sweep`: one training for every value and seed, and what the numbers then say."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from zoo import catalog
from zoo.api.comparisons.plan import Images, checked_seeds, require_same
from zoo.api.diagnoses.diagnose import Report, diagnose, unseen
from zoo.api.given import listed
from zoo.api.sweep_file import SweepFile, Watched, is_sweep, read_sweep
from zoo.api.sweep_folder import why_failed
from zoo.api.sweeps import work_queue
from zoo.api.sweeps.estimate import Pace, beginning
from zoo.api.sweeps.findings import Found, Numbers, point_words, watched_by_name
from zoo.api.sweeps.grid import Plan, Run, plan_sweep
from zoo.api.sweeps.plan import trainings, written_plan
from zoo.api.sweeps.result import Result
from zoo.api.tables.finished import Finished
from zoo.api.tables.table import Results, published_figures, results_of
from zoo.data import open_dataset
from zoo.data.any_data import own_root
from zoo.data.embedded import folder_for, reads_folder
from zoo.data.memory import Root
from zoo.errors import DataError, RecipeError, ZooError, did_you_mean
from zoo.evaluation.diagnosis.page import Page, Table
from zoo.evaluation.diagnosis.subject import Subject
from zoo.evaluation.results.rows import Published, Unfinished
from zoo.files import RUNS, is_file, read_object, write_text
from zoo.launch import alone, handed_on, launched, rank, restarted
from zoo.training import Recipe, RunFolder, learns_without_labels, pick_device
from zoo.training.changes import allowed_changes
from zoo.training.disk import writing
from zoo.training.lock import turn
from zoo.training.progress import say
from zoo.training.signals import interruptible

SWEEP = "sweep.json"


class Sweep(NamedTuple):
    """What `sweep` found.

    Attributes:
        found: each watched number's trends.
        table: a row for each point.
        record: what `sweep.json` holds: also every run's changes, folder and numbers.
        failed: why runs failed, by `POINT/seed_N`.
        folder: with the record, `sweep.md`, `sweep.png`, `sweep.svg`, `results.*`, the runs' releases and
            `report/`.
        report: of `diagnose`, over all finished runs; None where the sweep wants none.
        results: what was measured, as `zoo.table` has it.
    """

    found: list[Found]
    table: Table
    record: dict[str, Any]
    failed: dict[str, str]
    folder: Path
    report: Report | None
    results: Results


def sweep(
    *recipes: Recipe | str | Path | Sequence[Recipe | str | Path],
    out: str | Path | None = None,
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
            given beside it takes the place of its own. Recipes of the sweep after it: these alone. They may
            come as one list.
        out: folder of the sweep, `runs/sweeps/NAME` when None; each run's release is in `out/POINT/seed_N`.
        vary: by key of the recipe, e.g. `objective.tau`, a list of values, or values by their labels. A
            single value is the same in all runs. A sweep's own labels stand for their values.
        seeds: of the trainings; 0, 1, 2 where a sweep has none.
        watch: names of `Subject.numbers`, e.g. `features/uniformity`; the usual ones when None.
        data: the folder with the data, for recipes whose sources need one.
        resume: go on with what lies in `out`; finished runs are taken as they are. Values and seeds may be
            added, and other numbers watched; none that has runs there may be left out.

    Returns:
        What was found; None if other processes are still training the rest.

    Raises:
        Interrupted: on a signal; the same call with `resume` goes on.
        ZooError: for anything wrong with recipes, values, seeds, data or folder, before the first training;
            if no run could be trained.
    """
    if not isinstance(vary, Mapping | None):
        raise ZooError(
            f"vary: found {vary!r}, expected lists of values by their keys, e.g. "
            '{"objective.tau": [0.1, 0.2]}'
        )
    names = listed(recipes)
    out = RUNS / "sweeps" / _default(names) if out is None else Path(out)
    written = _file_of(names)
    plan = _plan(names, written, vary or {}, seeds, watch, out)
    command = _command(names, vary or {}, seeds, watch, data, out)
    _require_device(plan.runs)
    own_root(data, *(run.recipe.data for run in plan.runs))
    images = _images(plan.runs, data)
    for run in plan.runs:  # before the first training
        _require_same(run, images)
    who = f"rank {rank()}: " if launched() > 1 else ""
    resume = resume or restarted()
    beside = _published(written)
    trained_on = {run.id: images[run.recipe.data.model_dump_json()].train for run in plan.runs}
    work_queue.begin(out, written_plan(command, plan.runs, trained_on), resume=resume)
    before = _reported(out)
    name = None if written is None or isinstance(names[0], Recipe) else names[0]
    for text in beginning(plan.runs, name, out, len(work_queue.finished(plan.runs))):
        say(f"{who}{text}")
    work_queue.take_gpu()
    with interruptible(lambda: _done(plan.runs), once=not handed_on()), alone():
        whole = work_queue.train_all(plan.runs, data, lambda run: point_words(plan, run), Pace(out), who)
        if not whole:
            return None
        with turn(out / ".report.lock"):
            if _reported(out) not in (None, before):  # by another process, which finished just before
                return None
            return _conclude(plan, written, beside, command, data, trained_on, out)


def _default(names: Sequence[Recipe | str | Path]) -> str:
    """Name a sweep by its recipes, or by the file that it is."""
    words = [
        each.name if isinstance(each, Recipe) else re.sub(r"\.ya?ml$", "", Path(str(each)).name)
        for each in names
    ]
    return "-and-".join(words)[:100]


def _file_of(recipes: Sequence[Recipe | str | Path]) -> SweepFile | None:
    """Return the sweep that is meant, if it is one."""
    files = [each for each in recipes if not isinstance(each, Recipe) and is_sweep(each)]
    if files and (len(files) > 1 or files[0] is not recipes[0]):
        raise RecipeError(
            f'sweep: found "{files[-1]}" among {len(recipes)} names, expected one sweep, before those of its '
            "recipes that are wanted"
        )
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
        chosen = {key: _labelled(key, values, written.set.get(key)) for key, values in vary.items()}
        recipes, vary = _chosen(recipes[1:], written), {**written.set, **chosen}
        seeds = written.seeds if seeds is None else seeds
        watched = written.watch if watched is None else watched
    seeds = checked_seeds((0, 1, 2) if seeds is None else seeds)
    order = "seeds" if written is None else written.order
    return plan_sweep(recipes, vary, seeds, watched, out, order)


def _chosen(names: Sequence[Recipe | str | Path], written: SweepFile) -> list[str]:
    """Return those of a sweep's recipes that are asked for, in its own order; all without any."""
    for name in names:
        if name not in written.recipes:
            hint = did_you_mean(name, written.recipes)
            raise RecipeError(
                f'"{name}" is no recipe of this sweep.{hint} It has {", ".join(written.recipes)}'
            )
    return [name for name in written.recipes if not names or name in names]


def _labelled(key: str, values: Any, own: Any) -> Any:
    """Return `values` for a key of which a sweep has labelled values, `own`: labels stand for theirs."""
    if not isinstance(own, Mapping) or isinstance(values, Mapping):
        return values
    listed = values if isinstance(values, (list, tuple)) else [values]
    words = [each for each in listed if isinstance(each, str)]
    if any(isinstance(each, str) for each in own.values()) or not words:
        return values
    for word in words:
        if word not in own:
            hint = did_you_mean(word, own)
            raise RecipeError(f'{key}: found "{word}", expected one of {", ".join(own)}, or a value.{hint}')
    if len(words) < len(listed):
        raise RecipeError(f"{key}: found labels and values, expected either")
    return {word: own[word] for word in words}


def _named(names: Sequence[str], written: SweepFile | None) -> list[Watched]:
    """Return numbers by their names, with what a sweep says of them."""
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ZooError(f"watch: found {names!r}, expected a list of names, e.g. features/uniformity")
    known = {each.number: each for each in written.watch if each.minus is None} if written else {}
    return [known.get(name) or watched_by_name(name) for name in names]


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


def _require_device(runs: Sequence[Run]) -> None:
    """Make sure that every run's device is here: else each would fail in its turn."""
    for wanted in dict.fromkeys(run.recipe.training.device for run in runs):
        try:
            pick_device(wanted)
        except RecipeError as error:
            raise RecipeError(
                f"{error}. For a sweep that is --set training.device=cpu; one that was made for a GPU may "
                "take days there"
            ) from None


def _images(runs: Sequence[Run], data: str | Path | None) -> dict[str, Images]:
    """Return which images each kind of data has, by the recipe's section as text."""
    found: dict[str, Images] = {}
    for run in runs:
        section = run.recipe.data
        key = section.model_dump_json()
        if key not in found:
            root = folder_for(section, data)
            same = [each.recipe for each in runs if each.recipe.data == section]
            unlabelled = all(map(learns_without_labels, same))
            train = open_dataset(section, "train", root, unlabelled=unlabelled).describe()["sha256"]
            found[key] = Images(train, _test_images(run.recipe, root))
    return found


def _test_images(recipe: Recipe, data: Root) -> str | None:
    try:
        found: str = open_dataset(recipe.data, "test", data).describe()["sha256"]
    except DataError as error:
        if recipe.evaluation:  # it would fail after the training
            raise DataError(
                f"{error}. To train without a test split, measure nothing on it: --set evaluation=[]"
            ) from None
        return None
    return found


def _require_same(run: Run, images: Mapping[str, Images]) -> None:
    """Make sure that what lies in a run's folder, finished or not, is of its recipe and data."""
    if work_queue.is_finished(run):
        require_same(run.folder, run.recipe, images[run.recipe.data.model_dump_json()])
        return
    begun = RunFolder(run.folder / "run")
    if is_file(begun.recipe_file):
        allowed_changes(Recipe.load(begun.recipe_file), run.recipe, str(begun.path))


def _done(runs: Sequence[Run]) -> str:
    return f"{len(work_queue.finished(runs))} of {len(runs)} runs are finished"


def _reported(out: Path) -> str | None:
    """Return the id of the record that is in the folder, if there is one."""
    found = read_object(out / SWEEP).get("id")
    return None if found is None else str(found)


def _published(written: SweepFile | None) -> Mapping[str, Published]:
    """Return the published figures that stand beside the results: a sweep's own, else all shipped ones."""
    if written is not None:
        return written.published
    try:
        return published_figures(None)
    except ZooError as error:  # of sweeps that have nothing to do with this one
        say(f"without published figures: {error}")
        return {}


def _conclude(
    plan: Plan,
    written: SweepFile | None,
    beside: Mapping[str, Published],
    command: str,
    data: str | Path | None,
    trained_on: Mapping[str, str],
    out: Path,
) -> Sweep:
    """Compare all finished runs, and write what was found; without the table, if that fails."""
    failed = {run.id: why for run in plan.runs if (why := why_failed(run.folder)) is not None}
    runs = work_queue.finished(plan.runs)
    if not runs:
        raise ZooError(f"none of the {len(plan.runs)} runs could be trained: {next(iter(failed.values()))}")
    result = Result(plan, written, command, failed, out)
    folders = [run.folder for run in runs]

    def numbers_of(subjects: Sequence[Subject]) -> dict[Run, Numbers]:
        return dict(zip(runs, (subject.numbers for subject in subjects), strict=True))

    def page(subjects: Sequence[Subject]) -> Page:
        numbers = numbers_of(subjects)
        found = result.found(numbers)
        return result.page(numbers, found, result.draw(found, subjects))

    report = None
    if result.reported:
        report = diagnose(
            *folders,
            out=out / "report",
            data=str(data)
            if data is not None and any(reads_folder(run.recipe.data) for run in runs)
            else None,
            device=runs[0].recipe.training.device,
            page=page,
        )
        subjects = report.subjects
    else:
        subjects = unseen(*folders)
    numbers = numbers_of(subjects)
    found = result.found(numbers)
    if report is None:
        result.draw(found, subjects)
    record = result.record(numbers, found)
    try:
        results = _results(plan.runs, failed, beside, trained_on)
        results.write(out)
    finally:  # hours of training do not go without a record for a table that zoo table can make again
        with writing(f'"{out / SWEEP}"', out):
            write_text(out / "sweep.md", result.markdown(numbers, found))
            write_text(out / SWEEP, json.dumps(record, indent=2) + "\n")  # last: by it the sweep is whole
    return Sweep(found, result.table(numbers), record, failed, out, report, results)


def _results(
    runs: Sequence[Run],
    failed: Mapping[str, str],
    beside: Mapping[str, Published],
    trained_on: Mapping[str, str],
) -> Results:
    """Return the table of what was measured on the finished runs."""
    found = Finished()
    planned = trainings(runs, trained_on)
    for run in runs:
        if work_queue.is_finished(run):
            found.add_run(run.folder, run.id)
        else:
            state = f"failed: {failed.get(run.id, 'no release')}"
            found.unfinished.append(Unfinished(place=run.id, **planned[run.id], state=state))
    return results_of(found, beside)
