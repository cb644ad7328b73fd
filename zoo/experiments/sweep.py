"""`zoo.sweep`: one training for every value and seed, shared by one or several processes."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from filelock import FileLock, Timeout

from zoo import catalog, locks
from zoo.api.given import listed
from zoo.api.pretraining import open_sets, pretrain
from zoo.data.any_data import folder_for, own_root, reads_folder
from zoo.errors import Interrupted, InUse, RecipeError, ZooError, did_you_mean
from zoo.experiments.grid import (
    Run,
    checked_seeds,
    lay_out,
    own_labels,
    require_same,
    require_unused,
    title,
    words,
)
from zoo.experiments.plot import plot_sweep
from zoo.experiments.reading import RESULTS, read_results
from zoo.experiments.record import RunRecord, from_release
from zoo.experiments.statistics import duration, figures, paired, summarize
from zoo.experiments.sweep_file import SweepFile, Watched, is_sweep, published_figures, read_sweep
from zoo.experiments.table import Results
from zoo.files import RUNS, is_file, write_text, writing
from zoo.launch import alone, handed_on, job, launched, local_rank, rank, restarted
from zoo.locks import turn
from zoo.markdown import markdown_table
from zoo.recipe import Recipe
from zoo.release import Release
from zoo.release.format import holds_release
from zoo.report.diagnose import Report, diagnose
from zoo.report.subject import open_subjects
from zoo.training import pick_device
from zoo.training.progress import say
from zoo.training.signals import interruptible

KINDS = (
    *("recorded", "beginning", "deviation", "relative_deviation", "unsteadiness"),
    *("features", "balance", "accuracy"),
)
"""What the names of a run's figures begin with."""

_USUAL = ("recorded/uniformity", "recorded/tolerance", "features/uniformity", "features/tolerance")
_MOST = 10  # numbers that are shown without being asked for


@dataclass(frozen=True)
class Sweep:
    """What a sweep found.

    Attributes:
        frame: a row for each point: mean ± standard deviation of each watched number over its seeds.
        changes: each number at the last value of the first axis minus that at the first, paired by seed.
        results: what was measured, as `zoo.table` has it; the records' `figures` have every number.
        failed: why runs failed, by `POINT/seed_N`.
        folder: with `sweep.md`, `sweep.png`, `sweep.svg`, `results.*`, the runs' releases and `report/`.
        report: of `zoo.diagnose`, over all finished runs; None where the sweep wants none, or has it already.
    """

    frame: pd.DataFrame
    changes: pd.DataFrame
    results: Results
    failed: dict[str, str]
    folder: Path
    report: Report | None


