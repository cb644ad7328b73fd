"""Recipes that are made for people's own images: a fine-tuning, or a pretraining without labels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from timm.data import resolve_data_config
from torch import nn

from zoo import backbones, hub
from zoo.config import dump_yaml, parse
from zoo.data import DataConfig, ImageDataset, open_dataset
from zoo.data.config import Digits, Holdout, Memory, TorchvisionSource, selection_words
from zoo.data.memory import Root
from zoo.data.sources import data_name
from zoo.errors import DataError, RecipeError, did_you_mean
from zoo.modules import has_batchnorm
from zoo.recipe.overrides import apply, override_of, value_of
from zoo.recipe.recipe import Recipe
from zoo.recipe.sections import BackboneSection
from zoo.release import Preprocess, Release
from zoo.release.schema import MAX_NAME

SMALL = 64
"""Up to so many pixels a side, images are kept at the input's size and augmented on the device."""

TITLES = {"moco": ("MoCo v2", "moco_v2"), "simclr": ("SimCLR", "simclr")}
"""Objectives that recipes are made for: what they are called in a description, and in a name."""

_WORKERS = 4  # that decode images; not the machine's number of cores, for recipes are to be the same anywhere
_LOOKS = 20  # at the neighbours, and checkpoints that are written


def finetuning(
    init: str | Path | Release, config: DataConfig, root: Root, overrides: Sequence[str]
) -> Recipe:
    """Return a recipe for fine-tuning a release on labelled images.

    It is cross-entropy with a new head on the release's architecture, evaluation view, mean and std. Up to 64
    pixels images are scaled to the size, padded, cropped and mirrored (digits are not), above they are
    cropped, resized and mirrored. Architectures with BatchNorm get SGD, others AdamW with layer-wise decay;
    both a cosine over 600 steps of 64 images, but no fewer than 5 epochs nor more than 50, or over as many
    epochs as an override asks for. A tenth of them warm up.

    Args:
        init: the release to start from.
        config: of the images.
        root: their place.
        overrides: `a.b=c`, applied last; `init.release` stays.

    Raises:
        ZooError: for a release or data that cannot be found or do not fit.
    """
    config = _overridden(config, overrides)
    images = len(open_dataset(config, "train", root))
    epochs = _asked(overrides, "training.epochs", min(max(-(-600 * 64 // images), 5), 50))
    batch = _asked(overrides, "training.batch_size", min(64, images))
    plain = _of_architecture(config, overrides, init, None)
    size, arch = plain["views"]["eval"]["size"], plain["backbone"]["arch"]
    crop: dict[str, Any] = {"op": "pad_crop", "size": size, "padding": size // 8}
    if size > SMALL:
        crop = {"op": "random_resized_crop", "size": size}
    words = _words(config, root)
    plain |= {
        "name": _named(f"{arch}.finetuned", words),
        "description": f"Cross-entropy on {words}, started from {hub.open(init).name}; a recipe made for it.",
        "objective": "classify",
        "schedule": {"name": "cosine", "warmup_epochs": epochs // 10},
        "evaluation": ["classifier"],
    }
    plain["views"]["train"] = [[crop, *_mirrored(config)]]
    plain["optimizer"]["lr"] = 0.03 if plain["optimizer"]["name"] == "momentum" else 5e-4
    plain["training"] |= {
        "epochs": epochs,
        "batch_size": batch,
        "drop_last": images % batch == 1,  # BatchNorm needs two images
        "checkpoint_every": max(1, epochs // 4),
    }
    return _made(plain, overrides, init)


def pretraining(
    config: DataConfig,
    root: Root,
    overrides: Sequence[str],
    *,
    init: str | Path | Release | None = None,
    arch: str | None = None,
    objective: str | None = None,
) -> Recipe:
    """Return a recipe for pretraining on images, whose classes, if they have any, are only measured by.

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

    Args:
        config: of the images.
        root: their place.
        overrides: as in `finetuning`.
        init: the release to start from.
        arch: or an architecture of timm's, with new weights.
        objective: "moco", also for None, or "simclr".

    Raises:
        ZooError: for a start, architecture, objective or data that are missing, unknown or do not fit.
    """
    if (init is None) == (arch is None):
        found = "neither init nor arch" if init is None else "both init and arch"
        raise RecipeError(
            f"pretrain: found no recipe and {found}, expected one of them: init, the release or "
            "timm:ARCH.TAG to start from, or arch, an architecture with new weights"
        )
    learned = objective or "moco"
    if learned not in TITLES:
        hint = did_you_mean(learned, TITLES)
        raise RecipeError(
            f'objective: found "{learned}", expected {" or ".join(TITLES)} without a recipe.{hint}'
        )
    config = _overridden(config, overrides)
    plain = _of_architecture(config, overrides, init, arch)
    train_set = open_dataset(config, "train", root, unlabelled=True)
    classes = train_set.num_classes > 1 and bool((train_set.class_counts > 1).any())
    if config.holdout is not None and not classes:  # nothing could be measured by what is held out
        config = config.model_copy(update={"holdout": Holdout(fraction=0)})
        train_set = open_dataset(config, "train", root, unlabelled=True)
        plain["data"]["holdout"] = {"fraction": 0}
    images, sgd = len(train_set), plain["optimizer"]["name"] == "momentum"
    epochs = _asked(overrides, "training.epochs", epochs_for(images))
    batch = _asked(overrides, "training.batch_size", batch_for(images))
    rate = (0.3 if sgd else 5e-4) * (0.1 if init is not None else 1.0) * batch / 256
    (title, tag), words = TITLES[learned], _words(config, root)
    start = "from random weights" if init is None else f"started from {hub.open(init).name}"
    plain |= {
        "name": _named(f"{plain['backbone']['arch']}.{tag}", words),
        "description": f"{title} on {words}, without labels, {start}; a recipe made for these images.",
        "objective": _objective(learned, images, batch),
        "schedule": {"name": "cosine", "warmup_epochs": min(10, epochs // 10)},
        "evaluation": ["linear", "knn"] if classes and _can_be_measured(config, root, train_set) else [],
    }
    size = plain["views"]["eval"]["size"]
    plain["views"]["train"] = [_view(config, size), _view(config, size)]
    plain["optimizer"] |= {"lr": float(f"{rate:.4g}"), "layer_decay": None}
    plain["training"] |= {
        "epochs": epochs,
        "batch_size": batch,
        "drop_last": batch <= images,
        "checkpoint_every": max(1, epochs // _LOOKS),
        "sync_batchnorm": learned == "simclr",
        "knn_every": max(1, epochs // _LOOKS) if classes else None,
    }
    return _made(plain, overrides, init)


def epochs_for(images: int) -> int:
    """Return the epochs of a pretraining on so many images."""
    return max(50, min(200, 10_000_000 // images))


def batch_for(images: int) -> int:
    """Return the images of a step of a pretraining on so many images."""
    power = 1 << max(0, (images // 16).bit_length() - 1)
    return min(256, images, max(32, power))


def _of_architecture(
    config: DataConfig, overrides: Sequence[str], init: str | Path | Release | None, arch: str | None
) -> dict[str, Any]:
    """Return what of a recipe follows from the architecture, its input and the kind of images alone."""
    args = value_of(overrides, "backbone.args") or {}
    if init is not None:
        release = hub.open(init)
        arch, args = str(release.config["architecture"]), dict(release.config["model_args"])
    section = parse(BackboneSection, {"arch": arch, "args": args}, "backbone")
    model = _without_weights(section.arch, args)
    view = _timms(model) if init is None else release.preprocess
    size = _asked(overrides, "views.eval.size", view.input_size)
    if size != view.input_size:
        if backbones.size_built_for(model) not in (None, size):
            args = args | {"img_size": size}
        _without_weights(section.arch, args)  # refuses a size
    # a pooling by attention stands behind convolutions
    names = {type(module).__name__.lower() for module in model.modules()}
    attends = any("attention" in name and "pool" not in name for name in names)
    convolutional, layered = has_batchnorm(model) and not attends, hasattr(model, "group_matcher")
    small, decoded = size <= SMALL, isinstance(config.source, Digits | TorchvisionSource | Memory)
    return {
        "backbone": {"arch": section.arch, "args": args},
        "data": config.model_dump(mode="json")
        | {
            "partial_labels": None,
            "mean": list(view.mean),
            "std": list(view.std),
            "image_size": size if small else None,
        },
        "views": {
            "backend": "tensor" if small else "stream",
            "workers": 0 if decoded and small else _WORKERS,
            "eval": {"size": size, "crop_pct": view.crop_pct, "interpolation": view.interpolation},
        },
        "optimizer": {
            "name": "momentum" if convolutional else "adamw",
            "weight_decay": 1e-4 if convolutional else 0.05,
            "decay_norm_and_bias": convolutional,
            "layer_decay": None if convolutional or not layered else 0.75,
        },
        "training": {
            "channels_last": convolutional,
            "clip_grad": None if convolutional else 1.0,
            "observe_every": 20,
            "log_every": 10,
        },
    }


def _without_weights(arch: str, args: dict[str, Any]) -> nn.Module:
    with torch.device("meta"):
        return backbones.create(arch, **args)


def _timms(model: nn.Module) -> Preprocess:
    cfg = resolve_data_config({}, pretrained_cfg=model.pretrained_cfg)
    mean, std = tuple(cfg["mean"]), tuple(cfg["std"])
    return Preprocess(cfg["input_size"][-1], cfg["crop_pct"], cfg["interpolation"], mean, std)


def _overridden(config: DataConfig, overrides: Sequence[str]) -> DataConfig:
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


def _words(config: DataConfig, root: Root) -> str:
    """Name the training data: `digits, long tail 50`."""
    plain = config.model_dump(mode="json")
    return ", ".join([data_name(config.source, root), *selection_words(plain["long_tail"], plain["subset"])])


def _named(beginning: str, words: str) -> str:
    """Return the name of a recipe for data that are called so."""
    tag = re.sub(r"[^A-Za-z0-9]+", "_", words).strip("_") or "data"
    return f"{beginning}_{tag}"[:MAX_NAME]


def _made(plain: dict[str, Any], overrides: Sequence[str], init: str | Path | Release | None) -> Recipe:
    """Return the recipe with overrides, none of which replaces the start."""
    last = [*overrides]
    if init is not None:
        plain["init"] = {"release": hub.resolve(init).spelling}
        last.append(override_of("init.release", plain["init"]["release"]))
    return Recipe.from_yaml(dump_yaml(plain), str(plain["name"]), last)


def _mirrored(config: DataConfig) -> list[str]:
    """Return the operation that mirrors every other image, where a mirror image shows the same."""
    return [] if isinstance(config.source, Digits) else ["horizontal_flip"]


def _view(config: DataConfig, size: int) -> list[Any]:
    """Return a view of MoCo v2's, `--aug-plus` in https://github.com/facebookresearch/moco, for this size."""
    view: list[Any] = [{"op": "random_resized_crop", "size": size}, "color_jitter", "grayscale"]
    if size > SMALL:  # below, it would be half a pixel
        widest = float(f"{2.0 * size / 224:.3g}")
        kernel = 2 * (size // 20) + 1  # a tenth of a side, as SimCLR has it: 23 of 224
        view.append({"op": "gaussian_blur", "sigma": [widest / 20, widest], "kernel_size": kernel})
    return [*view, *_mirrored(config)]


def _objective(objective: str, images: int, batch: int) -> dict[str, Any]:
    if objective == "simclr":
        return {"name": "simclr", "tau": 0.2}
    return {
        "name": "moco",
        "head_batchnorm": True,
        "queue_size": max(batch, min(65_536, images // 4) // batch * batch),
        "momentum": {"kind": "cosine", "start": 0.99, "end": 0.999},  # short trainings need the faster start
        "key_groups": max(2, batch // 32) if batch >= 4 else 1,  # 32 images on each of the authors' GPUs
    }


def _can_be_measured(config: DataConfig, root: Root, train_set: ImageDataset) -> bool:
    if bool((train_set.labels < 0).any()):
        return False
    try:
        open_dataset(config, "test", root)
    except DataError:  # said once more, as a warning, when the training begins
        return False
    return True
