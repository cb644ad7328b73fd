"""`zoo.sweep`: one training for every value and seed, shared by one or several processes."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from zoo import catalog, locks
from zoo.config import Config, listed, load_yaml, parse
from zoo.data.any_data import folder_for, own_root
from zoo.errors import RecipeError, ZooError, did_you_mean
from zoo.experiments.records import RunRecord
from zoo.experiments.runs import Run, different, require_unused, train_all
from zoo.experiments.statistics import differences, draw_numbers, means
from zoo.experiments.table import Published, Results, published_figures
from zoo.files import RUNS, is_file, write_text, writing
from zoo.pretraining import open_sets, pretrain
from zoo.recipe import Recipe
from zoo.recipe.overrides import override_of
from zoo.release import Release
from zoo.release.card import markdown_table
from zoo.report.diagnose import diagnose
from zoo.report.subject import open_subjects

_LONGEST = 40  # characters of a label
_USUAL = re.compile(
    r"accuracy/[^/]+|recorded/(loss|uniformity|tolerance)"
)  # shown where nothing is asked for


class SweepFile(Config):
    """The keys of `recipes/sweeps/NAME.yaml`."""

    question: str
    source: str
    recipes: list[str]
    set: dict[str, Any]
    """By key of the recipe a list of values, or of values by their labels. One value is an override."""
    seeds: list[int]
    watch: dict[str, str]
    """By title a number out of `RunRecord.figures`: `NAME`, `NAME - NAME`, or `NAME or NAME`, where the
    second stands in for the first in runs that lack it."""
    found: str | None
    """What was found, with date and machine."""
    published: dict[str, Published] = {}
    """By recipe."""


def is_sweep(name: str | Path) -> bool:
    """Whether `name` is a shipped sweep, or a file that asks a question, as no recipe does."""
    if is_file(name):
        return re.search(r"^question:", catalog.recipe_text(Path(name)), re.MULTILINE) is not None
    return str(name) in catalog.list_sweeps()


def read_sweep(name: str | Path) -> SweepFile:
    """Read a sweep by name or from a file.

    Raises:
        RecipeError: naming the file, and the key that is wrong.
    """
    path = Path(name) if is_file(name) else catalog.sweep_path(str(name))
    return parse(SweepFile, load_yaml(catalog.recipe_text(path), path.name), path.name)


@dataclass(frozen=True)
class Sweep:
    """What a sweep found.

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
    data: str | Path | None = None,
    resume: bool = False,
) -> Sweep | None:
    """Train a recipe for every combination of values, over seeds, and show what moves with them.

    Several processes (torchrun's, an array job's, or some started by hand with `resume`) share the runs: each
    trains the next that nobody has, alone on its own GPU, and the last one to finish writes what was found.

    Args:
        recipes: one or several to compare, or the name or file of a sweep, which has all but `out`; what is
            given beside it takes the place of its own. Recipes of the sweep after it: these alone. They may
            come as one list.
        out: folder of the sweep, `runs/sweeps/NAME` when None; each run's release is in `out/POINT/seed_N`.
        vary: by key of the recipe, e.g. `objective.tau`, a list of values, or values by their labels. A
            single value is the same in all runs. A sweep's own labels stand for their values.
        seeds: of the trainings; 0, 1, 2 where a sweep has none.
        data: the folder with the data, for recipes whose sources need one.
        resume: go on with what lies in `out`; finished runs are taken as they are.

    Returns:
        What was found; None if other processes are still training the rest.

    Raises:
        Interrupted: on a signal; the same call with `resume` goes on.
        ZooError: for anything wrong with recipes, values, seeds, data or folder, before the first training;
            if no run could be trained.
    """
    if not isinstance(vary, Mapping | None):
        raise ZooError(
            f'vary: found {vary!r}, expected lists of values by their keys, e.g. {{"objective.tau": [0.1]}}'
        )
    names = listed(recipes)
    if not names:
        raise RecipeError('sweep: found no recipe, expected one or several; "zoo list" shows them')
    tags = [each.name if isinstance(each, Recipe) else Path(str(each)).name for each in names]
    out = RUNS / "sweeps" / "-and-".join(tags)[:100].removesuffix(".yaml") if out is None else Path(out)
    values, written = dict(vary or {}), None
    if not isinstance(names[0], Recipe) and is_sweep(names[0]):
        written = read_sweep(names[0])
        values = written.set | {key: _own(given, written.set.get(key)) for key, given in values.items()}
        names, seeds = _of(written, tags[1:]), written.seeds if seeds is None else seeds
    elif tags[0] not in catalog.list_recipes() and (hint := did_you_mean(tags[0], catalog.list_sweeps())):
        raise RecipeError(f'neither a recipe nor a sweep: "{tags[0]}".{hint}')
    runs = lay_out(names, values, (0, 1, 2) if seeds is None else seeds, out)
    require_unused(out, resume=resume)
    different = {run.recipe.data.model_dump_json(): run.recipe for run in runs}
    own_root(data, *(recipe.data for recipe in different.values()))
    with locks.turn(out / ".data.lock"):  # what one process fetches or decodes, the others find
        for recipe in different.values():
            open_sets(recipe, folder_for(recipe.data, data))

    def train(run: Run) -> Release:
        return pretrain(run.recipe, out=run.folder, data=folder_for(run.recipe.data, data), resume=True)

    trained = train_all(runs, train)
    return None if trained is None else _conclude(*trained, written, data, out)


