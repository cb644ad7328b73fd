"""`zoo.compare`: ways to learn from a long tail, side by side, from one start, over seeds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from zoo import hub
from zoo.api.planning import plan_finetuning
from zoo.api.pretraining import pretrain
from zoo.data import ImageDataset, open_dataset
from zoo.data.any_data import Data
from zoo.data.memory import Root
from zoo.errors import RecipeError, TrainingError, ZooError, did_you_mean
from zoo.experiments.grid import checked_seeds, require_same, require_unused
from zoo.experiments.plot import draw_rows
from zoo.experiments.reading import RESULTS, as_json
from zoo.experiments.record import RunRecord, from_release
from zoo.experiments.statistics import Summary, paired, summarize
from zoo.files import RUNS, write_text, writing
from zoo.launch import rank, restarted
from zoo.markdown import markdown_table
from zoo.recipe import Recipe
from zoo.recipe.methods import FromCenters, NearestCenter
from zoo.recipe.overrides import Overrides, as_overrides
from zoo.release import Release
from zoo.release.evaluations import ACCURACIES
from zoo.training.facts import origin_facts
from zoo.training.progress import say

METHODS: dict[str, dict[str, Any]] = {
    "cross_entropy": {"name": "cross_entropy"},
    "balanced_softmax": {"name": "balanced_softmax"},
    "logit_adjustment": {"name": "logit_adjustment"},
    "post_hoc_logit_adjustment": {"name": "post_hoc_logit_adjustment"},
    "class_balanced_sampling": {"name": "class_balanced_sampling"},
    "crt": {"name": "crt"},
    "tau_normalized": {"name": "tau_normalized"},
    "lws": {"name": "lws"},
    "ldam_drw": {"name": "ldam_drw"},
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
_DECIDED = {  # keys that no override may set: the comparison would set them again
    "method": "a comparison chooses the method; give --methods",
    "evaluation": "a comparison measures the protocol classifier",
    "training.seed": "a comparison has several; give --seeds",
    "init.head": "a comparison's methods choose the head",
}
_COLUMNS = {**ACCURACIES, "calibration_error": "calibration error"}
_RANKED_BY = "balanced_accuracy"


@dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Attributes:
        summaries: of each metric over the seeds, by method, the best mean balanced accuracy first.
        frame: the same as a table, with the difference of each method to the best, paired by seed.
        records: of every run, by method.
        left_out: methods that start or recipe do not allow, with the reason.
        folder: with `comparison.md`, `comparison.png`, `results.json` and the runs' releases.
    """

    summaries: dict[str, dict[str, Summary]]
    frame: pd.DataFrame
    records: dict[str, list[RunRecord]]
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
) -> Comparison:
    """Fine-tune a release in several ways, over seeds, and compare the classifiers on the test split.

    Every method has the same recipe but for its key `method`; methods whose first training is the same share
    it. Nothing is selected on the test split: the last epoch counts, or the one that the
    validation part of `training.early_stopping` chooses.

    Args:
        recipe: of the objective `classify`; the default of `finetune` when None.
        init: the release to start from.
        out: folder of the comparison, `runs/NAME_compared` when None, NAME that of `init`; each run's release
            is in `out/METHOD/seed_N`.
        data: see `finetune`.
        methods: names out of `METHODS`, or values of the recipe's key `method`; when None, all that start and
            recipe allow.
        seeds: of the trainings.
        resume: go on with what lies in `out`; finished runs are taken as they are.
        overrides: see `pretrain`.

    Raises:
        Interrupted: on a signal; the same call with `resume` goes on.
        ZooError: for anything wrong with recipe, methods, seeds, data or folder.
    """
    start = init.name if isinstance(init, Release) else hub.named(init)
    out = RUNS / f"{Path(start).name}_compared" if out is None else Path(out)
    resume = resume or restarted() or rank() > 0  # of several ranks the first one looks
    if not resume:
        require_unused(out, "comparison")
    seeds = checked_seeds(seeds)
    base, root = _base(recipe, init, data, overrides)
    train_set = open_dataset(base.data, "train", root)
    open_dataset(base.data, "test", root)  # before the first training
    made, left_out = _recipes(base, _chosen(methods), train_set)
    if left_out and methods is not None:
        name, reason = next(iter(left_out.items()))
        raise ZooError(f'method "{name}": {reason}')
    for name, reason in left_out.items():
        say(f"left out: {name}: {reason}")
    planned = [(name, seed) for seed in seeds for name in made]
    images, weights = train_set.describe()["sha256"], origin_facts(base)
    for name, seed in planned:
        require_same(out / name / f"seed_{seed}", images, weights)
    records: dict[str, list[RunRecord]] = {name: [] for name in made}
    for number, (name, seed) in enumerate(planned, 1):
        say(f"{number} of {len(planned)}: {name}, seed {seed}")
        run = Recipe.load(made[name], [f"training.seed={seed}"])
        folder = out / name / f"seed_{seed}"
        release = pretrain(run, out=folder, data=root, resume=True)
        records[name].append(from_release(release, f"{name}/seed_{seed}"))
    summaries = by_method(records)
    found = Comparison(summaries, side_by_side(summaries), records, left_out, out)
    if rank() == 0:
        _write(found, f"{start} on {records[next(iter(made))][0].data}", base)
    return found


def by_method(records: Mapping[str, Sequence[RunRecord]]) -> dict[str, dict[str, Summary]]:
    """Return each method's classifier metrics over its runs, the best mean balanced accuracy first."""
    summaries = {}
    for name, runs in records.items():
        entries = [next(e for e in run.evaluations if e.protocol == "classifier").metrics for run in runs]
        summaries[name] = {
            key: summarize([entry[key] for entry in entries])
            for key in _COLUMNS
            if all(key in entry for entry in entries)
        }
    return dict(sorted(summaries.items(), key=lambda item: -item[1][_RANKED_BY].mean))


