"""`zoo.compare`: ways to learn from a long tail, side by side, from one start, over seeds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from zoo import hub, locks
from zoo.data.any_data import Data
from zoo.errors import RecipeError, ZooError, did_you_mean
from zoo.experiments.records import RESULTS, RunRecord, as_json
from zoo.experiments.runs import Run, different, require_unused, train_all
from zoo.experiments.statistics import differences, draw_numbers, means
from zoo.files import RUNS, write_text, writing
from zoo.pretraining import open_sets, plan_finetuning, pretrain
from zoo.recipe import Recipe
from zoo.recipe.overrides import Overrides, as_overrides
from zoo.release import Release
from zoo.release.card import markdown_table
from zoo.release.format import holds_release
from zoo.release.schema import ACCURACIES
from zoo.training import RunFolder
from zoo.training.stages import stages

_BY_NAME = (
    *("cross_entropy", "balanced_softmax", "logit_adjustment", "post_hoc_logit_adjustment"),
    *("class_balanced_sampling", "crt", "tau_normalized", "lws", "ldam_drw"),
)
METHODS: dict[str, dict[str, Any]] = {
    **{name: {"name": name} for name in _BY_NAME},
    "from_centers": {"name": "from_centers", "prior": False},
    "from_centers_prior": {"name": "from_centers", "prior": True},
    "nearest_center": {"name": "nearest_center", "centers": "learned", "similarity": "logit"},
    "nearest_mean": {"name": "nearest_center", "centers": "means", "similarity": "cosine"},
}
"""Values of the recipe's key `method` that a comparison has by default, by the names of its rows."""

_PLAIN = {
    "objective.loss": "cross_entropy",
    "objective.head": "linear",
    "training.sampling": "instance",
    "method": "null",
}
_DECIDED = ("method", "evaluation", "training.seed", "init.head")  # which a comparison sets itself
_COLUMNS = {**ACCURACIES, "calibration_error": "calibration error"}
_RANKED_BY = "balanced_accuracy"


@dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Attributes:
        frame: metrics over the seeds, the method with the best mean balanced accuracy first, and the
            difference of each method to it, paired by seed.
        records: of every run.
        left_out: methods that start or recipe do not allow, or that failed, with the reason.
        folder: with `comparison.md`, `comparison.png`, `results.json` and the runs' releases.
    """

    frame: pd.DataFrame
    records: list[RunRecord]
    left_out: dict[str, str]
    folder: Path


def compare(
    recipe: Recipe | str | Path | None = None,
    *,
    init: str | Path | Release,
    out: str | Path | None = None,
    data: Data = None,
    methods: Iterable[str | Mapping[str, Any]] | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    resume: bool = False,
    overrides: Overrides = (),
) -> Comparison | None:
    """Fine-tune a release in several ways, over seeds, and compare the classifiers on the test split.

    Every method has the same recipe but for its key `method`; methods whose first training is the same share
    it. Nothing is selected on the test split: the last epoch counts, or the one that the validation part of
    `training.early_stopping` chooses. Several processes share the runs as they do those of `sweep`.

    Args:
        recipe: of the objective `classify`; the default of `finetune` when None.
        init: the release to start from.
        out: folder of the comparison, `runs/NAME_compared` when None, NAME that of `init`; each run's release
            is in `out/METHOD/seed_N`.
        data: see `finetune`.
        methods: names out of `METHODS`, or values of the recipe's key `method`; all when None.
        seeds: of the trainings.
        resume: go on with what lies in `out`; finished runs are taken as they are.
        overrides: see `pretrain`.

    Returns:
        What was found; None if other processes are still training the rest.

    Raises:
        Interrupted: on a signal; the same call with `resume` goes on.
        ZooError: for anything wrong with recipe, methods, seeds, data or folder; if nothing could be trained.
    """
    start = init.name if isinstance(init, Release) else Path(hub.named(init)).name
    out = RUNS / f"{start}_compared" if out is None else Path(out)
    changes = as_overrides(overrides)
    for change in changes:
        if change.partition("=")[0].strip().startswith(_DECIDED):
            raise ZooError(f'overrides (--set): "{change}": the comparison sets it; give methods, or seeds')
    common = [*(f"{key}={value}" for key, value in _PLAIN.items()), *changes]
    base, root = plan_finetuning(recipe, init=init, head="fresh", data=data, overrides=common)
    chosen = _chosen(methods)
    require_unused(out, resume=resume)
    with locks.turn(out / ".data.lock"):  # what one process fetches or decodes, the others find
        open_sets(base, root)
    made, left_out = dict[str, Recipe](), dict[str, str]()
    for name, method in chosen.items():
        settings = [f"method={json.dumps(method)}", "evaluation=[{protocol: classifier}]"]
        try:
            made[name] = Recipe.load(base, settings)
        except RecipeError as error:
            left_out[name] = str(error)
    if not made:
        raise ZooError(f"compare: no method fits: {next(iter(left_out.values()))}")
    runs = [
        Run(name, seed, Recipe.load(each, [f"training.seed={seed}"]), out / name / f"seed_{seed}")
        for seed in different(seeds)
        for name, each in made.items()
    ]

    def train(run: Run) -> Release:
        _take_first_stage(run, runs)
        return pretrain(run.recipe, out=run.folder, data=root, resume=True)

    trained = train_all(runs, train)
    if trained is None:
        return None
    records, failed = trained
    numbers = pd.DataFrame(
        {"point": run.point, "seed": run.seed, **_metrics(record)} for run, record in records.items()
    ).set_index(["point", "seed"])
    order = numbers[_RANKED_BY].groupby(level="point", sort=False).mean().sort_values(ascending=False).index
    frame = means(numbers, "z.1f").rename(columns=_COLUMNS)
    frame["to the best [95 % interval]"] = differences(numbers, order[0])[_RANKED_BY]
    frame = frame.loc[order].rename_axis("method").reset_index()
    ended = "last epoch" if base.training.early_stopping is None else "epoch chosen by validation"
    parts = [
        f"{start} on {next(iter(records.values())).data}: {base.backbone.arch}, "
        f"{base.training.epochs} epochs, {ended}, test split",
        markdown_table(list(frame.columns), frame.to_numpy().tolist()),
        "Percent, mean ± standard deviation over seeds; differences are paired by seed.",
        *(f"Left out: {name}: {why}" for name, why in (left_out | failed).items()),
    ]
    with writing(f'comparison "{out}"'):
        draw_numbers(numbers, out / "comparison.png")
        write_text(out / "comparison.md", "\n\n".join(parts) + "\n")
        write_text(out / RESULTS, as_json(list(records.values())))
    return Comparison(frame, list(records.values()), left_out | failed, out)


def _take_first_stage(run: Run, runs: Sequence[Run]) -> None:
    """Copy the first training of a run's method from a finished run that began with the very same one."""
    place, began = RunFolder(run.folder / "run").stage(1).path, stages(run.recipe)[:1]
    if not began or place.parent.exists():
        return
    for other in runs:
        if holds_release(other.folder) and stages(other.recipe)[:1] == began:
            copy = place.with_name(f".{place.name}")
            shutil.copytree(RunFolder(other.folder / "run").stage(1).path, copy)
            copy.rename(place)
            return


def _metrics(record: RunRecord) -> dict[str, float]:
    (metrics,) = [each.metrics for each in record.evaluations if each.protocol == "classifier"]
    return {name: metrics[name] for name in _COLUMNS if name in metrics}


def _chosen(methods: Iterable[str | Mapping[str, Any]] | None) -> dict[str, dict[str, Any]]:
    """Return the methods by the names of their rows."""
    chosen: dict[str, dict[str, Any]] = {}
    for method in METHODS if methods is None else methods:
        if isinstance(method, Mapping):
            settings = [f"{key}_{value}" for key, value in method.items() if key != "name"]
            chosen["-".join([str(method.get("name", "")), *settings])] = dict(method)
        elif method in METHODS:
            chosen[method] = METHODS[method]
        else:
            hint = did_you_mean(method, METHODS)
            raise ZooError(f'methods: unknown method "{method}".{hint} Methods: {", ".join(METHODS)}')
    if not chosen:
        raise ZooError(f"methods: found none, expected some of {', '.join(METHODS)}")
    return chosen
