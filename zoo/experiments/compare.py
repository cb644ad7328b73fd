"""`zoo.compare`: ways to learn from a long tail, side by side, from one start, over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zoo import hub
from zoo.data.any_data import Data
from zoo.errors import ZooError, did_you_mean
from zoo.experiments.sweep import Sweep, SweepFile, lay_out, run_all
from zoo.files import RUNS
from zoo.pretraining import plan_finetuning
from zoo.recipe import Recipe
from zoo.recipe.overrides import Overrides, as_overrides
from zoo.release import Release
from zoo.release.schema import ACCURACIES

_BY_NAME = (
    *("cross_entropy", "balanced_softmax", "logit_adjustment", "post_hoc_logit_adjustment"),
    *("class_balanced_sampling", "crt", "tau_normalized", "lws", "ldam_drw"),
)
METHODS: dict[str, Any] = {
    **{name: name for name in _BY_NAME},
    "from_centers": {"name": "from_centers", "prior": False},
    "from_centers_prior": {"name": "from_centers", "prior": True},
    "nearest_center": {"name": "nearest_center", "centers": "learned", "similarity": "logit"},
    "nearest_mean": {"name": "nearest_center", "centers": "means", "similarity": "cosine"},
}
"""Values of the recipe's key `method` that a comparison has by default, by the names of its rows."""

_PLAIN = ("objective.loss=cross_entropy", "objective.head=linear", "training.sampling=instance")
_DECIDED = ("method", "evaluation", "training.seed", "init.head")  # which a comparison sets itself
_WATCH = {
    title: f"accuracy/classifier/{name}".removesuffix("/accuracy")
    for name, title in {**ACCURACIES, "calibration_error": "calibration error"}.items()
}


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

    It is a sweep over the recipe's key `method`. Nothing is selected on the test split: the last epoch
    counts, or the one that the validation part of `training.early_stopping` chooses.

    Args:
        recipe: of the objective `classify`; the default of `finetune` when None.
        init: the release to start from.
        out: folder of the comparison, `runs/NAME_compared` when None, NAME that of `init`.
        data: see `finetune`.
        methods: names out of `METHODS`, all when None; the others are compared with the first.
        seeds: of the trainings.
        resume: see `sweep`.
        overrides: see `pretrain`.

    Returns:
        As `sweep`; `failed` has also the methods that the start does not allow. So are the errors.
    """
    start = init.name if isinstance(init, Release) else Path(hub.named(init)).name
    chosen = [*METHODS] if methods is None else methods
    for name in chosen:
        if name not in METHODS:
            hint = did_you_mean(name, METHODS)
            raise ZooError(f'methods: unknown method "{name}".{hint} Methods: {", ".join(METHODS)}')
    changes = as_overrides(overrides)
    for change in changes:
        if change.partition("=")[0].strip().startswith(_DECIDED):
            raise ZooError(f'overrides (--set): "{change}": the comparison sets it; give methods, or seeds')
    base, root = plan_finetuning(recipe, init=init, head="fresh", data=data, overrides=[*_PLAIN, *changes])
    vary = {"method": {name: METHODS[name] for name in chosen}, "evaluation": [[{"protocol": "classifier"}]]}
    question = f"{start}: {base.backbone.arch}, {base.training.epochs} epochs, percent on the test split"
    about = SweepFile(question=question, source="zoo compare", recipes=[base.name], watch=_WATCH)
    out = RUNS / f"{start}_compared" if out is None else Path(out)
    return run_all(lay_out([base], vary, seeds), out, about, root, resume=resume)
