"""Methods for long-tailed data (the key `method`): up to two trainings, then a final classifier."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from zoo import functional
from zoo.config import parse
from zoo.data import ImageDataset
from zoo.modules import Centers
from zoo.modules.ranks import ALONE, Ranks
from zoo.objectives import Classify, Objective
from zoo.recipe import Recipe, sections
from zoo.training.build import build_objective
from zoo.training.facts import Trained
from zoo.training.loop import train
from zoo.training.run import RunFolder

Changes = dict[str, Any]  # new values of a recipe's keys; a section keeps its other values
Features = Callable[[], tuple[Tensor, Tensor]]  # pooled training features `[N, D_f]` and classes `[N]`
STAGE = "A stage of a method for long-tailed data."  # the description in a stage's recipe


def stages(recipe: Recipe) -> list[Recipe]:
    """Return the plain recipes to train one after another; without a method, the recipe itself."""
    method = recipe.method
    return [recipe] if method is None else [_stage_recipe(recipe, *stage) for stage in _changes(method)]


def _changes(method: sections.Method) -> list[tuple[str, Changes]]:
    """Return the names of a method's trainings and what each changes in the recipe.

    A second one trains only the classifier (Kang et al. 2020), without settings that concern the encoder.
    """
    head: Changes = {"init": {"head": "centers"}} if isinstance(method, sections.FromCenters) else {}
    if isinstance(method, sections.NearestCenter):
        return []
    if method.name == "balanced_softmax" or (isinstance(method, sections.FromCenters) and method.prior):
        return [("balanced_softmax", {**head, "objective": {"loss": "balanced_softmax"}})]
    if method.name == "logit_adjustment":
        return [(method.name, {"objective": {"loss": method.model_dump()}})]
    if method.name == "class_balanced_sampling":
        return [(method.name, {"training": {"sampling": "class_balanced"}})]
    if isinstance(method, sections.LDAMDRW):
        loss = {**method.model_dump(), "name": "ldam"}
        return [(method.name, {"objective": {"loss": loss, "head": "cosine", "head_std": None}})]
    first = ("cross_entropy", head)
    if not isinstance(method, sections.SecondStage):
        return [first]
    scaled = {"head": "scaled", "head_std": None} if method.name == "lws" else {}
    optimizer = {key: getattr(method, key) for key in ("lr", "weight_decay", "momentum")}
    optimizer |= {"name": "momentum", "decay_norm_and_bias": True, "layer_decay": None, "args": {}}
    off = {"ema": None, "early_stopping": None}
    second: Changes = {
        "init": {"head": "fresh"},
        "train_only": [],
        "adapt": None,
        "objective": {"mix": None, "distill": None, **scaled},
        "optimizer": optimizer,
        "schedule": {"name": "cosine", "warmup_epochs": 0, "min_lr": 0.0, "milestones": []},
        "training": {"epochs": method.epochs, "sampling": "class_balanced", **off},
    }
    return [first, (method.name, second)]


def _stage_recipe(recipe: Recipe, name: str, changes: Changes) -> Recipe:
    """Return the recipe of one stage of `recipe`, without evaluation."""
    plain = recipe.model_dump(mode="json")
    for key, values in changes.items():
        if not isinstance(values, dict):
            plain[key] = values
        elif plain[key] is not None:  # without `init` there is no head to choose
            plain[key] |= values
    plain |= {"name": f"{recipe.backbone.arch}.{name}", "description": STAGE}
    plain |= {"method": None, "evaluation": []}
    return parse(Recipe, plain, f"{recipe.name}: {name}")


def first_stage(recipe: Recipe) -> Recipe:
    """Return the plain recipe of the first training, or of the objective that is released untrained."""
    method = recipe.method
    if not isinstance(method, sections.NearestCenter):
        return stages(recipe)[0]
    head = "fresh" if method.centers == "means" else "centers"
    return _stage_recipe(recipe, method.name, {"init": {"head": head}})


def train_stages(
    objective: Objective,
    dataset: ImageDataset,
    recipe: Recipe,
    run: RunFolder,
    *,
    resume: bool,
    ranks: Ranks = ALONE,
) -> list[Trained]:
    """Train the stages of a recipe, each from the result of the one before.

    Without a method there is one stage, with its state in `run`; a method's stages have the folders `stage-1`
    and `stage-2` in it, and are resumed, or reused if finished. `nearest_center` has no stages.

    `objective` belongs to `first_stage(recipe)`; other arguments and errors are those of `train`.
    """
    if recipe.method is None:
        return [train(objective, dataset, recipe, run, resume=resume, ranks=ranks)]
    if ranks.rank == 0:
        run.claim(recipe, resume=resume)
    done = list[Trained]()
    for number, stage in enumerate(stages(recipe), 1):
        if done:  # start from the first stage's encoder, and for a scaled head from its classifier
            before, objective = objective, build_objective(stage, dataset)
            assert isinstance(objective, Classify) and isinstance(before, Classify)
            objective.encoder.load_state_dict(before.encoder.state_dict())
            if objective.config.head == "scaled":
                objective.start_from(before.centers())
        done.append(train(objective, dataset, stage, run.stage(number), resume=True, ranks=ranks))
    return done


def final_classifier(method: sections.Method, learned: Centers, train: Features) -> Centers:
    """Return a method's final classifier, linear in the pooled features.

    Classes without training images are masked, except where `nearest_center` uses the centers of a release;
    `train` is called only if features are needed.
    """
    weight, bias, counts = learned.weight, learned.bias, learned.class_counts
    absent = counts == 0
    if method.name == "tau_normalized":
        weight, bias = functional.tau_normalize(weight, tau=method.tau), torch.zeros_like(bias)
    elif method.name == "post_hoc_logit_adjustment":
        bias = functional.post_hoc_adjusted(bias, counts, tau=method.tau)
    elif isinstance(method, sections.NearestCenter):
        if method.centers == "means":
            features, labels = train()
            weight, bias = functional.class_means(features, labels, len(weight)).to(weight), 0 * bias
        else:
            absent = torch.zeros_like(absent)
        weight, bias = functional.nearest_center(weight, bias, method.similarity)
    weight, bias = functional.mask_classes(weight, bias, absent)
    return learned._replace(weight=weight, bias=bias)


def recorded_rows(runs: Sequence[RunFolder]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the metric rows and class rows of all stages, with steps and epochs counted across them."""
    rows, class_rows, step, epoch = list[dict[str, Any]](), list[dict[str, Any]](), 0, 0.0
    for run in runs:
        for found, into in ((run.rows(), rows), (run.class_rows(), class_rows)):
            into += [{**row, "step": row["step"] + step, "epoch": row["epoch"] + epoch} for row in found]
        if rows:  # the last step of a stage is always recorded
            step, epoch = rows[-1]["step"], rows[-1]["epoch"]
    return rows, class_rows
