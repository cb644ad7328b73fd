"""`zoo.sweep`: one training for every value and seed, shared by the processes that are started for it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os.path import isfile
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock, Timeout

from zoo import catalog, hub
from zoo.config import Config, listed, load_yaml, parse
from zoo.data.any_data import folder_for, own_root
from zoo.data.dataset import Root
from zoo.errors import Interrupted, InUse, RecipeError, TrainingError, ZooError
from zoo.experiments.records import from_release
from zoo.experiments.statistics import differences, draw_numbers, means
from zoo.experiments.table import Published, Results, published_figures, tabulate
from zoo.files import RUNS, is_unused, write_text, writing
from zoo.pretraining import open_sets, pretrain
from zoo.recipe import Recipe
from zoo.recipe.overrides import override_of
from zoo.release.card import markdown_table
from zoo.release.format import holds_release
from zoo.report.diagnose import diagnose
from zoo.report.subject import open_subjects
from zoo.training.progress import say
from zoo.training.signals import interruptible


class SweepFile(Config):
    """The keys of `recipes/sweeps/NAME.yaml`."""

    question: str
    source: str
    recipes: list[str] = []
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


@dataclass(frozen=True, eq=False)
class Run:
    """One training: of a value or method, its `point`, and a seed; its release goes to `folder`."""

    point: str
    seed: int
    recipe: Recipe
    folder: Path
    data: Root

    @property
    def id(self) -> str:
        """Its name, `POINT/seed_N`."""
        return f"{self.point}/seed_{self.seed}"


@dataclass(frozen=True)
class Sweep:
    """What a sweep or a comparison found.

    Attributes:
        frame: a row for each point: mean ± standard deviation of each watched number over its seeds.
        changes: how far each point is from the first, see `zoo.experiments.statistics.differences`.
        results: what was measured, as `zoo.table` has it; the records' `figures` have every number.
        failed: why points or runs failed, by `POINT` or `POINT/seed_N`.
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
    data: str | Path | None = None,
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
        data: the folder with the data, for recipes whose sources need one.
        resume: go on with what lies in `out`; finished runs are taken as they are.

    Returns:
        What was found; None if other processes are still training the rest. A `ZooError` tells what is wrong
        before the first training; after an `Interrupted` the same call with `resume` goes on.
    """
    if not (names := listed(recipes)):
        raise RecipeError('sweep: found no recipe, expected one or several; "zoo list" shows them')
    first = names[0]
    name = first.name if isinstance(first, Recipe) else Path(str(first)).name.removesuffix(".yaml")
    about = None if isinstance(first, Recipe) else read_sweep(first)
    if about is not None:
        names = names[1:] or about.recipes
    about = about or SweepFile(question=f"Sweep of {name}", source="zoo sweep")
    out = RUNS / "sweeps" / name if out is None else Path(out)
    points = lay_out(names, about.set | dict(vary or {}))
    own_root(data, *(recipe.data for recipe in points.values()))
    runs = every_seed(points, about.seeds if seeds is None else seeds, out, data)
    return run_all(runs, out, about, resume=resume)


def lay_out(recipes: Sequence[Recipe | str | Path], vary: Mapping[str, Any]) -> dict[str, Recipe]:
    """Return the recipe of each point; raise `ZooError` naming the key, value or recipe that is wrong."""
    if "training.seed" in vary:
        raise ZooError('vary (--set): "training.seed": a sweep has several; give seeds (--seeds)')
    axes = dict[str, dict[str, Any]]()  # values by their labels
    for key, given in vary.items():
        if not (isinstance(given, Mapping | list | tuple) and given):
            raise ZooError(f'vary (--set): "{key}": found {given!r}, expected a list of values')
        axes[key] = {**given} if isinstance(given, Mapping) else {str(each): each for each in given}
    bases = {Recipe.load(each, ()).name: each for each in recipes}
    points = dict[str, Recipe]()
    for *values, (label, base) in itertools.product(*(own.items() for own in axes.values()), bases.items()):
        chosen = list(zip(axes, values, strict=True))
        words = [f"{key.rpartition('.')[2]}_{each}" for key, (each, _) in chosen if len(axes[key]) > 1]
        words += [label] if len(bases) > 1 or not words else []
        point = re.sub(r"[^A-Za-z0-9._+-]+", "_", "-".join(words)).strip("._-")[:100]
        points[point] = Recipe.load(base, [override_of(key, value, "vary: ") for key, (_, value) in chosen])
    return points


def every_seed(points: Mapping[str, Recipe], seeds: Sequence[int], out: Path, data: Root) -> list[Run]:
    """Return the runs, all points with one seed after another."""
    if not isinstance(seeds, list | tuple | range) or not seeds:
        raise ZooError(f"seeds: found {seeds!r}, expected a list, e.g. 0, 1, 2")
    runs = []
    for seed in dict.fromkeys(seeds):
        for point, base in points.items():
            recipe = Recipe.load(base, [f"training.seed={seed}"])
            folder = out / point / f"seed_{seed}"
            runs.append(Run(point, seed, recipe, folder, folder_for(recipe.data, data)))
    return runs


def run_all(
    runs: Sequence[Run],
    out: Path,
    about: SweepFile,
    *,
    resume: bool,
    left_out: Mapping[str, str] | None = None,
) -> Sweep | None:
    """Train all runs and write to `out` what was found; None while other processes train some.

    `left_out` has points without runs, and why. An Interrupted tells of a signal, a ZooError if no run could
    be trained, or a finished one is of another recipe.
    """
    if not (resume or is_unused(out)):
        raise TrainingError(f'"{out}" is not an empty folder; go on by --resume, or choose another --out')
    out.mkdir(parents=True, exist_ok=True)
    with FileLock(out / ".data.lock"):  # what one process fetches or decodes, the others find
        for run in {run.recipe.data.model_dump_json(): run for run in runs}.values():
            open_sets(run.recipe, run.data)
    errors = _train(runs)
    trained = [run for run in runs if holds_release(run.folder)]
    if any(run.id not in errors for run in runs if run not in trained):
        return None
    if not trained:
        raise ZooError(f"none of the {len(runs)} runs could be trained: {next(iter(errors.values()))}")
    subjects = open_subjects([run.folder for run in trained])
    names = dict.fromkeys(name for subject in subjects for name in subject.numbers)
    usual = r"accuracy/[^/]+|recorded/(loss|uniformity|tolerance)"
    watch = about.watch or {name: name for name in names if re.fullmatch(usual, name)}
    if any("features/" in each for each in watch.values()):  # of which only a look at images tells
        folders = [run.folder for run in trained]
        subjects = list(diagnose(folders, out=out / "report", data=trained[0].data).subjects)
    records = [
        from_release(hub.open(run.folder)).model_copy(update={"figures": subject.numbers})
        for run, subject in zip(trained, subjects, strict=True)
    ]
    numbers = pd.DataFrame(
        {"point": run.point, "seed": run.seed}
        | {title: _value(each, record.figures) for title, each in watch.items()}
        for run, record in zip(trained, records, strict=True)
    ).set_index(["point", "seed"])
    first, failed = trained[0].point, {**(left_out or {}), **errors}
    results = tabulate(records, published_figures() | about.published)
    found = Sweep(means(numbers, ".3g"), differences(numbers, first), results, failed, out)
    parts = [f"# {about.question}", f"Source: {about.source}"]
    for words, frame in (
        ("Mean ± standard deviation over seeds:", found.frame),
        (f"Difference to {first}, paired by seed, [95 % interval]:", found.changes),
    ):
        parts += [words, markdown_table(["point", *frame], frame.reset_index().to_numpy().tolist())]
    parts += [f"Failed and left out: {name}: {why}" for name, why in failed.items()]
    with writing(f'sweep "{out}"'):
        draw_numbers(numbers, out / "sweep.png")
        write_text(out / "sweep.md", "\n\n".join([*parts, "![Each number](sweep.png)"]) + "\n")
    results.write(out)
    return found


def _train(runs: Sequence[Run]) -> dict[str, str]:
    """Train, one after another, what no other process trains; return why some failed, by `POINT/seed_N`.

    A run's lock is released by the system when its process ends, however that is.
    """
    failed = dict[str, str]()

    def finished() -> str:
        return f"{sum(holds_release(run.folder) for run in runs)} of {len(runs)} runs are finished"

    say(finished())
    with interruptible(finished):
        for run in 2 * list(runs):  # again, for what another process gave up
            if run.id in failed:
                continue
            lock = FileLock(run.folder.with_name(f".seed_{run.seed}.lock"))
            try:
                lock.acquire(timeout=0)
                pretrain(run.recipe, out=run.folder, data=run.data, resume=True)
            except (Timeout, InUse):  # another process is training it
                continue
            except Interrupted:
                raise
            except ZooError as error:
                if holds_release(run.folder):  # of another recipe
                    raise
                failed[run.id] = str(error)
                say(f"{run.id} failed: {error}")
            finally:
                lock.release()
    return failed


def _value(expression: str, figures: Mapping[str, float]) -> float:
    """Return a number of a run, see `SweepFile.watch`; NaN where it has none."""
    nan = float("nan")
    name, minus, other = expression.partition(" - ")
    if minus:
        return figures.get(name, nan) - figures.get(other, nan)
    return next((figures[each] for each in name.split(" or ") if each in figures), nan)
