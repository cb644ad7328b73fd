"""`zoo.compare`: ways to learn from a long tail, side by side, from one start, over seeds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from zoo import release as releases
from zoo.api.comparisons.plan import (
    Images,
    base_recipe,
    checked_seeds,
    chosen_methods,
    require_same,
    with_methods,
)
from zoo.api.facts import hardware, versions
from zoo.api.pretraining import as_recipe, pretrain
from zoo.data import ImageDataset, open_dataset
from zoo.data.any_data import Data
from zoo.data.words import data_words
from zoo.errors import TrainingError, ZooError
from zoo.evaluation.figures.comparison import plot_comparison
from zoo.evaluation.results.comparison import Summary, as_markdown, summarize
from zoo.files import RUNS, is_dir, is_unused, write_text
from zoo.launch import rank, restarted
from zoo.release import Release
from zoo.training import Recipe, pick_device
from zoo.training.disk import writing
from zoo.training.methods import FromCenters, NearestCenter
from zoo.training.overrides import Overrides
from zoo.training.progress import say

RECORD = "comparison.json"


class Comparison(NamedTuple):
    """What `compare` found.

    Attributes:
        summaries: by method, best balanced accuracy first.
        record: what `comparison.json` holds: also every run's figures and folder.
        left_out: methods that start or recipe do not allow, with the reason.
        folder: with the record, `comparison.md`, `comparison.png` and the runs' releases.
    """

    summaries: dict[str, Summary]
    record: dict[str, Any]
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
    out = RUNS / f"{Path(_name(init)).name}_compared" if out is None else Path(out)
    resume = resume or restarted() or rank() > 0  # of several ranks the first one looks
    if not resume and not is_unused(out):
        raise TrainingError(
            f'"{out}" is not an empty folder; go on with a comparison by --resume, or choose another --out'
        )
    seeds = checked_seeds(seeds)
    base, root = base_recipe(recipe, init, data, overrides)
    chosen, left_out = with_methods(base, chosen_methods(methods))
    train_set, test_set = (open_dataset(base.data, split, root) for split in ("train", "test"))
    reason = _no_centers(base, train_set)
    left_out |= {name: reason for name, each in chosen.items() if reason and _needs_centers(each)}
    if left_out and methods is not None:
        name, reason = next(iter(left_out.items()))
        raise ZooError(f'method "{name}": {reason}')
    for name, reason in left_out.items():
        say(f"left out: {name}: {reason}")
    planned = [
        (name, seed, as_recipe(chosen[name], [f"training.seed={seed}"]), out / name / f"seed_{seed}")
        for seed in seeds
        for name in chosen
        if name not in left_out
    ]
    trained_on = train_set.describe()
    images = Images(trained_on["sha256"], test_set.describe()["sha256"])
    for _, _, each, folder in planned:  # before the first training
        require_same(folder, each, images)
    runs: dict[str, dict[int, dict[str, Any]]] = {}
    for number, (name, seed, each, folder) in enumerate(planned, 1):
        say(f"{number} of {len(planned)}: {name}, seed {seed}")
        made = pretrain(each, out=folder, data=root, resume=True, stages_at=out / "stages")
        entries = made.metrics["evaluations"]
        runs.setdefault(name, {})[seed] = next(e["metrics"] for e in entries if e["protocol"] == "classifier")
    summaries = summarize(runs)
    record = _record(chosen, runs, summaries, trained_on, base, left_out)
    if rank() == 0:
        _write(out, record, summaries, base)
    return Comparison(summaries, record, left_out, out)


def _name(init: str | Path | Release) -> str | Path:
    return init.name if isinstance(init, Release) else releases.named(init)


def _released(base: Recipe) -> str:
    """Say which state of a training its release has."""
    state = "last epoch" if base.training.early_stopping is None else "epoch chosen on the validation part"
    return state if base.training.ema is None else f"{state}, moving average of the weights"


def _needs_centers(recipe: Recipe) -> bool:
    method = recipe.method
    return isinstance(method, FromCenters) or (
        isinstance(method, NearestCenter) and method.centers == "learned"
    )


def _no_centers(recipe: Recipe, train_set: ImageDataset) -> str | None:
    """Return why no head can be made of the centers of what `recipe` starts from, or None if one can."""
    start = recipe.init.release if recipe.init else ""
    if not start:
        return "the recipe starts from random weights, which have no centers"
    opened = releases.open(start)
    if opened.centers is None:
        return f"{opened.name} has no centers: its objective learned none"
    if opened.class_names != train_set.class_names:
        return (
            f"the {len(opened.class_names)} centers of {opened.name} are of other classes than the "
            f"{train_set.num_classes} of the data"
        )
    return None


def _record(
    chosen: Mapping[str, Recipe],
    runs: Mapping[str, Mapping[int, Mapping[str, Any]]],
    summaries: Mapping[str, Summary],
    trained_on: Mapping[str, Any],
    base: Recipe,
    left_out: Mapping[str, str],
) -> dict[str, Any]:
    return {
        "format": 1,
        "recipe": base.model_dump(mode="json"),
        "train_set": dict(trained_on),
        "released": _released(base),
        "seeds": sorted(next(iter(runs.values()))),
        "methods": {
            name: {
                "method": chosen[name].model_dump(mode="json")["method"],
                "runs": {str(seed): metrics for seed, metrics in sorted(runs[name].items())},
                "mean": {key: value and value.mean for key, value in summary.metrics.items()},
                "half_width": {key: value and value.half_width for key, value in summary.metrics.items()},
                "to_best": summary.verdict,
            }
            for name, summary in summaries.items()
        },
        "left_out": dict(left_out),
        "hardware": hardware(pick_device(base.training.device)),
        "versions": versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _write(out: Path, record: Mapping[str, Any], summaries: Mapping[str, Summary], base: Recipe) -> None:
    """Write what people look at, then the record, by which the comparison is known to be whole."""
    start = base.init.release.removeprefix("shipped:") if base.init else "random weights"
    start = Path(start).name if is_dir(start) else start
    data = data_words(record["train_set"])
    title = f"{start} on {data}"
    about = f"{base.backbone.arch}, {base.training.epochs} epochs"
    text = f"{title}: {about}, {record['released']}, test split\n\n{as_markdown(summaries)}"
    with writing(f'comparison "{out}"', out):
        plot_comparison(summaries, out / "comparison.png", title=title, about=about)
        write_text(out / "comparison.md", text)
        write_text(out / RECORD, json.dumps(record, indent=2) + "\n")
