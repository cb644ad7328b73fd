"""`zoo.sweep`, `zoo.compare`: train all values or methods with several seeds; processes may share runs."""

from __future__ import annotations

import itertools
import math
import re
import shutil
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
from zoo.errors import Interrupted, InUse, RecipeError, TrainingError, ZooError, few
from zoo.evaluation.metrics import mean_interval
from zoo.experiments.pretraining import open_sets, plan_finetuning, pretrain
from zoo.experiments.records import from_release
from zoo.experiments.table import Results, mean_text, tabulate
from zoo.files import RUNS, is_unused, read_text, write_text, writing
from zoo.recipe import Recipe
from zoo.recipe.overrides import PLAIN, Overrides, as_overrides
from zoo.release import Release
from zoo.release.card import markdown_table
from zoo.release.format import holds_release
from zoo.release.schema import ACCURACIES
from zoo.report.diagnose import diagnose
from zoo.report.pictures import draw_numbers
from zoo.training.progress import say
from zoo.training.stages import first_stage

_BY_NAME = (
    *("cross_entropy", "balanced_softmax", "logit_adjustment", "post_hoc_logit_adjustment"),
    *("class_balanced_sampling", "crt", "tau_normalized", "lws", "ldam_drw"),
)
METHODS: dict[str, Any] = {name: name for name in _BY_NAME} | {
    "from_centers": {"name": "from_centers", "prior": False},
    "from_centers_prior": {"name": "from_centers", "prior": True},
    "nearest_center": {"name": "nearest_center", "centers": "learned", "similarity": "logit"},
    "nearest_mean": {"name": "nearest_center", "centers": "means", "similarity": "cosine"},
}
"""Default values of the recipe's key `method` in a comparison, by row name."""

_DECIDED = ("method", "evaluation", "training.seed", "init.head")  # set by a comparison itself
_WATCH = {
    title: f"accuracy/classifier/{name}".removesuffix("/accuracy")
    for name, title in {**ACCURACIES, "calibration_error": "calibration error"}.items()
}
_USUAL = re.compile(r"accuracy/[^/]+|recorded/(loss|uniformity|tolerance)")


class SweepFile(Config):
    """The keys of `recipes/sweeps/NAME.yaml`."""

    question: str
    source: str
    recipes: Annotated[list[str], Field(min_length=1)]
    set: dict[str, Any] = {}
    """By key of the recipe: a list of values, or values by label. A single value is an override."""
    seeds: list[int] = [0, 1, 2]
    watch: dict[str, str] = {}
    """By title, a number in `RunRecord.figures`: `NAME`, `NAME - NAME`, or `NAME or NAME`, which uses the
    second in runs that lack the first. By default: accuracies, loss, uniformity, tolerance."""
    found: str | None = None


def read_sweep(name: str | Path) -> SweepFile | None:
    """Read a sweep by name or from a file; None if it has no `question`, like a recipe."""
    path = Path(name) if isfile(name) else catalog.sweep_path(str(name))
    plain = load_yaml(read_text(path, RecipeError), path.name) if isfile(path) else None
    return parse(SweepFile, plain, path.name) if "question" in (plain or ()) else None