def _own(given: Any, own: Any) -> Any:
    """Return values for a key of which a sweep has labelled values, `own`: labels stand for theirs."""
    if not isinstance(own, Mapping) or not isinstance(given, list | tuple):
        return given
    return {str(each): own[each] if isinstance(each, str) and each in own else each for each in given}


def _of(written: SweepFile, wanted: Sequence[str]) -> list[str]:
    """Return the recipes of a sweep that are wanted, all where none is named."""
    for name in wanted:
        if name not in written.recipes:
            hint = did_you_mean(name, written.recipes)
            raise RecipeError(
                f'"{name}" is no recipe of this sweep.{hint} It has {", ".join(written.recipes)}'
            )
    return [name for name in written.recipes if not wanted or name in wanted]


def lay_out(
    recipes: Sequence[Recipe | str | Path], vary: Mapping[str, Any], seeds: Sequence[int], out: Path
) -> list[Run]:
    """Return the runs, all points with one seed after another, and check each one's recipe.

    Raises:
        ZooError: naming the key, value or recipe that is wrong.
    """
    if "training.seed" in vary:
        raise ZooError('vary (--set): "training.seed": a sweep has several; give seeds (--seeds)')
    axes = {key: _labelled(key, given) for key, given in vary.items()}
    names = [Recipe.load(each, ()).name for each in recipes]
    tags = [name.partition(".")[2] for name in names]
    bases = dict(zip(tags if len({*tags}) == len(tags) else names, recipes, strict=True))
    runs = []
    for seed in different(seeds):
        for *values, (label, base) in itertools.product(
            *(own.items() for own in axes.values()), bases.items()
        ):
            chosen = list(zip(axes, values, strict=True))
            changes = [override_of(key, value, "vary (--set): ") for key, (_, value) in chosen]
            words = [f"{key.rpartition('.')[2]}_{each}" for key, (each, _) in chosen if len(axes[key]) > 1]
            words += [label] if len(bases) > 1 or not words else []
            point = re.sub(r"[^A-Za-z0-9._+-]+", "_", "-".join(words)).strip("._-")[:100]
            recipe = Recipe.load(base, [*changes, f"training.seed={seed}"])
            runs.append(Run(point, seed, recipe, out / point / f"seed_{seed}"))
    return runs


def _labelled(key: str, given: Any) -> dict[str, Any]:
    """Return the values of a key by their labels."""
    if isinstance(given, Mapping) and given:
        return {str(label): value for label, value in given.items()}
    if not isinstance(given, list | tuple) or not given:
        raise ZooError(
            f'vary (--set): "{key}": found {given!r}, expected a list of values, or values by their labels'
        )
    values = {}
    for number, value in enumerate(given):
        label = value if isinstance(value, str) else json.dumps(value, default=str)
        values[label if len(label) <= _LONGEST else f"value_{number}"] = value
    return values


def _conclude(
    trained: Mapping[Run, RunRecord],
    failed: dict[str, str],
    written: SweepFile | None,
    data: str | Path | None,
    out: Path,
) -> Sweep:
    """Compare all finished runs, and write what was found."""
    folders = [run.folder for run in trained]
    subjects = open_subjects(folders)
    names = dict.fromkeys(name for subject in subjects for name in subject.numbers)
    watch = written.watch if written else {name: name for name in names if _USUAL.fullmatch(name)}
    if any("features/" in each for each in watch.values()):  # of which only a look at images tells
        read = data if any(folder_for(run.recipe.data, data) for run in trained) else None
        device = next(iter(trained)).recipe.training.device
        with locks.turn(out / ".report.lock"):
            subjects = list(diagnose(*folders, out=out / "report", data=read, device=device).subjects)
    records, rows = list[RunRecord](), list[dict[str, Any]]()
    for (run, record), subject in zip(trained.items(), subjects, strict=True):
        records.append(record.model_copy(update={"figures": subject.numbers}))
        watched = {title: _value(each, subject.numbers) for title, each in watch.items()}
        rows.append({"point": run.point, "seed": run.seed, **watched})
    numbers = pd.DataFrame(rows).set_index(["point", "seed"])
    results = Results.of(records, written.published if written else published_figures())
    found = Sweep(means(numbers, ".3g"), differences(numbers, rows[0]["point"]), results, failed, out)
    parts = [f"# {written.question}", f"Source: {written.source}"] if written else ["# Sweep"]
    for words, frame in (
        ("Mean ± standard deviation over seeds:", found.frame),
        (f"Difference to {rows[0]['point']}, paired by seed, [95 % interval]:", found.changes),
    ):
        parts += [words, markdown_table(["point", *frame], frame.reset_index().to_numpy().tolist())]
    parts += [f"Failed and left out: {name}: {why}" for name, why in failed.items()]
    with writing(f'sweep "{out}"'):
        draw_numbers(numbers, out / "sweep.png")
        write_text(out / "sweep.md", "\n\n".join([*parts, "![Each number](sweep.png)"]) + "\n")
    results.write(out)
    return found


def _value(expression: str, figures: Mapping[str, float]) -> float:
    """Return a number of a run, see `SweepFile.watch`; NaN where it has none."""
    nan = float("nan")
    name, minus, other = expression.partition(" - ")
    if minus:
        return figures.get(name, nan) - figures.get(other, nan)
    return next((figures[each] for each in name.split(" or ") if each in figures), nan)
