"""`zoo.sweep`: one training for every value and seed, shared by the processes that are started for it."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os.path import isfile
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from filelock import FileLock, Timeout
from pydantic import Field

from zoo import catalog, hub
from zoo.config import Config, listed, load_yaml, parse
from zoo.data.any_data import Data, own_root
from zoo.errors import Interrupted, InUse, RecipeError, TrainingError, ZooError
from zoo.experiments.records import from_release
from zoo.experiments.statistics import differences, draw_numbers, mean_text
from zoo.experiments.table import Published, Results, published_figures, tabulate
from zoo.files import RUNS, is_unused, turn, write_text, writing
from zoo.pretraining import open_sets, pretrain
from zoo.recipe import Recipe
from zoo.recipe.overrides import override_of
from zoo.release.card import markdown_table
from zoo.release.format import holds_release
from zoo.report.diagnose import diagnose
from zoo.training.progress import say

_USUAL = re.compile(r"accuracy/[^/]+|recorded/(loss|uniformity|tolerance)")


class SweepFile(Config):
    """The keys of `recipes/sweeps/NAME.yaml`."""

    question: str
    source: str
    recipes: Annotated[list[str], Field(min_length=1)]
    set: dict[str, Any] = {}
    """By key of the recipe a list of values, or of values by their labels. One value is an override."""
    seeds: list[int] = [0, 1, 2]
    watch: dict[str, str] = {}
    """By title a number out of `RunRecord.figures`: `NAME`, `NAME - NAME`, or `NAME or NAME`, where the
    second stands in for the first in runs that lack it. None: accuracies, loss and uniformity."""
    found: str | None = None
    """What was found, with date and machine."""
    published: dict[str, Published] = {}
    """By recipe."""


def read_sweep(name: str | Path) -> SweepFile | None:
    """Read a sweep by name or from a file; None for what asks no question, as a recipe."""
    path = Path(name) if isfile(name) else catalog.sweep_path(str(name))
    plain = load_yaml(catalog.recipe_text(path), path.name) if isfile(path) else None
    return parse(SweepFile, plain, path.name) if "question" in (plain or ()) else None


@dataclass(frozen=True)
class Sweep:
    """What a sweep or a comparison found.

    Attributes:
        frame: a row for each point: mean ± standard deviation of each watched number over its seeds.
        changes: how far each point is from the first, see `zoo.experiments.statistics.differences`.
        results: what was measured, as `zoo.table` has it; the records' `figures` have every number.
        failed: why runs failed, by `POINT/seed_N`.
        folder: with `sweep.md`, `sweep.png`, `results.*` and the runs' releases.
    """

    frame: pd.DataFrame
    changes: pd.DataFrame
    results: Results
    failed: dict[str, str]
    folder: Path


def sweep(
    *recipes: Recipe | str | Path | Sequence[Recipe | str | Path],
    out: str | Path | None = None,
    vary: Mapping[str, Any] | None = None,
    seeds: Sequence[int] | None = None,
    data: Data = None,
    resume: bool = False,
) -> Sweep | None:
    """Train a recipe for every combination of values, over seeds, and show what moves with them.

    Processes that are started with `resume` share the runs: each trains the next that nobody has, and the
    last one to finish writes what was found.

    Args:
        recipes: one or several, also in one list, or the name or file of a sweep; what is given beside it,
            recipes too, takes the place of its own.
        out: folder of the sweep, `runs/sweeps/NAME` when None; each run's release is in `out/POINT/seed_N`.
        vary: by key of the recipe, e.g. `objective.tau`, a list of values, or values by their labels. A
            single value is the same in all runs.
        seeds: of the trainings; 0, 1, 2 where a sweep has none.
        data: where the recipes' own data lie, for those whose sources need a folder.
        resume: go on with what lies in `out`; finished runs are taken as they are.

    Returns:
        What was found; None if other processes are still training the rest. A `ZooError` tells what is wrong
        before the first training; after an `Interrupted` the same call with `resume` goes on.
    """
    if not (names := listed(recipes)):
        raise RecipeError('sweep: found no recipe, expected one or several; "zoo list" shows them')
    first = names[0]
    name = Path(first.name if isinstance(first, Recipe) else str(first)).name.removesuffix(".yaml")
    about = None if isinstance(first, Recipe) else read_sweep(first)
    if about is not None:
        names = names[1:] or about.recipes
    about = about or SweepFile(question=f"Sweep of {name}", source="zoo sweep", recipes=[name])
    runs = lay_out(names, about.set | dict(vary or {}), about.seeds if seeds is None else seeds)
    return run_all(runs, RUNS / "sweeps" / name if out is None else Path(out), about, data, resume=resume)


def lay_out(
    recipes: Sequence[Recipe | str | Path], vary: Mapping[str, Any], seeds: Sequence[int]
) -> dict[str, Recipe]:
    """Return the recipes of all runs, by `POINT/seed_N`: all points with one seed after another.

    A `ZooError` names the key, value or recipe that is wrong.
    """
    axes = dict[str, dict[str, Any]]()  # of each key the values, by the words that name a point
    for key, given in {"training.seed": seeds, **vary}.items():
        if not (isinstance(given, Mapping | Sequence) and given) or isinstance(given, str):
            raise ZooError(f'vary (--set): "{key}": found {given!r}, expected a list of values')
        last = key.rpartition(".")[2]
        axes[key] = {**given} if isinstance(given, Mapping) else {f"{last}_{each}": each for each in given}
    bases = {Recipe.load(each, ()).name: each for each in recipes}
    runs = dict[str, Recipe]()
    for *chosen, (name, base) in itertools.product(*(axis.items() for axis in axes.values()), bases.items()):
        seed, *words = [word for word, _ in chosen]
        words = [word for word, axis in zip(words, [*axes.values()][1:], strict=True) if len(axis) > 1]
        words += [name] if len(bases) > 1 or not words else []
        point = re.sub(r"[^A-Za-z0-9._+-]+", "_", "-".join(words)).strip("._-")[:100]
        changes = [override_of(key, value, "vary: ") for key, (_, value) in zip(axes, chosen, strict=True)]
        runs[f"{point}/{seed}"] = Recipe.load(base, changes)
    return runs


def run_all(
    runs: Mapping[str, Recipe], out: Path, about: SweepFile, data: Data, *, resume: bool
) -> Sweep | None:
    """Train all runs and write to `out` what was found; None while other processes train some.

    An Interrupted tells of a signal, a ZooError of other data than the recipes' own, or that no run could be
    trained.
    """
    if not (resume or is_unused(out)):
        raise TrainingError(f'"{out}" is not an empty folder; go on by --resume, or choose another --out')
    kinds = {recipe.data.model_dump_json(): recipe for recipe in runs.values()}.values()
    sets = [(recipe, own_root(data, recipe.data)) for recipe in kinds]
    with turn(out / ".data.lock"):  # what one process fetches or decodes, the others find
        for recipe, root in sets:
            open_sets(recipe, root)
    failed = _train(runs, out, data)
    trained = {run: out / run for run in runs if run not in failed and holds_release(out / run)}
    if len(trained) + len(failed) < len(runs):
        return None
    if not trained:
        raise ZooError(f"none of the {len(runs)} runs could be trained: {next(iter(failed.values()))}")
    records = [from_release(hub.open(folder)) for folder in trained.values()]
    if any("features/" in each for each in about.watch.values()):  # of which only a look at images tells
        subjects = diagnose(*trained.values(), out=out / "report", data=data).subjects
        pairs = zip(records, subjects, strict=True)
        records = [record.model_copy(update={"figures": subject.numbers}) for record, subject in pairs]
    names = dict.fromkeys(name for record in records for name in record.figures if _USUAL.fullmatch(name))
    watch = about.watch or {name: name for name in names}
    numbers = pd.DataFrame(
        {"point": run.rpartition("/")[0], "seed": record.seed}
        | {title: _value(each, record.figures) for title, each in watch.items()}
        for run, record in zip(trained, records, strict=True)
    ).set_index(["point", "seed"])
    first, frame = numbers.index[0][0], numbers.groupby(level="point", sort=False).agg(mean_text)
    results = tabulate(records, published_figures() | about.published)
    found = Sweep(frame, differences(numbers, first), results, failed, out)
    parts = [f"# {about.question}", f"Source: {about.source}"]
    for words, frame in (
        ("Mean ± standard deviation over seeds:", found.frame),
        (f"Difference to {first}, paired by seed, [95 % interval]:", found.changes),
    ):
        parts += [words, markdown_table(["point", *frame], frame.reset_index().to_numpy().tolist())]
    parts += [f"Failed: {run}: {why}" for run, why in failed.items()]
    with writing(f'sweep "{out}"'):
        draw_numbers(numbers, out / "sweep.png")
        write_text(out / "sweep.md", "\n\n".join([*parts, "![Each number](sweep.png)"]) + "\n")
    results.write(out)
    return found


def _train(runs: Mapping[str, Recipe], out: Path, data: Data) -> dict[str, str]:
    """Train, one after another, what no other process trains; return why some failed, by `POINT/seed_N`."""
    failed = dict[str, str]()
    say(f"{sum(holds_release(out / run) for run in runs)} of {len(runs)} runs are finished")
    for run in 2 * list(runs):  # again, for what another process gave up
        if run in failed:
            continue
        folder = out / run
        try:  # the system releases a killed process's lock
            with FileLock(folder.with_name(f".{folder.name}.lock"), timeout=0):
                pretrain(runs[run], out=folder, data=data, resume=True)
        except (Timeout, InUse):  # another process is training it
            pass
        except Interrupted:
            raise
        except ZooError as error:
            failed[run] = str(error)
            say(f"{run} failed: {error}")
    return failed


def _value(expression: str, figures: Mapping[str, float]) -> float:
    """Return a number of a run, see `SweepFile.watch`; NaN where it has none."""
    terms = [each.split(" or ") for each in expression.split(" - ")]
    values = [next((figures[name] for name in names if name in figures), math.nan) for names in terms]
    return values[0] - sum(values[1:])