def side_by_side(summaries: Mapping[str, Mapping[str, Summary]]) -> pd.DataFrame:
    """Return a row for each method: mean ± standard deviation, and how far it is from the best.

    Differences are taken seed by seed, since methods of one seed share images and initial weights; their
    95 % intervals (Student's t) are of one comparison each: nothing corrects for their number, nor for the
    best having been chosen among them. One that holds 0 does not tell a method from the best.
    """
    best = next(iter(summaries.values()))[_RANKED_BY]
    frame = pd.DataFrame({name: {k: str(v) for k, v in row.items()} for name, row in summaries.items()}).T
    frame = frame[[key for key in _COLUMNS if key in frame]].rename(columns=_COLUMNS).fillna("-")
    to_best = [paired(row[_RANKED_BY].values, best.values) for row in summaries.values()]
    frame["balanced, to the best"] = ["best", *(f"{each.mean:z.1f}" for each in to_best[1:])]
    frame["95 % interval"] = ["-", *(each.interval for each in to_best[1:])]
    return frame.rename_axis("method").reset_index()


def _base(
    recipe: Recipe | str | Path | None, init: str | Path | Release, data: Data, overrides: Overrides
) -> tuple[Recipe, Root]:
    """Return what all methods have in common, and the place of the data."""
    where = "overrides:" if isinstance(overrides, Mapping) else "--set"
    overrides = as_overrides(overrides)
    if recipe is not None:
        recipe = Recipe.load(recipe)
        if recipe.objective.name != "classify":
            raise ZooError(
                f'a comparison needs a recipe of objective "classify", found "{recipe.objective.name}" in '
                f"{recipe.name}"
            )
    for override in overrides:
        key = override.partition("=")[0].strip()
        decided = next((each for each in _DECIDED if f"{key}.".startswith(f"{each}.")), None)
        if decided:
            raise ZooError(f'{where} "{override}": {_DECIDED[decided]}')
    common = [*(f"{key}={value}" for key, value in _PLAIN.items()), *overrides]
    return plan_finetuning(recipe, init=init, head="fresh", data=data, overrides=common)


def _chosen(methods: Iterable[str | Mapping[str, Any]] | None) -> dict[str, dict[str, Any]]:
    """Return the methods by the names of their rows."""
    if methods is None:
        return METHODS
    if isinstance(methods, str | Mapping) or not isinstance(methods, Iterable):
        raise ZooError(f"methods: found {methods!r}, expected a list")
    chosen: dict[str, dict[str, Any]] = {}
    for method in methods:
        if isinstance(method, Mapping):
            value = dict(method)
            settings = [f"{key}_{value[key]}" for key in value if key != "name"]
            name = "-".join([str(value.get("name", "")), *settings])
        elif method in METHODS:
            name, value = method, METHODS[method]
        else:
            raise ZooError(
                f'methods: unknown method "{method}".{did_you_mean(method, METHODS)} '
                f"Methods: {', '.join(METHODS)}"
            )
        if name in chosen:
            raise ZooError(f'methods: "{name}" is given twice')
        chosen[name] = value
    if not chosen:
        raise ZooError(f"methods: found none, expected some of {', '.join(METHODS)}")
    return chosen


def _recipes(
    base: Recipe, methods: Mapping[str, Mapping[str, Any]], train_set: ImageDataset
) -> tuple[dict[str, Recipe], dict[str, str]]:
    """Return the recipe of each method, and why the others do not fit start, data or shared recipe."""
    made, refused, without = dict[str, Recipe](), dict[str, str](), _no_centers(base, train_set)
    for name, method in methods.items():
        changes = [f"method={json.dumps(method)}", "evaluation=[{protocol: classifier}]"]
        try:
            found = Recipe.load(base, changes)
        except RecipeError as error:
            refused[name] = str(error).removeprefix(f"{base.name}: ")
            continue
        needs = isinstance(found.method, FromCenters) or (
            isinstance(found.method, NearestCenter) and found.method.centers == "learned"
        )
        if needs and without:
            refused[name] = without
        else:
            made[name] = found
    return made, refused


def _no_centers(recipe: Recipe, train_set: ImageDataset) -> str | None:
    """Return why no head can be made of the centers of what `recipe` starts from, or None if one can."""
    if recipe.init is None or not recipe.init.release:
        return "the recipe starts from random weights, which have no centers"
    opened = hub.open(recipe.init.release)
    if opened.centers is None:
        return f"{opened.name} has no centers: its objective learned none"
    if opened.class_names != train_set.class_names:
        return (
            f"the {len(opened.class_names)} centers of {opened.name} are of other classes than the "
            f"{train_set.num_classes} of the data"
        )
    return None


def _write(found: Comparison, title: str, base: Recipe) -> None:
    released = "last epoch" if base.training.early_stopping is None else "epoch chosen on the validation part"
    about = f"{base.backbone.arch}, {base.training.epochs} epochs, {released}, test split"
    rows = markdown_table(list(found.frame.columns), found.frame.to_numpy().tolist())
    reading = "Percent, mean ± standard deviation over seeds; differences are paired by seed."
    with writing(f'comparison "{found.folder}"', TrainingError):
        draw_rows(list(found.summaries), list(found.summaries.values()), [found.folder / "comparison.png"])
        write_text(found.folder / "comparison.md", f"{title}: {about}\n\n{rows}\n\n{reading}\n")
        every = [record for runs in found.records.values() for record in runs]
        write_text(found.folder / RESULTS, as_json(every))