@dataclass(frozen=True)
class Sweep:
    """The result of a sweep or comparison.

    Attributes:
        frame: a row for each point: mean ± standard deviation of each watched number over its seeds.
        changes: the difference of each point from the first, see `differences`.
        results: the measurements as in `zoo.table`; the records' `figures` have every number.
        failed: the errors of failed runs, by `POINT/seed_N`.
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
    """Train a recipe with every combination of values, over seeds, and compare the results.

    Processes started with `resume` share the runs: each trains the next one that nobody has taken, and the
    last one to finish writes the results.

    Args:
        recipes: one or several, also in one list, or the name or file of a sweep; other arguments, further
            recipes included, replace the sweep's own.
        out: folder of the sweep, `runs/sweeps/NAME` when None; each run's release is in `out/POINT/seed_N`.
        vary: by key of the recipe, e.g. `objective.tau`: a list of values, or values by label; a list of one
            applies to all runs.
        seeds: of the trainings; 0, 1, 2 unless a sweep has its own.
        data: the location of the recipes' own data, for sources that need a folder.
        resume: continue in `out`; finished runs are kept.

    Returns:
        The results; None if other processes are still training the rest. ZooError says what is wrong before
        the first training; after an `Interrupted` the same call with `resume` continues.
    """
    if not (names := listed(recipes)):
        raise RecipeError('sweep: found no recipe, expected one or several; "zoo list" shows them')
    first = names[0]
    name = Path(first.name if isinstance(first, Recipe) else str(first)).name.removesuffix(".yaml")
    about = None if isinstance(first, Recipe) else read_sweep(first)
    names = names if about is None else names[1:] or about.recipes
    about = about or SweepFile(question=f"Sweep of {name}", source="zoo sweep", recipes=[name])
    runs = lay_out(names, about.set | dict(vary or {}), about.seeds if seeds is None else seeds)
    return run_all(runs, RUNS / "sweeps" / name if out is None else Path(out), about, data, resume=resume)


def compare(
    recipe: Recipe | str | Path | None = None,
    *,
    init: str | Path | Release,
    out: str | Path | None = None,
    data: Data = None,
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    resume: bool = False,
    overrides: Overrides = (),
) -> Sweep | None:
    """Fine-tune a release in several ways, over seeds, and compare the classifiers on the test split.

    This is a sweep over the recipe's key `method`. Nothing is selected on the test split: the last epoch
    counts, or the one chosen on the validation split of `training.early_stopping`.

    `methods` are names in `METHODS` or values of the recipe's `method`; all are compared with the first.
    `out` is by default `runs/NAME_compared`, with the name of `init`. Other arguments, errors and the result
    are those of `finetune` and `sweep`; `failed` also has methods that do not suit `init`.
    """
    start = init.name if isinstance(init, Release) else Path(hub.named(init)).name
    changes = as_overrides(overrides)
    if decided := [key for key, _ in changes if key.startswith(_DECIDED)]:
        found = f'overrides (--set): "{decided[0]}"'
        raise ZooError(f"{found}: the comparison sets it; give methods, or seeds")
    base, root = plan_finetuning(recipe, init=init, head="fresh", data=data, overrides=[*PLAIN, *changes])
    chosen = {str(each): METHODS.get(str(each), each) for each in (METHODS if methods is None else methods)}
    vary = {"method": chosen, "evaluation": [[{"protocol": "classifier"}]]}
    question = f"{start}: {base.backbone.arch}, {base.training.epochs} epochs, percent on the test split"
    about = SweepFile(question=question, source="zoo compare", recipes=[base.name], watch=_WATCH)
    out = RUNS / f"{start}_compared" if out is None else Path(out)
    return run_all(lay_out([base], vary, seeds), out, about, root, resume=resume)


def lay_out(
    recipes: Sequence[Recipe | str | Path], vary: Mapping[str, Any], seeds: Sequence[int]
) -> dict[str, Recipe]:
    """Return the recipes of all runs by `POINT/seed_N`, ordered by seed, then by point."""
    if "training.seed" in vary:
        raise ZooError('vary (--set): "training.seed": a sweep has several; give seeds (--seeds)')
    axes = dict[str, dict[str, Any]]()  # by key: its values, by the words that name a point
    for key, given in {"training.seed": seeds, **vary}.items():
        if not (isinstance(given, Mapping | Sequence) and given) or isinstance(given, str):
            raise ZooError(f'vary (--set): "{key}": found {given!r}, expected a list of values')
        last = key.rpartition(".")[2]
        axes[key] = {**given} if isinstance(given, Mapping) else {f"{last}_{each}": each for each in given}
    bases = {Recipe.load(each).name: each for each in recipes}
    if len(bases) < len(recipes):
        raise ZooError(f"recipes: found {len(recipes)}, but only the names {few(bases)}; give each its own")
    runs = dict[str, Recipe]()
    for *chosen, (name, base) in itertools.product(*(axis.items() for axis in axes.values()), bases.items()):
        seed, *words = [word for word, _ in chosen]
        words = [word for word, axis in zip(words, [*axes.values()][1:], strict=True) if len(axis) > 1]
        words += [name] if len(bases) > 1 or not words else []
        point = re.sub(r"[^A-Za-z0-9._+-]+", "_", "-".join(words)).strip("._-")[:100]
        changes = {key: value for key, (_, value) in zip(axes, chosen, strict=True)}
        if f"{point}/{seed}" in runs:
            raise ZooError(f'vary (--set): found two points called "{point}"; name values as {{WORD: VALUE}}')
        runs[f"{point}/{seed}"] = Recipe.load(base, as_overrides(changes, "vary: "))
    return runs


def run_all(
    runs: Mapping[str, Recipe], out: Path, about: SweepFile, data: Data, *, resume: bool
) -> Sweep | None:
    """Train all runs and write the results to `out`; None while other processes are still training."""
    if not (resume or is_unused(out)):
        raise TrainingError(f'"{out}" is not an empty folder; go on by --resume, or choose another --out')
    kinds = {recipe.data.model_dump_json(): recipe for recipe in runs.values()}.values()
    sets = [(recipe, own_root(data, recipe.data)) for recipe in kinds]
    out.mkdir(parents=True, exist_ok=True)
    with FileLock(out / ".data.lock"):  # other processes find what the first fetched or decoded
        for recipe, root in sets:
            open_sets(recipe, root)
    failed = _train(runs, out, data)
    trained = {run: out / run for run in runs if run not in failed and holds_release(out / run)}
    if len(trained) + len(failed) < len(runs):
        return None
    if not trained:
        raise ZooError(f"none of the {len(runs)} runs could be trained: {next(iter(failed.values()))}")
    records = [from_release(hub.open(folder)) for folder in trained.values()]
    if any("features/" in each for each in about.watch.values()):  # which need images to be encoded
        subjects = diagnose(*trained.values(), out=out / "report", data=data).subjects
        for record, subject in zip(records, subjects, strict=True):
            record.figures.update(subject.numbers)
    watch = about.watch or {n: n for record in records for n in record.figures if _USUAL.fullmatch(n)}
    numbers = pd.DataFrame(
        {"point": run.rpartition("/")[0], "seed": record.seed}
        | {title: _value(each, record.figures) for title, each in watch.items()}
        for run, record in zip(trained, records, strict=True)
    ).set_index(["point", "seed"])
    frame = numbers.groupby(level="point", sort=False).agg(mean_text)
    points = (run.rpartition("/")[0] for run in runs)  # in order, even if the first run failed
    first = next(point for point in points if point in frame.index)
    found = Sweep(frame, differences(numbers, first), tabulate(records), failed, out)
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
    found.results.write(out)
    return found


def _train(runs: Mapping[str, Recipe], out: Path, data: Data) -> dict[str, str]:
    """Train the runs that no other process trains; return the errors of failed ones, by `POINT/seed_N`."""
    failed, begun = dict[str, str](), dict[str, Path]()
    say(f"{sum(holds_release(out / run) for run in runs)} of {len(runs)} runs are finished")
    for run in (each for each in 2 * list(runs) if each not in failed):  # again: others may give up
        recipe, folder, own = runs[run], out / run, out / run / "run" / "stage-1"
        try:  # the OS releases a killed process's lock
            with FileLock(folder.with_name(f".{folder.name}.lock"), timeout=0):
                first = first_stage(recipe).to_yaml()
                if first in begun and not own.exists() and not holds_release(folder):  # as of cRT and LWS
                    shutil.copytree(begun[first], own.with_name(".stage-1"), dirs_exist_ok=True).rename(own)
                if not holds_release(folder):
                    say(f"training {run}")
                pretrain(recipe, out=folder, data=data, resume=True)
            if own.exists():
                begun[first] = own
        except (Timeout, InUse):  # another process is training it
            pass
        except Interrupted:
            raise
        except ZooError as error:
            failed[run] = str(error)
            say(f"{run} failed: {error}")
    return failed


def differences(numbers: pd.DataFrame, to: str) -> pd.DataFrame:
    """Return the difference of each `point` from the point `to`, mean over `seed`, e.g. `-2.8 [-5.6, 0.0]`.

    Runs with the same seed share the order of images and the initial weights. The 95 % interval of the mean
    (Student's t) is in brackets, if there are several seeds with unequal differences. Intervals are not
    corrected for the number of comparisons. If one contains 0, the two points may be equal.
    """
    base = numbers.xs(to, level="point")

    def cell(column: pd.Series) -> str:
        apart = (column.droplevel("point") - base[column.name]).dropna().round(9)
        if not len(apart) or column.index.get_level_values("point")[0] == to:
            return "-"
        mean, half = mean_interval(list(apart))
        return f"{mean:z.3g}" + ("" if half is None else f" [{mean - half:.3g}, {mean + half:.3g}]")

    return numbers.groupby(level="point", sort=False).agg(cell)


def _value(expression: str, figures: Mapping[str, float]) -> float:
    """Return a number of a run, see `SweepFile.watch`; NaN if it has none."""
    terms = [each.split(" or ") for each in expression.split(" - ")]
    values = [next((figures[name] for name in names if name in figures), math.nan) for names in terms]
    return values[0] - sum(values[1:])
