"""`zoo.compare`: ways to learn from a long tail, side by side, from one start, over seeds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from zoo import release as releases
from zoo.api.facts import hardware, versions
from zoo.api.finetuning import plan_finetuning
from zoo.api.pretraining import as_recipe, pretrain
from zoo.data import ImageDataset, open_dataset
from zoo.data.words import data_words
from zoo.errors import TrainingError, ZooError, did_you_mean
from zoo.evaluation.comparison import Summary, as_markdown, summarize
from zoo.evaluation.comparison_plot import plot_comparison
from zoo.files import write_text
from zoo.launch import rank, restarted
from zoo.training import Recipe, pick_device
from zoo.training.build import TIMM
from zoo.training.methods import FromCenters, NearestCenter
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

RECORD = "comparison.json"


class Comparison(NamedTuple):
    """What `compare` found.

    Attributes:
        summaries: by method, best balanced accuracy first.
        record: what `comparison.json` holds: also every run's figures and folder.
        left_out: methods that the start does not allow, with the reason.
        folder: with the record, `comparison.md`, `comparison.png` and the runs' releases.
    """

    summaries: dict[str, Summary]
    record: dict[str, Any]
    left_out: dict[str, str]
    folder: Path


def compare(
    recipe: Recipe | str | Path | None,
    *,
    init: str | Path,
    out: str | Path,
    data: str | Path | None = None,
    methods: Iterable[str | Mapping[str, Any]] | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    resume: bool = False,
    overrides: Sequence[str] = (),
) -> Comparison:
    """Fine-tune a release in several ways, over seeds, and compare the classifiers on the test split.

    Every method has the same recipe but for its key `method`; methods whose first training is the same share
    it. Nothing is selected on the test split: the last epoch counts.

    Args:
        recipe: of the objective `classify`; the default of `finetune` when None.
        init: the release to start from.
        out: folder of the comparison; each run's release is in `out/METHOD/seed_N`.
        data: see `finetune`.
        methods: names out of `METHODS`, or values of the recipe's key `method`; when None, all that the start
            allows.
        seeds: of the trainings.
        resume: go on with what lies in `out`; finished runs are taken as they are.
        overrides: see `pretrain`.

    Raises:
        Interrupted: on a signal; the same call with `resume` goes on.
        ZooError: for anything wrong with recipe, methods, seeds, data or folder.
    """
    out = Path(out)
    resume = resume or restarted() or rank() > 0  # of several ranks the first one looks
    if not resume and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise TrainingError(
            f'"{out}" is not an empty folder; go on with a comparison by --resume, or choose another --out'
        )
    seeds = _checked_seeds(seeds)
    common = ["objective.loss=cross_entropy", "training.sampling=instance", *overrides]
    base, root, _ = plan_finetuning(recipe, init=init, data=data, overrides=common)
    chosen = {name: _with_method(base, method) for name, method in _chosen(methods).items()}
    train_set = open_dataset(base.data, "train", root)
    reason = _no_centers(base, train_set)
    left_out = {name: reason for name, each in chosen.items() if reason and _needs_centers(each)}
    if left_out and methods is not None:
        raise ZooError(f'method "{next(iter(left_out))}": {reason}')
    if left_out:
        say(f"left out: {', '.join(left_out)}: {reason}")
    planned = [(name, seed) for seed in seeds for name in chosen if name not in left_out]
    runs: dict[str, dict[int, dict[str, Any]]] = {}
    for number, (name, seed) in enumerate(planned, 1):
        say(f"{number} of {len(planned)}: {name}, seed {seed}")
        made = pretrain(
            as_recipe(chosen[name], [f"training.seed={seed}"]),
            out=out / name / f"seed_{seed}",
            data=root,
            resume=True,
            stages_at=out / "stages",
        )
        entries = made.metrics["evaluations"]
        runs.setdefault(name, {})[seed] = next(e["metrics"] for e in entries if e["protocol"] == "classifier")
    summaries = summarize(runs)
    record = _record(chosen, runs, summaries, train_set, base, left_out)
    if rank() == 0:
        _write(out, record, summaries, base)
    return Comparison(summaries, record, left_out, out)


def _checked_seeds(seeds: Sequence[int]) -> list[int]:
    found = list(seeds)
    if not found or len({*found}) < len(found) or any(type(seed) is not int or seed < 0 for seed in found):
        raise ZooError(f"seeds: found {found}, expected different whole numbers from 0 on, e.g. 0, 1, 2")
    return found


def _chosen(methods: Iterable[str | Mapping[str, Any]] | None) -> dict[str, dict[str, Any]]:
    """Return the methods by the names of their rows."""
    if methods is None:
        return METHODS
    if isinstance(methods, (str, Mapping)):
        raise ZooError(f"methods: found {methods!r}, expected a list")
    chosen: dict[str, dict[str, Any]] = {}
    for method in methods:
        if isinstance(method, str):
            if method not in METHODS:
                raise ZooError(
                    f'methods: unknown method "{method}".{did_you_mean(method, METHODS)} '
                    f"Methods: {', '.join(METHODS)}"
                )
            name, value = method, METHODS[method]
        else:
            value = dict(method)
            settings = [f"{key}_{value[key]}" for key in value if key != "name"]
            name = "-".join([str(value.get("name", "")), *settings])
        if name in chosen:
            raise ZooError(f'methods: "{name}" is given twice')
        chosen[name] = value
    if not chosen:
        raise ZooError(f"methods: found none, expected some of {', '.join(METHODS)}")
    return chosen


def _with_method(base: Recipe, method: Mapping[str, Any]) -> Recipe:
    return as_recipe(base, [f"method={json.dumps(method)}", "evaluation=[{protocol: classifier}]"])


def _needs_centers(recipe: Recipe) -> bool:
    method = recipe.method
    return isinstance(method, FromCenters) or (
        isinstance(method, NearestCenter) and method.centers == "learned"
    )


def _no_centers(recipe: Recipe, train_set: ImageDataset) -> str | None:
    """Return why no head can be made of the centers of what `recipe` starts from, or None if one can."""
    start = recipe.init.release if recipe.init else ""
    if not start or start.startswith(TIMM):
        return f'"{start}" is no release, so it has no centers'
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
    train_set: ImageDataset,
    base: Recipe,
    left_out: Mapping[str, str],
) -> dict[str, Any]:
    return {
        "format": 1,
        "recipe": base.model_dump(mode="json"),
        "train_set": train_set.describe(),
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
    start = Path(start).name if Path(start).is_dir() else start
    data = data_words(record["train_set"])
    title = f"{start} on {data}"
    about = f"{base.backbone.arch}, {base.training.epochs} epochs"
    plot_comparison(summaries, out / "comparison.png", title=title, about=about)
    write_text(out / "comparison.md", f"{title}: {about}, last epoch, test split\n\n{as_markdown(summaries)}")
    write_text(out / RECORD, json.dumps(record, indent=2) + "\n")
