"""A training's recipe with every value, and the place of its images: read, or made for people's own images.

The recipes that are made are the files in `made`; what depends on images, start and overrides is computed
here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from string import Template
from typing import Any

import torch
from timm.data import resolve_data_config

from zoo import backbones, hub
from zoo.config import parse
from zoo.data import DataConfig, open_dataset
from zoo.data.any_data import Data, as_data, resolve
from zoo.data.config import Digits, Holdout, Memory, TorchvisionSource, selection_words
from zoo.data.memory import Root
from zoo.data.sources import as_archive, data_name
from zoo.errors import DataError, RecipeError, did_you_mean
from zoo.modules import has_batchnorm
from zoo.recipe.overrides import Overrides, apply, as_overrides, override_of, value_of
from zoo.recipe.recipe import Recipe
from zoo.release import Preprocess, Release
from zoo.release.schema import MAX_NAME

Start = str | Path | Release | None
MADE = ("moco", "simclr", "finetuning")
SMALL = 64  # pixels a side, up to which images are kept at the input's size and augmented on the device


def plan_pretraining(
    recipe: Recipe | str | Path | None = None,
    *,
    data: Data = None,
    overrides: Overrides = (),
    init: Start = None,
    arch: str | None = None,
    objective: str | None = None,
) -> tuple[Recipe, Root]:
    """Return the recipe of a training and the place of its data; the arguments are those of `pretrain`.

    Raises:
        ZooError: for a recipe, start or data that are missing, cannot be found or do not fit.
    """
    changes = as_overrides(overrides)
    if recipe is None:
        if data is None:
            raise DataError("pretrain: found no recipe and no data, expected one of them, e.g. --data DIR")
        config, root, _ = as_data(data)
        return make(objective or "moco", config, root, changes, init=init, arch=arch), root
    if (init, arch, objective) != (None, None, None):
        raise RecipeError(
            "init, arch, objective: found beside a recipe, expected --set, e.g. init.release=NAME"
        )
    made = Recipe.load(recipe, changes)
    given = resolve(data, made.data)
    if not given.is_own:
        plain = given.config.model_dump(mode="json")
        keys = ("source", "holdout", "long_tail", "subset")
        changes = [*(override_of(f"data.{key}", plain.get(key)) for key in keys), *changes]
        made = Recipe.load(recipe, changes)
    if changes and value_of(changes, "name") is None:
        with suppress(RecipeError):  # complete only with its overrides: there is nothing to compare with
            if _named_parts(Recipe.load(recipe)) != _named_parts(made):
                end = "_changed" if "." in made.name else ".changed"
                name = made.name.removesuffix(end)[: MAX_NAME - len(end)] + end
                made = made.model_copy(update={"name": name})
    return made, given.root


def _named_parts(recipe: Recipe) -> list[Any]:
    """Return what the name of a recipe tells: data, though not where they are, objective and method."""
    data, source, learned = recipe.data, as_archive(recipe.data.source), recipe.objective
    place = [getattr(source, key, None) for key in ("kind", "repo", "config", "label", "name")]
    loss, method = getattr(learned, "loss", None), recipe.method and recipe.method.name
    parts = [getattr(loss, "name", loss), getattr(learned, "distill", None), method]
    transformed = getattr(learned, "feature_transform", None) is not None
    return [*place, data.long_tail, data.subset, data.partial_labels, learned.name, *parts, transformed]


def make(
    kind: str,
    config: DataConfig,
    root: Root,
    overrides: Sequence[str],
    *,
    init: Start = None,
    arch: str | None = None,
) -> Recipe:
    """Return a recipe for images: `finetuning` of a release, or pretraining by `moco` (v2) or `simclr`.

    It starts from a release, `init`, or an architecture with new weights, `arch`. Fine-tuning takes 600 steps
    of 64 images, but 5 to 50 epochs. What depends on the numbers of epochs, of images in a batch and of pixels
    follows those that overrides ask for; none replaces the start.

    Raises:
        ZooError: for a start, architecture, objective or data that are missing, unknown or do not fit.
    """
    if (init is None) == (arch is None):
        found = "neither init nor arch" if init is None else "both init and arch"
        raise RecipeError(f"pretrain: found no recipe and {found}, expected one of them")
    if kind not in MADE:
        hint = did_you_mean(kind, MADE)
        raise RecipeError(f'objective: found "{kind}", expected moco or simclr without a recipe.{hint}')
    plain: dict[str, Any] = {"data": config.model_dump(mode="json")}
    for each in overrides:
        if each.strip().startswith("data."):
            apply(plain, each, "overrides")
    config = parse(DataConfig, plain["data"], "data")
    tunes, protocols = kind == "finetuning", list[str]()
    train_set = open_dataset(config, "train", root, unlabelled=not tunes)
    classes = train_set.num_classes > 1 and bool((train_set.class_counts > 1).any())
    if not (tunes or classes) and config.holdout is not None:  # nothing could be measured by it
        config = config.model_copy(update={"holdout": Holdout(fraction=0)})
        train_set = open_dataset(config, "train", root, unlabelled=True)
    with suppress(DataError):  # no test images: a warning when the training begins
        if classes and not bool((train_set.labels < 0).any()):
            open_dataset(config, "test", root)
            protocols = ["linear", "knn"]
    images = len(train_set)
    epochs = min(max(-(-600 * 64 // images), 5), 50) if tunes else epochs_for(images)
    epochs = _asked(overrides, "training.epochs", epochs)
    batch = _asked(overrides, "training.batch_size", min(64, images) if tunes else batch_for(images))
    values = _of_start(config, overrides, init, arch)
    rate = (0.3 if values["sgd"] else 5e-4) * (0.1 if init is not None else 1.0) * batch / 256
    words = ", ".join(
        [
            data_name(config.source, root),
            *selection_words(plain["data"]["long_tail"], plain["data"]["subset"]),
        ]
    )
    values |= {
        "words": words,
        "tag": re.sub(r"[^A-Za-z0-9]+", "_", words).strip("_") or "data",
        "epochs": epochs,
        "tenth": epochs // 10,
        "quarter": max(1, epochs // 4),
        "twentieth": max(1, epochs // 20),
        "batch": batch,
        "warmup": min(10, epochs // 10),
        "labelled_lr": 0.03 if values["sgd"] else 5e-4,
        "lr": float(f"{rate:.4g}"),
        "one_left": images % batch == 1,
        "full": batch <= images,
        "queue": max(batch, min(65_536, images // 4) // batch * batch),
        "key_groups": max(2, batch // 32) if batch >= 4 else 1,
        "knn_every": max(1, epochs // 20) if classes else None,
        "protocols": protocols,
    }
    template = Template((Path(__file__).parent / "made" / f"{kind}.yaml").read_text("utf-8"))
    # JSON is YAML; in the file, texts stand in quotes of their own
    texts = {key: json.dumps(value).strip('"') for key, value in values.items()}
    last = [] if init is None else [override_of("init.release", values["init"]["release"])]
    return Recipe.from_yaml(template.substitute(texts), f"{values['arch']}, {kind}", [*overrides, *last])


def epochs_for(images: int) -> int:
    """Return the epochs of a pretraining: 200, for more than 50,000 images fewer, but at least 50."""
    return max(50, min(200, 10_000_000 // images))


def batch_for(images: int) -> int:
    """Return the batch of a pretraining: 256, or a power of two from 32 on that leaves 16 steps an epoch."""
    return min(256, images, max(32, 1 << max(0, (images // 16).bit_length() - 1)))


def _of_start(config: DataConfig, overrides: Sequence[str], init: Start, arch: str | None) -> dict[str, Any]:
    """Return what follows from start, input and kind of images, whatever their number."""
    args, view, start = value_of(overrides, "backbone.args") or {}, None, "from random weights"
    if init is not None:
        release = hub.open(init)
        arch, args = str(release.config["architecture"]), dict(release.config["model_args"])
        view, start = release.preprocess, f"started from {release.name}"
    with torch.device("meta"):
        model = backbones.create(str(arch), **args)
    if view is None:
        cfg = resolve_data_config({}, pretrained_cfg=model.pretrained_cfg)
        view = Preprocess(
            cfg["input_size"][-1], cfg["crop_pct"], cfg["interpolation"], cfg["mean"], cfg["std"]
        )
    size = _asked(overrides, "views.eval.size", view.input_size)
    if size != view.input_size and backbones.size_built_for(model) not in (None, size):
        args = args | {"img_size": size}
    # a pooling by attention stands behind convolutions
    names = {type(module).__name__.lower() for module in model.modules()}
    sgd = has_batchnorm(model) and not any("attention" in name and "pool" not in name for name in names)
    small, decoded = size <= SMALL, isinstance(config.source, Digits | TorchvisionSource | Memory)
    widest = float(f"{2.0 * size / 224:.3g}")  # 2 of 224 pixels, in a kernel of 23
    blur = {"op": "gaussian_blur", "sigma": [widest / 20, widest], "kernel_size": 2 * (size // 20) + 1}
    pad_crop, crop = (
        {"op": "pad_crop", "size": size, "padding": size // 8},
        {"op": "random_resized_crop", "size": size},
    )
    flip = [] if isinstance(config.source, Digits) else ["horizontal_flip"]  # a mirrored digit is none
    pixels = {"mean": list(view.mean), "std": list(view.std), "image_size": size if small else None}
    return {
        "arch": arch,
        "args": args,
        "init": None if init is None else {"release": hub.resolve(init).spelling},
        "start": start,
        "data": config.model_dump(mode="json") | {"partial_labels": None} | pixels,
        "backend": "tensor" if small else "stream",
        "workers": 0 if decoded and small else 4,  # the same on every machine
        "labelled_view": [pad_crop if small else crop, *flip],
        "view": [crop, "color_jitter", "grayscale", *([] if small else [blur]), *flip],
        "eval": {"size": size, "crop_pct": view.crop_pct, "interpolation": view.interpolation},
        "sgd": sgd,
        "optimizer": "momentum" if sgd else "adamw",
        "weight_decay": 1e-4 if sgd else 0.05,
        "clip_grad": None if sgd else 1.0,
        "layer_decay": None if sgd or not hasattr(model, "group_matcher") else 0.75,
    }


def _asked(overrides: Sequence[str], key: str, otherwise: int) -> int:
    """Return the positive number that an override asks for; any other value is the schema's to refuse."""
    value = value_of(overrides, key)
    return value if type(value) is int and value > 0 else otherwise
