"""Recipes made for people's own images: a fine-tuning, or a pretraining without labels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from timm.data import resolve_data_config

from zoo import backbones, hub
from zoo.config import dump_yaml, parse
from zoo.data import DataConfig, open_dataset
from zoo.data.config import Digits, Holdout, Memory, TorchvisionSource, data_words
from zoo.data.dataset import Root
from zoo.data.sources import data_name
from zoo.errors import DataError, RecipeError, did_you_mean
from zoo.modules import has_batchnorm
from zoo.recipe.overrides import apply, override_of, value_of
from zoo.recipe.recipe import Recipe
from zoo.recipe.sections import BackboneSection
from zoo.release import Preprocess, Release
from zoo.release.schema import MAX_NAME

Start = str | Path | Release | None
SMALL = 64  # pixels a side, up to which images are kept at the input's size and augmented on the device
TITLES = {"moco": ("MoCo v2", "moco_v2"), "simclr": ("SimCLR", "simclr")}  # in descriptions, and in names


def finetuning(
    init: str | Path | Release, config: DataConfig, root: Root, overrides: Sequence[str]
) -> Recipe:
    """Return a recipe for fine-tuning a release on labelled images: cross-entropy with a new head.

    600 steps of 64 images, but 5 to 50 epochs; a tenth of them warm up. What depends on the numbers of epochs
    and of images in a batch follows those that overrides ask for; `init.release` stays.

    Raises:
        ZooError: for a release or data that cannot be found or do not fit.
    """
    config = _changed(config, overrides)
    images = len(open_dataset(config, "train", root))
    epochs = _asked(overrides, "training.epochs", min(max(-(-600 * 64 // images), 5), 50))
    batch = _asked(overrides, "training.batch_size", min(64, images))
    plain, sgd = _common(config, overrides, init, None)
    size = plain["views"]["eval"]["size"]
    pad_crop = {"op": "pad_crop", "size": size, "padding": size // 8}
    crop = pad_crop if size <= SMALL else {"op": "random_resized_crop", "size": size}
    plain["views"]["train"] = [[crop, *_mirror(config)]]
    plain["optimizer"]["lr"] = 0.03 if sgd else 5e-4
    plain["training"] |= {
        "epochs": epochs,
        "batch_size": batch,
        "drop_last": images % batch == 1,  # BatchNorm needs two images
        "checkpoint_every": max(1, epochs // 4),
    }
    plain |= {
        "description": f"Cross-entropy on {{}}, started from {hub.open(init).name}; a recipe made for it.",
        "objective": "classify",
        "schedule": {"name": "cosine", "warmup_epochs": epochs // 10},
        "evaluation": ["classifier"],
    }
    return _made(plain, "finetuned", config, root, overrides, init)


def pretraining(
    config: DataConfig,
    root: Root,
    overrides: Sequence[str],
    *,
    init: Start = None,
    arch: str | None = None,
    objective: str | None = None,
) -> Recipe:
    """Return a recipe for pretraining on images by "moco" (MoCo v2, the default) or "simclr".

    Views are MoCo v2's (`--aug-plus` in https://github.com/facebookresearch/moco), with a blur in proportion
    to the input. It starts from a release, `init`, or an architecture with new weights, `arch`. As in
    `finetuning`, the rest follows the epochs and the batch that overrides ask for.

    Raises:
        ZooError: for a start, architecture, objective or data that are missing, unknown or do not fit.
    """
    if (init is None) == (arch is None):
        found = "neither init nor arch" if init is None else "both init and arch"
        raise RecipeError(f"pretrain: found no recipe and {found}, expected one of them")
    learned = objective or "moco"
    if learned not in TITLES:
        hint = did_you_mean(learned, TITLES)
        raise RecipeError(f'objective: found "{learned}", expected moco or simclr without a recipe.{hint}')
    config = _changed(config, overrides)
    train_set = open_dataset(config, "train", root, unlabelled=True)
    classes = train_set.num_classes > 1 and bool((train_set.class_counts > 1).any())
    if config.holdout is not None and not classes:  # nothing could be measured by what is held out
        config = config.model_copy(update={"holdout": Holdout(fraction=0)})
        train_set = open_dataset(config, "train", root, unlabelled=True)
    protocols: list[str] = []
    with suppress(DataError):  # no test images: a warning when the training begins
        if classes and not bool((train_set.labels < 0).any()):
            open_dataset(config, "test", root)
            protocols = ["linear", "knn"]
    plain, sgd = _common(config, overrides, init, arch)
    images, size = len(train_set), plain["views"]["eval"]["size"]
    epochs = _asked(overrides, "training.epochs", epochs_for(images))
    batch = _asked(overrides, "training.batch_size", batch_for(images))
    widest, kernel = float(f"{2.0 * size / 224:.3g}"), 2 * (size // 20) + 1  # 2 and 23 pixels of 224
    blur = {"op": "gaussian_blur", "sigma": [widest / 20, widest], "kernel_size": kernel}
    crop = {"op": "random_resized_crop", "size": size}
    blurred = [blur] if size > SMALL else []  # below, it would be half a pixel
    view = [crop, "color_jitter", "grayscale", *blurred, *_mirror(config)]
    moco = {
        "name": "moco",
        "head_batchnorm": True,
        # a longer queue often has an older key of the image itself among the negatives
        "queue_size": max(batch, min(65_536, images // 4) // batch * batch),
        "momentum": {"kind": "cosine", "start": 0.99, "end": 0.999},  # short trainings need the faster start
        "key_groups": max(2, batch // 32) if batch >= 4 else 1,  # 32 images on each of the authors' GPUs
    }
    rate = (0.3 if sgd else 5e-4) * (0.1 if init is not None else 1.0) * batch / 256
    start = "from random weights" if init is None else f"started from {hub.open(init).name}"
    title, tag = TITLES[learned]
    plain["views"]["train"] = [view, view]
    plain["optimizer"] |= {"lr": float(f"{rate:.4g}"), "layer_decay": None}
    plain["training"] |= {
        "epochs": epochs,
        "batch_size": batch,
        "drop_last": batch <= images,
        "checkpoint_every": max(1, epochs // 20),
        "sync_batchnorm": learned == "simclr",
        "knn_every": max(1, epochs // 20) if classes else None,
    }
    plain |= {
        "description": f"{title} on {{}}, without labels, {start}; a recipe made for these images.",
        "objective": moco if learned == "moco" else {"name": "simclr", "tau": 0.2},
        "schedule": {"name": "cosine", "warmup_epochs": min(10, epochs // 10)},
        "evaluation": protocols,
    }
    return _made(plain, tag, config, root, overrides, init)


def epochs_for(images: int) -> int:
    """Return the epochs of a pretraining: 200, for more than 50,000 images fewer, but at least 50."""
    return max(50, min(200, 10_000_000 // images))


def batch_for(images: int) -> int:
    """Return the batch of a pretraining: 256, or a power of two from 32 on that leaves 16 steps an epoch."""
    return min(256, images, max(32, 1 << max(0, (images // 16).bit_length() - 1)))


def _common(
    config: DataConfig, overrides: Sequence[str], init: Start, arch: str | None
) -> tuple[dict[str, Any], bool]:
    """Return what follows from architecture, input and kind of images alone, and whether it is for SGD."""
    args, view = value_of(overrides, "backbone.args") or {}, None
    if init is not None:
        release = hub.open(init)
        arch, args = str(release.config["architecture"]), dict(release.config["model_args"])
        view = release.preprocess
    arch = parse(BackboneSection, {"arch": arch, "args": args}, "backbone").arch
    with torch.device("meta"):
        model = backbones.create(arch, **args)
    if view is None:
        cfg = resolve_data_config({}, pretrained_cfg=model.pretrained_cfg)
        mean, std = tuple(cfg["mean"]), tuple(cfg["std"])
        view = Preprocess(cfg["input_size"][-1], cfg["crop_pct"], cfg["interpolation"], mean, std)
    size = _asked(overrides, "views.eval.size", view.input_size)
    if size != view.input_size:
        if backbones.size_built_for(model) not in (None, size):
            args = args | {"img_size": size}
        with torch.device("meta"):
            backbones.create(arch, **args)  # refuses a size
    # a pooling by attention stands behind convolutions
    names = {type(module).__name__.lower() for module in model.modules()}
    sgd = has_batchnorm(model) and not any("attention" in name and "pool" not in name for name in names)
    small, decoded = size <= SMALL, isinstance(config.source, Digits | TorchvisionSource | Memory)
    pixels = {"mean": list(view.mean), "std": list(view.std), "image_size": size if small else None}
    plain: dict[str, Any] = {
        "backbone": {"arch": arch, "args": args},
        "data": config.model_dump(mode="json") | {"partial_labels": None} | pixels,
        "views": {
            "backend": "tensor" if small else "stream",
            "workers": 0 if decoded and small else 4,  # the same on every machine
            "eval": {"size": size, "crop_pct": view.crop_pct, "interpolation": view.interpolation},
        },
        "optimizer": {
            "name": "momentum" if sgd else "adamw",
            "weight_decay": 1e-4 if sgd else 0.05,
            "decay_norm_and_bias": sgd,
            "layer_decay": None if sgd or not hasattr(model, "group_matcher") else 0.75,
        },
        "training": {
            "channels_last": sgd,
            "clip_grad": None if sgd else 1.0,
            "observe_every": 20,
            "log_every": 10,
        },
    }
    return plain, sgd


def _changed(config: DataConfig, overrides: Sequence[str]) -> DataConfig:
    """Return the data as overrides of `data` have it, by which the rest of a recipe is made."""
    plain = {"data": config.model_dump(mode="json")}
    for each in overrides:
        if each.strip().startswith("data."):
            apply(plain, each, "overrides")
    return parse(DataConfig, plain["data"], "data")


def _asked(overrides: Sequence[str], key: str, otherwise: int) -> int:
    """Return the positive number that an override asks for; any other value is the schema's to refuse."""
    value = value_of(overrides, key)
    return value if type(value) is int and value > 0 else otherwise


def _mirror(config: DataConfig) -> list[str]:
    return [] if isinstance(config.source, Digits) else ["horizontal_flip"]  # a mirrored digit is none


def _made(
    plain: dict[str, Any], tag: str, config: DataConfig, root: Root, overrides: Sequence[str], init: Start
) -> Recipe:
    """Return the recipe, named after its data, with overrides, none of which replaces the start."""
    words = data_words({**plain["data"], "name": data_name(config.source, root)})
    of_data = re.sub(r"[^A-Za-z0-9]+", "_", words).strip("_") or "data"
    plain["name"] = f"{plain['backbone']['arch']}.{tag}_{of_data}"[:MAX_NAME]
    plain["description"] = plain["description"].replace("{}", words)
    last = [*overrides]
    if init is not None:
        plain["init"] = {"release": hub.resolve(init).spelling}
        last.append(override_of("init.release", plain["init"]["release"]))
    return Recipe.from_yaml(dump_yaml(plain), str(plain["name"]), last)
