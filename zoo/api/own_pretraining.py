"""`zoo.pretrain`: by a recipe, or by one that is made for somebody's own images, labelled or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from zoo.api.finetuning import words_and_name
from zoo.api.made_recipes import (
    SMALL,
    Backbone,
    asked,
    at_size,
    backbone_of,
    cosine_section,
    data_section,
    find_start,
    mirrored,
    new_backbone,
    overridden_data,
    training_section,
    views_section,
)
from zoo.api.pretraining import as_recipe
from zoo.api.pretraining import pretrain as pretrain_by_recipe
from zoo.config import dump_yaml, parse
from zoo.data import DataConfig, ImageDataset, open_dataset
from zoo.data.any_data import Data, as_data, resolve
from zoo.data.config import Holdout
from zoo.data.memory import Root
from zoo.errors import DataError, RecipeError, did_you_mean
from zoo.image_list import ImageList
from zoo.release import Release
from zoo.training import Recipe
from zoo.training.overrides import Overrides, apply, as_overrides
from zoo.training.sections import BackboneSection

MadeFor = Literal["moco", "simclr"]
"""Objectives that recipes are made for; both learn without labels."""

_TITLES: dict[MadeFor, tuple[str, str]] = {"moco": ("MoCo v2", "moco_v2"), "simclr": ("SimCLR", "simclr")}
_EPOCHS, _SEEN, _FEWEST = 200, 10_000_000, 50  # at most, images seen in all, epochs at least
_BATCH, _SMALLEST, _STEPS = 256, 32, 16  # images of a step at most and at least, steps of an epoch
_QUEUE, _PART = 65_536, 4  # keys at most; images for each key
_LOOKS = 20  # at the neighbours, and checkpoints that are written
_GROUP = 32  # keys with BatchNorm statistics of their own: those of one of the authors' GPUs


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
    stages_at: str | Path | None = None,
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
            With other data or another objective, a shipped recipe's release gets a name of its own.
        init: without a recipe, the weights to start from: a release, its name or folder, or `timm:ARCH.TAG`.
        arch: without a recipe, in place of `init`: the architecture, with new weights.
        objective: without a recipe "moco", which is the default, or "simclr".
        stages_at: for a recipe with a `method`, where its trainings lie instead of in `run`. Several recipes
            may share the folder: a training that another one has finished is taken as it is, and one that was
            stopped is continued.
        images: which to train ("train") and measure on ("test"), as `Release.images` of another release lists
            them: out of another copy of the data, where long tail and subset would draw others.

    Returns:
        The release in `out`.

    Raises:
        Interrupted: on SIGINT, SIGTERM or SIGUSR1, after saving the state.
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
    return pretrain_by_recipe(
        recipe, out=out, data=data, resume=resume, overrides=overrides, stages_at=stages_at, images=images
    )


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
        section: dict[str, Any] | None = {"release": start.spelling, "head": "fresh"}
    else:
        backbone, told, section = _new(str(arch), overrides), "from random weights", None
    sized = at_size(backbone, asked(overrides, "views.eval.size", backbone.preprocess.input_size))
    train_set = open_dataset(config, "train", root, unlabelled=True)
    if config.holdout is not None and not _has_classes(train_set):  # by which nothing could be measured
        config = config.model_copy(update={"holdout": Holdout(fraction=0)})
        train_set = open_dataset(config, "train", root, unlabelled=True)
    if len(train_set) < 2:
        raise DataError(f"data: found {len(train_set)} training image, expected at least 2, better thousands")
    plain = _default_recipe(
        learned, sized, told, config, root, train_set, overrides, started=init is not None
    )
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
    keys = ["source", "holdout", "long_tail", "subset", *(config.model_fields_set & {"max_bad_images"})]
    plain = config.model_dump(mode="json")
    return root, [*as_overrides({f"data.{key}": plain.get(key) for key in keys}), *overrides]


def _check_objective(objective: str | None) -> MadeFor:
    for known in _TITLES:
        if objective in (None, known):
            return known
    raise RecipeError(
        f'objective: found "{objective}", expected {" or ".join(_TITLES)}, for which recipes are made; '
        f"others are trained by a recipe of theirs.{did_you_mean(objective, _TITLES)}"
    )


def _new(arch: str, overrides: Sequence[str]) -> Backbone:
    """Return a backbone with new weights, its arguments as overrides of `backbone` have them."""
    plain: dict[str, Any] = {"backbone": {"arch": arch, "args": {}}}
    for each in overrides:
        if each.strip().startswith("backbone."):
            apply(plain, each, "overrides")
    section = parse(BackboneSection, plain["backbone"], "backbone")
    return new_backbone(section.arch, section.args)


def _default_recipe(
    objective: MadeFor,
    backbone: Backbone,
    told: str,
    config: DataConfig,
    root: Root,
    train_set: ImageDataset,
    overrides: Sequence[str],
    *,
    started: bool,
) -> dict[str, Any]:
    """Return the plain values of the recipe that `plan_own_pretraining` describes, without its `init`."""
    images, convolutional = len(train_set), backbone.convolutional
    epochs = asked(overrides, "training.epochs", _epochs(images))
    batch = asked(overrides, "training.batch_size", _batch(images))
    title, tag = _TITLES[objective]
    words, name = words_and_name(config, root, f"{backbone.arch}.{tag}_")
    views = [_view(config, backbone.preprocess.input_size) for _ in range(2)]
    rate = (0.3 if convolutional else 5e-4) * (0.1 if started else 1.0) * batch / _BATCH
    training = training_section(
        backbone,
        epochs=epochs,
        batch_size=batch,
        drop_last=batch <= images,
        checkpoint_every=max(1, epochs // _LOOKS),
    )
    return {
        "name": name,
        "description": f"{title} on {words}, without labels, {told}; a recipe made for these images.",
        "backbone": backbone.section,
        "data": data_section(config, backbone.preprocess),
        "views": views_section(config.source, backbone.preprocess, views),
        "objective": _objective(objective, images, batch),
        "optimizer": {
            "name": "momentum" if convolutional else "adamw",
            "lr": float(f"{rate:.4g}"),
            "weight_decay": 1e-4 if convolutional else 0.05,
            "momentum": 0.9,
            "decay_norm_and_bias": convolutional,
            "layer_decay": None,
        },
        "schedule": cosine_section(min(10, epochs // 10)),
        "training": training
        | {
            "sync_batchnorm": objective == "simclr",
            "knn_every": max(1, epochs // _LOOKS) if _has_classes(train_set) else None,
        },
        "evaluation": _protocols(config, root, train_set),
    }


def _epochs(images: int) -> int:
    return max(_FEWEST, min(_EPOCHS, _SEEN // images))


def _batch(images: int) -> int:
    if images < _SMALLEST:
        return images
    power = 1 << max(0, (images // _STEPS).bit_length() - 1)
    return min(_BATCH, max(_SMALLEST, power))


def _view(config: DataConfig, size: int) -> list[dict[str, Any]]:
    """Return a view of MoCo v2's, `--aug-plus` in https://github.com/facebookresearch/moco, for this size."""
    view: list[dict[str, Any]] = [
        {"op": "random_resized_crop", "size": size, "scale": [0.2, 1.0]},
        {"op": "color_jitter", "p": 0.8, "brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1},
        {"op": "grayscale", "p": 0.2},
    ]
    if size > SMALL:  # below, it would be half a pixel
        widest = float(f"{2.0 * size / 224:.3g}")
        kernel = 2 * (size // 20) + 1  # a tenth of a side, as SimCLR has it: 23 of 224
        view.append({"op": "gaussian_blur", "p": 0.5, "sigma": [widest / 20, widest], "kernel_size": kernel})
    return [*view, *mirrored(config.source)]


def _objective(objective: MadeFor, images: int, batch: int) -> dict[str, Any]:
    head = {"dim": 128, "head_layers": 2, "head_hidden": 2048, "head_batchnorm": True, "tau": 0.2}
    if objective == "simclr":
        return {"name": "simclr", **head}
    return {
        "name": "moco",
        **head,
        "queue_size": max(batch, min(_QUEUE, images // _PART) // batch * batch),
        "momentum": {"kind": "cosine", "start": 0.99, "end": 0.999},  # short trainings need the faster start
        "key_groups": max(2, batch // _GROUP) if batch >= 4 else 1,
        "feature_transform": None,
        "loss": {"name": "info_nce"},
    }


def _has_classes(train_set: ImageDataset) -> bool:
    """Whether neighbours can be asked for them: there are several, and of one at least two images."""
    counts = train_set.class_counts
    return train_set.num_classes > 1 and bool((counts > 1).any())


def _protocols(config: DataConfig, root: Root, train_set: ImageDataset) -> list[dict[str, Any]]:
    """Return what can be measured: without classes, or images to test on, nothing."""
    if not _has_classes(train_set) or bool((train_set.labels < 0).any()):
        return []
    try:
        open_dataset(config, "test", root)
    except DataError:  # said once more, as a warning, when the training begins
        return []
    return [{"protocol": "linear"}, {"protocol": "knn"}]