def sweep(
    *recipes: Recipe | str | Path | Sequence[Recipe | str | Path],
    out: str | Path | None = None,
    vary: Mapping[str, Any] | None = None,
    seeds: Sequence[int] | None = None,
    watch: Sequence[str] | None = None,
    data: str | Path | None = None,
    resume: bool = False,
) -> Sweep | None:
    """Train a recipe for every combination of values, over seeds, and show what moves with them.

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
        watch: names of figures, e.g. `features/uniformity`; the usual ones when None.
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
    written = _file_of(names)
    out = RUNS / "sweeps" / _default(names) if out is None else Path(out)
    runs = _runs(names, written, dict(vary or {}), seeds, out)
    watched = _watched(watch, written)
    beside = published_figures(None) if written is None else written.published
    _check(runs, data, out, resume=resume or restarted() or launched() > 1 or job() is not None)
    who = f"rank {rank()}: " if launched() > 1 else ""
    say(f'{len(runs)} runs into "{out}", {_finished(runs)} of them finished')
    take_gpu()
    with interruptible(lambda: f"{_finished(runs)} of {len(runs)} runs are finished", once=not handed_on()):
        with alone():
            failed = train_all(runs, data, who)
        if _finished(runs) + len(failed) < len(runs):
            return None
        with turn(out / ".report.lock"):
            return _conclude(runs, written, watched, beside, failed, data, out)


def train_all(runs: Sequence[Run], data: str | Path | None, who: str = "") -> dict[str, str]:
    """Train, one after another, what nobody has trained or is training; return why runs failed, by id.

    A run's lock is released by the system when its process ends, however that is.

    Raises:
        Interrupted: on a signal.
    """
    failed, took = dict[str, str](), list[float]()
    progress = True
    while progress:
        progress = False
        for number, run in enumerate(runs, 1):
            lock = FileLock(run.folder.parent / f".seed_{run.seed}.lock")
            if run.id in failed or holds_release(run.folder):
                continue
            try:
                locked = locks.acquire(lock, timeout=0)
            except Timeout:  # another process is training it
                continue
            began = time.monotonic()
            try:
                if not holds_release(run.folder):
                    say(f"{who}{number} of {len(runs)}: {words(run)}, seed {run.seed}")
                    pretrain(run.recipe, out=run.folder, data=folder_for(run.recipe.data, data), resume=True)
                    progress = True
            except Interrupted:
                raise
            except InUse:  # by a training that was started by itself
                continue
            except ZooError as error:
                failed[run.id] = str(error)
                say(f"{who}{words(run)}, seed {run.seed} failed: {error}")
            finally:
                if locked:
                    lock.release()
            took.append(time.monotonic() - began)
            left = len(runs) - _finished(runs) - len(failed)
            say(f"{who}{left} left: {duration(left * sum(took) / len(took))} by one process")
    return failed


def take_gpu() -> None:
    """Compute on the GPU with this process's number; where there are fewer, several share one."""
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank() % torch.cuda.device_count())


def _finished(runs: Sequence[Run]) -> int:
    return sum(holds_release(run.folder) for run in runs)


def _default(names: Sequence[Recipe | str | Path]) -> str:
    """Name a sweep by its recipes, or by the file that it is."""
    found = [n.name if isinstance(n, Recipe) else re.sub(r"\.ya?ml$", "", Path(str(n)).name) for n in names]
    return "-and-".join(found)[:100]


def _file_of(names: Sequence[Recipe | str | Path]) -> SweepFile | None:
    """Return the sweep that is meant, if it is one."""
    files = [each for each in names if not isinstance(each, Recipe) and is_sweep(each)]
    if files and (len(files) > 1 or files[0] is not names[0]):
        raise RecipeError(
            f'sweep: found "{files[-1]}" among {len(names)} names, expected one sweep, before those of its '
            "recipes that are wanted"
        )
    if not files and len(names) == 1 and not isinstance(names[0], Recipe):
        name = str(names[0])
        hint = did_you_mean(name, catalog.list_sweeps())
        if hint and not is_file(name) and name not in catalog.list_recipes():
            raise RecipeError(f'neither a recipe nor a sweep: "{name}".{hint}')
    return read_sweep(files[0]) if files else None


def _runs(
    names: Sequence[Recipe | str | Path],
    written: SweepFile | None,
    vary: dict[str, Any],
    seeds: Sequence[int] | None,
    out: Path,
) -> list[Run]:
    """Lay out the runs in the order in which they are trained."""
    if written is None:
        seeds = checked_seeds((0, 1, 2) if seeds is None else seeds)
    else:
        unknown = next((name for name in names[1:] if name not in written.recipes), None)
        if unknown is not None:
            hint = did_you_mean(unknown, written.recipes)
            raise RecipeError(
                f'"{unknown}" is no recipe of this sweep.{hint} It has {", ".join(written.recipes)}'
            )
        chosen = {key: own_labels(key, values, written.set.get(key)) for key, values in vary.items()}
        vary = {**written.set, **chosen}
        names = [name for name in written.recipes if not names[1:] or name in names]
        seeds = checked_seeds(written.seeds if seeds is None else seeds)
    runs = lay_out(names, vary, seeds, out)
    if written is None or written.order == "seeds":  # a stopped sweep has whole sets of points
        runs.sort(key=lambda run: seeds.index(run.seed))
    return runs


