"""`zoo.pretrain`: by a recipe, or by one that is made for somebody's own images, labelled or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from zoo.api.pretraining import as_recipe
from zoo.api.pretraining import pretrain as pretrain_by_recipe
from zoo.config import dump_yaml, parse
from zoo.data import open_dataset
from zoo.data.any_data import Data, as_data, resolve
from zoo.data.config import Holdout
from zoo.data.memory import Root
from zoo.errors import DataError, RecipeError, did_you_mean
from zoo.image_list import ImageList
from zoo.recipe import Recipe
from zoo.recipe.overrides import Overrides, apply, as_overrides
from zoo.recipe.sections import BackboneSection
from zoo.recipe.templates import (
    TITLES,
    Backbone,
    MadeFor,
    asked,
    at_size,
    backbone_of,
    find_start,
    has_classes,
    new_backbone,
    overridden_data,
    pretraining,
)
from zoo.release import Release


def pretrain(
    recipe: Recipe | str | Path | None = None,
    *,
    out: str | Path | None = None,
    data: Data = None,
    resume: bool = False,
    overrides: Overrides = (),
    init: str | Path | Release | None = None,
    arch: str | None = None,
    objective: str | None = None,
    images: Mapping[str, ImageList] | None = None,
) -> Release:
    """Train as a recipe says, measure the result and write its release.

    Started by torchrun, all its processes train together; `out` has to be a folder that all of them see. Then
    the first one measures and writes.

    Args:
        recipe: a shipped recipe's name, a file, or a `Recipe`; None: one made for the images of `data`, see
            `plan_own_pretraining`.
        out: the release folder to make, `runs/NAME` when None; the run's own state lies in its sub-folder
            `run`.
        data: the folder of the recipe's own data, where it needs one, or any other data, which take the place
            of the recipe's source, long tail and subset; see `zoo.data.any_data.Data`.
        resume: go on from the last checkpoint in `out`, or begin if there is none. A restart by torchrun
            does so in any case.
        overrides: changes, recorded in the released recipe: a list of `a.b=c`, or a mapping `{"a.b": c}`.
            With other data or another objective the release is called NAME_changed, unless they set a name.
        init: without a recipe, the weights to start from: a release, its name or folder, or `timm:ARCH.TAG`.
        arch: without a recipe, in place of `init`: the architecture, with new weights.
        objective: without a recipe "moco", which is the default, or "simclr".
        images: which to train ("train") and measure on ("test"), as `Release.images` of another release lists
            them: out of another copy of the data, where long tail and subset would draw others.

    Returns:
        The release in `out`.

    Raises:
        Interrupted: on SIGINT, SIGTERM, SIGHUP or SIGUSR1, after saving the state.
        RanksLost: when another process of several ended.
        ZooError: for anything wrong with recipe, data or folder.
    """
    overrides = as_overrides(overrides)
    if recipe is None:
        plan = plan_own_pretraining(data=data, init=init, arch=arch, objective=objective, overrides=overrides)
        recipe, data, overrides = plan.recipe, plan.data, []
    else:
        refuse_beside_a_recipe(init=init, arch=arch, objective=objective)
        data, overrides = data_in_place(recipe, data, overrides)
    return pretrain_by_recipe(recipe, out=out, data=data, resume=resume, overrides=overrides, images=images)


class Pretraining(NamedTuple):
    """What a pretraining will be.

    Attributes:
        recipe: with every value written out.
        data: the place of its data, where one is needed.
    """

    recipe: Recipe
    data: Root


def plan_own_pretraining(
    *,
    data: Data,
    init: str | Path | Release | None = None,
    arch: str | None = None,
    objective: str | None = None,
    overrides: Overrides = (),
) -> Pretraining:
    """Return the recipe that is made for somebody's images; the arguments are those of `pretrain`.

    It is MoCo v2 or SimCLR on the training images of `data`, whose classes, if they have any, are only
    measured by.

    - Input size, mean and std are the start's, or timm's for the architecture (`views.eval.size` changes the
      size). Views are MoCo v2's: crops of a fifth of the image or more, colours, grey, mirrored; above 64
      pixels blurred by up to 2 pixels in 224.
    - 200 epochs for up to 50,000 images; for more as many as see 10 million images, but no fewer than 50.
      A tenth of them, at most 10, warm up; the rest of the cosine goes to 0.
    - Batches of 256; for fewer than 4,096 images the power of two, at least 32, that leaves 16 steps in an
      epoch. For fewer than 32 images all of them.
    - MoCo's queue has one key for four images, in whole batches, at most 65,536: a longer one often has
      an older key of the image itself among the negatives.
    - SGD where there is BatchNorm, else AdamW, at 0.3 and 0.0005 for 256 images, in proportion to the batch,
      and a tenth of it from a start. The heads have BatchNorm, which short trainings need.

    What depends on the numbers of epochs and of images in a batch follows those that overrides ask for.
    Where there are classes, nearest neighbours among the training images are measured twenty times on the
    way; where there are test images, too, those and a linear probe after the training, else nothing.

    Raises:
        ZooError: for a recipe, start or data that are missing, cannot be found or do not fit.
    """
    overrides = as_overrides(overrides)
    _refuse_decided(overrides)
    learned = _check_objective(objective)
    if data is None:
        raise DataError(
            "pretrain: found no recipe and no data, expected a recipe's name or file, or data to make one "
            "for, e.g. --data DIR"
        )
    config, root, _ = as_data(data)
    if (init is None) == (arch is None):
        found = "neither init nor arch" if init is None else "both init and arch"
        raise RecipeError(
            f"pretrain: found no recipe and {found}, expected one of them: init, the release or "
            "timm:ARCH.TAG to start from, or arch, an architecture with new weights"
        )
    config = overridden_data(config, overrides)
    if init is not None:
        start = find_start(init)
        backbone, told = backbone_of(start), f"started from {start.told}"
        section: dict[str, Any] | None = {"release": start.spelling}
    else:
        backbone, told, section = _new(str(arch), overrides), "from random weights", None
    sized = at_size(backbone, asked(overrides, "views.eval.size", backbone.preprocess.input_size))
    train_set = open_dataset(config, "train", root, unlabelled=True)
    if config.holdout is not None and not has_classes(train_set):  # by which nothing could be measured
        config = config.model_copy(update={"holdout": Holdout(fraction=0)})
        train_set = open_dataset(config, "train", root, unlabelled=True)
    if len(train_set) < 2:
        raise DataError(f"data: found {len(train_set)} training image, expected at least 2, better thousands")
    plain = pretraining(learned, sized, told, config, root, train_set, overrides, started=init is not None)
    plain["init"] = section
    planned = Recipe.from_yaml(dump_yaml(plain), str(plain["name"]), overrides)
    return Pretraining(planned, root)


def refuse_beside_a_recipe(**given: object) -> None:
    """Refuse what a recipe is made by where one is given, which has it itself.

    Raises:
        RecipeError: naming it, and the recipe's keys.
    """
    instead = {
        "init": "init={release: ...}",
        "arch": "backbone.arch and a name that begins with it",
        "objective": "objective={name: ..., ...}",
    }
    for key, value in given.items():
        if value is not None:
            raise RecipeError(
                f'{key}: found "{value}" beside a recipe, expected it without one; a recipe has '
                f"{instead[key]}"
            )


def _refuse_decided(overrides: Sequence[str]) -> None:
    """Refuse overrides of what a made recipe is named and described by; arguments decide it."""
    for each in overrides:
        key = each.partition("=")[0].strip()
        if key.partition(".")[0] == "init" or key in ("objective", "objective.name", "backbone.arch"):
            argument = "arch" if key.startswith("backbone") else key.partition(".")[0]
            raise RecipeError(
                f'overrides: found "{each}" without a recipe, expected --{argument}, by which the recipe is '
                "made; anything else is for a recipe of your own"
            )


def data_in_place(
    recipe: Recipe | str | Path, data: Data, overrides: Sequence[str]
) -> tuple[Root, Sequence[str]]:
    """Turn data in place of a recipe's own into overrides, which come before others.

    Returns:
        The place of the data, and all overrides; for the recipe's own data these are as they are.

    Raises:
        ZooError: for data that do not fit, or a recipe that cannot be read.
    """
    if data is None:
        return None, overrides
    config, root, is_own = resolve(data, as_recipe(recipe, overrides).data)
    if is_own:
        return root, overrides
    keys = ["source", "holdout", "long_tail", "subset"]
    plain = config.model_dump(mode="json")
    return root, [*as_overrides({f"data.{key}": plain.get(key) for key in keys}), *overrides]


def _check_objective(objective: str | None) -> MadeFor:
    for known in TITLES:
        if objective in (None, known):
            return known
    raise RecipeError(
        f'objective: found "{objective}", expected {" or ".join(TITLES)}, for which recipes are made; '
        f"others are trained by a recipe of theirs.{did_you_mean(objective, TITLES)}"
    )


def _new(arch: str, overrides: Sequence[str]) -> Backbone:
    """Return a backbone with new weights, its arguments as overrides of `backbone` have them."""
    plain: dict[str, Any] = {"backbone": {"arch": arch, "args": {}}}
    for each in overrides:
        if each.strip().startswith("backbone."):
            apply(plain, each, "overrides")
    section = parse(BackboneSection, plain["backbone"], "backbone")
    return new_backbone(section.arch, section.args)