def _watched(names: Sequence[str] | None, written: SweepFile | None) -> list[Watched] | None:
    """Return the numbers that are asked for, with what a sweep says of them; None leaves the choice."""
    own = written.watch if written else []
    known = {each.number: each for each in own if each.minus is None}
    if names is None:
        return own or None
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ZooError(f"watch: found {names!r}, expected a list of names, e.g. features/uniformity")
    for name in names:
        kind, _, rest = name.partition("/")
        if kind not in KINDS or not rest:
            raise ZooError(
                f'watch: found "{name}", expected one of {", ".join(KINDS)} and a name, e.g. '
                f"features/uniformity.{did_you_mean(kind, KINDS)}"
            )
    return [known.get(name) or Watched(number=name, title=name) for name in names]


def _check(runs: Sequence[Run], data: str | Path | None, out: Path, *, resume: bool) -> None:
    """Refuse, before the first training, a folder that is in use, a device or data that are not there."""
    if not resume:
        require_unused(out, "sweep")
    for device in dict.fromkeys(run.recipe.training.device for run in runs):
        try:
            pick_device(device)
        except RecipeError as error:
            raise RecipeError(f"{error}. For a sweep that is --set training.device=cpu") from None
    own_root(data, *(run.recipe.data for run in runs))
    different = {run.recipe.data.model_dump_json(): run.recipe for run in runs}
    with turn(out / ".data.lock"):  # what one process fetches or decodes, the others find
        images = {
            key: open_sets(recipe, folder_for(recipe.data, data))[0].describe()["sha256"]
            for key, recipe in different.items()
        }
    for run in runs:
        require_same(run.folder, images[run.recipe.data.model_dump_json()])


def _conclude(
    runs: Sequence[Run],
    written: SweepFile | None,
    watched: Sequence[Watched] | None,
    beside: Mapping[str, Any],
    failed: Mapping[str, str],
    data: str | Path | None,
    out: Path,
) -> Sweep:
    """Compare all finished runs, and write what was found."""
    done = [run for run in runs if holds_release(run.folder)]
    if not done:
        raise ZooError(f"none of the {len(runs)} runs could be trained: {next(iter(failed.values()))}")
    records = [from_release(Release.at(run.folder), run.id) for run in done]
    earlier = read_results(out / RESULTS) if is_file(out / RESULTS) else []
    known = {record.identity: record.figures for record in earlier}
    report = None
    if {record.identity for record in records} != {*known}:
        folders = [run.folder for run in done]
        if written is None or written.report:
            read = data if any(reads_folder(run.recipe.data) for run in done) else None
            report = diagnose(*folders, out=out / "report", data=read, device=done[0].recipe.training.device)
        subjects = report.subjects if report else open_subjects(folders)
        known = {r.identity: subject.numbers for r, subject in zip(records, subjects, strict=True)}
    records = [record.model_copy(update={"figures": known[record.identity]}) for record in records]
    table = numbers(done, records, watched or _usual(records))
    found = Sweep(
        points(table), changes(table, watched or ()), Results.of(records, beside), dict(failed), out, report
    )
    with writing(f'sweep "{out}"'):
        plot_sweep(table, [out / "sweep.png", out / "sweep.svg"])
        write_text(out / "sweep.md", _markdown(found, written, runs))
    found.results.write(out)
    return found


def _usual(records: Sequence[RunRecord]) -> list[Watched]:
    """Return what is shown where nothing is asked for: accuracies and the usual measures."""
    names = dict.fromkeys(name for record in records for name in record.figures)
    accuracies = [name for name in names if name.startswith("accuracy/") and name.count("/") == 1]
    chosen = [*accuracies, *(name for name in _USUAL if name in names)][:_MOST]
    return [Watched(number=name, title=name) for name in chosen]


def numbers(runs: Sequence[Run], records: Sequence[RunRecord], watched: Sequence[Watched]) -> pd.DataFrame:
    """Return the watched numbers of each run by point, axis labels and seed; NaN where it has none."""
    rows = []
    for run, record in zip(runs, records, strict=True):
        row: dict[str, Any] = {"point": words(run), **run.labels, "seed": run.seed}
        for each in watched:
            value = record.figures.get(each.number, record.figures.get(each.instead or "", float("nan")))
            row[each.title] = value - (record.figures.get(each.minus, float("nan")) if each.minus else 0.0)
        rows.append(row)
    keys = ["point", *runs[0].labels, "seed"]
    return pd.DataFrame(rows).set_index(keys)


def points(table: pd.DataFrame) -> pd.DataFrame:
    """Return mean ± standard deviation of each number by point."""

    def cell(values: pd.Series) -> str:
        there = values.dropna()
        if not len(there):
            return "-"
        found = summarize(list(there))
        spread = "" if found.deviation is None else f" ± {figures(found.deviation)}"
        return f"{figures(found.mean)}{spread}" + (f" (n={len(there)})" if len(there) < len(values) else "")

    return table.groupby(level="point", sort=False).agg(cell)


def changes(table: pd.DataFrame, watched: Sequence[Watched]) -> pd.DataFrame:
    """Return what moves between the ends of the first axis, paired by seed, for each value of the others.

    Its columns: number, between, difference (mean), 95 % interval over seeds (Student's t), and what the
    source expects. The intervals are of one comparison each: nothing corrects for their number.
    """
    axes = [str(name) for name in table.index.names[1:-1]]
    expects = {each.title: each.expects or "" for each in watched}
    lines = []
    plain = table.reset_index()
    parts = plain.groupby(axes[1:], sort=False) if axes[1:] else [((), plain)]
    for others, part in parts if axes else []:
        ends = list(dict.fromkeys(part[axes[0]]))
        for name in table.columns:
            by_seed = part.pivot(index="seed", columns=axes[0], values=name)[[ends[0], ends[-1]]].dropna()
            if len(ends) < 2 or not len(by_seed):
                continue
            found = paired(list(by_seed[ends[-1]]), list(by_seed[ends[0]]))
            between = f"{title(axes[0], axes)} {ends[0]} to {ends[-1]}"
            lines.append(
                {
                    "number": name,
                    "between": ", ".join([between, *others]),
                    "difference": f"{found.mean:+.3g}",
                    "95 % interval": found.interval,
                    "expected": expects.get(name, ""),
                }
            )
    return pd.DataFrame(lines)


def _markdown(found: Sweep, written: SweepFile | None, runs: Sequence[Run]) -> str:
    names = dict.fromkeys(run.recipe.name for run in runs)
    parts = [f"# {written.question if written else 'Sweep of ' + ', '.join(names)}"]
    parts += [f"Source: {written.source}"] if written else []
    frame = found.frame.reset_index()
    parts.append(
        "Mean ± standard deviation over seeds:\n\n"
        + markdown_table(list(frame.columns), frame.to_numpy().tolist())
    )
    if len(found.changes):
        parts.append(
            "Differences between the ends, paired by seed, with the 95 % interval of their mean (Student's "
            "t; nothing corrects for the number of comparisons):"
        )
        rows = found.changes.to_numpy().tolist()
        parts.append(markdown_table(list(found.changes.columns), rows, left=(0, 1, 4)))
    parts += [f"{each.title}: {each.meaning}" for each in (written.watch if written else ()) if each.meaning]
    parts += [f"Failed and left out: {name}: {why}" for name, why in found.failed.items()]
    parts.append("![Each number](sweep.png)\n\nAccuracies, time and hardware: [results](results.md).")
    return "\n\n".join(parts) + "\n"
