"""`zoo.finetune`: train from a release, on any data, with a recipe or with one made for the release."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import timm
import torch
from timm.data import resolve_data_config

from zoo import backbones
from zoo import release as releases
from zoo.api.evaluation import resolve_data
from zoo.api.pretraining import as_recipe, pretrain
from zoo.config import dump_yaml, parse
from zoo.data import DataConfig, open_dataset, parse_data_spec
from zoo.data.config import Digits, TorchvisionSource
from zoo.data.sources import data_name
from zoo.data.words import selection_words
from zoo.errors import RecipeError
from zoo.files import RUNS, is_dir
from zoo.modules import has_batchnorm
from zoo.release import Preprocess, Release, names
from zoo.release.schema import MAX_NAME
from zoo.training import Recipe
from zoo.training.build import TIMM, check_timm_weights
from zoo.training.description import changes_in_words
from zoo.training.overrides import Overrides, apply, as_overrides, value_of

SMALL = 64
"""Up to so many pixels a side, images are padded and cropped instead of cropped and resized."""

_STEPS, _BATCH, _EPOCHS = 1_500, 64, (10, 200)  # steps aimed at, images in each, fewest and most epochs
_DIGITS = 6  # of a hash, where a long name is cut
_WORKERS = 4  # that decode images; not the machine's number of cores, for recipes are to be the same anywhere


def finetune(
    recipe: Recipe | str | Path | None = None,
    *,
    init: str | Path | Release,
    out: str | Path | None = None,
    head: str | None = None,
    data: str | Path | None = None,
    resume: bool = False,
    overrides: Overrides = (),
) -> Release:
    """Train from a release instead of random weights; otherwise `pretrain`.

    Args:
        recipe: usually of the objective `classify`; None: one made for the release, see `plan_finetuning`.
        init: the release to start from: a weights name, `org/repo[@rev]`, a folder, a `Release`, or
            `timm:ARCH.TAG`.
        out: the release folder to make; None: `runs/NAME_finetuned`, NAME that of the recipe.
        head: "fresh" or "centers" (made of the release's learned centers); the recipe's own when None.
        data: a folder for the recipe's own source, or a spec such as "parquet:DIR?label=fine_label" or
            "digits?fraction=0.01" that takes the place of the recipe's source, long tail and subset.
        resume: see `pretrain`.
        overrides: see `pretrain`; applied to the recipe with its data in place.

    Raises:
        ZooError: as `pretrain`, and for a release or data that cannot be found.
    """
    plan = plan_finetuning(recipe, init=init, head=head, data=data, overrides=overrides)
    return pretrain(plan.recipe, out=out or plan.out, data=plan.data, resume=resume)


class Finetuning(NamedTuple):
    """What a fine-tuning will be.

    Attributes:
        recipe: with every value written out.
        data: the folder of its data, where one is needed.
        out: where its release goes by default.
    """

    recipe: Recipe
    data: Path | None
    out: Path


def plan_finetuning(
    recipe: Recipe | str | Path | None,
    *,
    init: str | Path | Release,
    head: str | None = None,
    data: str | Path | None = None,
    overrides: Overrides = (),
) -> Finetuning:
    """Return the recipe of a fine-tuning without running it; the arguments are those of `finetune`.

    Without a recipe it is cross-entropy with a new head on the release's architecture, evaluation view, mean
    and std. Up to 64 pixels images are scaled to the size, padded, cropped and mirrored (digits are not),
    above they are cropped, resized and mirrored. Architectures with BatchNorm get SGD, others AdamW with
    layer-wise decay; both a cosine over 1,500 steps of 64 images, but no fewer than 10 epochs nor more than
    200, or over as many epochs as an override asks for. A tenth of them warm up.

    Raises:
        ZooError: for a recipe, release or data that cannot be found or do not fit.
    """
    overrides = as_overrides(overrides)
    init = releases.portable(init)
    timms = str(init).startswith(TIMM)
    reading = None if timms else names.resolve(init)
    start = str(init) if reading is None else reading.spelling  # means one thing, always
    own = reading is not None and reading.kind == "folder"
    release = releases.open(init) if own or (recipe is None and not timms) else None
    told = f"{release.name} ({_hash(release)})" if own and release is not None else start
    if recipe is None:
        config, folder = resolve_data(data, release)
        config = _overridden(config, overrides)
        root = None if folder is None else Path(folder)
        plain = _default_recipe(start, told, release, config, root, overrides)
    else:
        given = as_recipe(recipe, overrides)
        plain, root = given.model_dump(mode="json"), Path(data) if data is not None else None
        changed = _changes(recipe, plain, overrides)
        ours = given.init
        if ours is None or ours.release not in (start, str(init)) or head not in (None, ours.head):
            plain["description"] = f"The recipe {given.name}, started from {told}{changed}."
        if data is not None and not is_dir(data):
            config, root = parse_data_spec(str(data))
            _put_data(plain, config, root, f"{told}{changed}")
    plain["init"] = (plain["init"] or {"head": "fresh"}) | {"release": start}
    final = Recipe.from_yaml(dump_yaml(plain), str(plain["name"]), overrides).model_dump(mode="json")
    final["init"] |= {"release": start, **({"head": head} if head else {})}  # which no override replaces
    planned = parse(Recipe, final, str(final["name"]))
    suffix = "" if "finetuned" in planned.name else "_finetuned"
    return Finetuning(planned, root, RUNS / f"{planned.name}{suffix}")


def _changes(recipe: Recipe | str | Path, plain: Mapping[str, Any], overrides: Sequence[str]) -> str:
    """Return what overrides change of a recipe, as the end of a sentence on it."""
    try:
        before = as_recipe(recipe, ()).model_dump(mode="json")
    except RecipeError:  # whole only with its overrides: there is nothing to compare with
        return ""
    words = changes_in_words(before, plain, overrides)
    return f", with {words}" if words else ""


def _hash(release: Release) -> str:
    """Say which weights a release in a folder has: where that lies is nobody's business but its owner's."""
    return f"weights of sha256 {release.config['zoo']['weights_sha256'][:12]}"


def _overridden(config: DataConfig, overrides: Sequence[str]) -> DataConfig:
    """Return the data as overrides of `data` have it, by which the rest of a recipe is made."""
    plain = {"data": config.model_dump(mode="json")}
    for each in overrides:
        if each.strip().startswith("data."):
            apply(plain, each, "overrides")
    return parse(DataConfig, plain["data"], "data")


def _put_data(plain: dict[str, Any], config: DataConfig, root: Path | None, told: str) -> None:
    """Let a recipe learn from other data, and say so in its name and description."""
    if "max_bad_images" in config.model_fields_set:
        plain["data"]["max_bad_images"] = config.max_bad_images
    new = config.model_dump(mode="json", include={"source", "long_tail", "subset"})
    if all(plain["data"][key] == value for key, value in new.items()):
        return
    plain["data"] |= new
    beginning = plain["name"] + ("_" if "." in plain["name"] else ".")
    words, name = _words(config, root, beginning)
    plain["description"] = f"The recipe {plain['name']} on {words}, started from {told}."
    plain["name"] = name


def _words(config: DataConfig, root: Path | None, beginning: str) -> tuple[str, str]:
    """Name the training data in a sentence, and as the end of a recipe's name with that `beginning`.

    Of a folder's long name as much is taken as a release can be named with, and of its hash, for another
    folder's may begin alike.
    """
    name = data_name(config.source, root)
    plain = config.model_dump(mode="json")
    tail, few = plain["long_tail"], plain["subset"]
    tags = [f"lt{tail['imbalance']:g}"] if tail else []
    if few:
        tags.append(f"{few['per_class']}shot" if few["per_class"] else f"{100 * few['fraction']:g}pct")
    end = "".join(f"_{_as_tag(tag)}" for tag in tags)
    room = max(0, MAX_NAME - len(beginning) - len(end))
    start = _as_tag(name)
    if len(start) > room:
        digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGITS]
        start = f"{start[: max(0, room - _DIGITS - 1)]}_{digest}"[:room].strip("_")
    tag = f"{start}{end}".strip("_") or "data"
    return ", ".join([name, *selection_words(tail, few)]), beginning + tag


def _as_tag(text: str) -> str:
    """Return what of a text a recipe can be named with."""
    return re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_")


def _default_recipe(
    start: str,
    told: str,
    release: Release | None,
    config: DataConfig,
    root: Path | None,
    overrides: Sequence[str],
) -> dict[str, Any]:
    """Return the plain values of the recipe that `plan_finetuning` describes.

    What depends on the numbers of epochs and of images in a batch follows those that overrides ask for.
    """
    arch, args, preprocess = _start(start, release)
    size = preprocess.input_size
    small = size <= SMALL
    images = len(open_dataset(config, "train", root))
    epochs = min(max(-(-_STEPS * _BATCH // images), _EPOCHS[0]), _EPOCHS[1])
    epochs = _asked(overrides, "training.epochs", epochs)
    batch = _asked(overrides, "training.batch_size", min(_BATCH, images))
    with torch.device("meta"):  # only its kind is asked for
        model = backbones.create(arch, **args)
    convolutional = has_batchnorm(model)
    words, name = _words(config, root, f"{arch}.finetuned_")
    decoded = isinstance(config.source, Digits | TorchvisionSource)
    crop: dict[str, Any] = {"op": "pad_crop", "size": size, "padding": size // 8}
    if not small:
        crop = {"op": "random_resized_crop", "size": size, "scale": [0.2, 1.0]}
    mirrored = [] if isinstance(config.source, Digits) else [{"op": "horizontal_flip", "p": 0.5}]
    data = config.model_dump(mode="json") | {
        "partial_labels": None,
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
        "image_size": size if small else None,
    }
    return {
        "name": name,
        "description": f"Cross-entropy on {words}, started from {told}; a recipe made for the release.",
        "backbone": {"arch": arch, "args": args},
        "init": None,
        "data": data,
        "views": {
            "backend": "tensor" if small else "stream",
            "workers": 0 if decoded and small else _WORKERS,
            "train": [[crop, *mirrored]],
            "eval": {
                "size": size,
                "crop_pct": preprocess.crop_pct,
                "interpolation": preprocess.interpolation,
            },
        },
        "objective": {"name": "classify", "loss": "cross_entropy", "label_smoothing": 0.0},
        "optimizer": {
            "name": "momentum" if convolutional else "adamw",
            "lr": 0.03 if convolutional else 5e-4,
            "weight_decay": 1e-4 if convolutional else 0.05,
            "momentum": 0.9,
            "decay_norm_and_bias": convolutional,
            "layer_decay": None if convolutional or not hasattr(model, "group_matcher") else 0.75,
        },
        "schedule": {
            "name": "cosine",
            "warmup_epochs": epochs // 10,
            "warmup_lr": 0.0,
            "min_lr": 0.0,
            "milestones": [],
            "decay_rate": 0.1,
        },
        "training": {
            "epochs": epochs,
            "batch_size": batch,
            "drop_last": images % batch == 1,  # BatchNorm needs two images
            "seed": 0,
            "device": "auto",
            "threads": None,
            "precision": "fp32",
            "channels_last": convolutional,
            "clip_grad": None if convolutional else 1.0,
            "log_every": 10,
            "checkpoint_every": max(1, epochs // 4),
            "checkpoint_minutes": 30.0,
        },
        "evaluation": [{"protocol": "classifier"}],
    }


def _asked(overrides: Sequence[str], key: str, otherwise: int) -> int:
    """Return the positive number that an override asks for; any other value is the schema's to refuse."""
    value = value_of(overrides, key)
    return value if type(value) is int and value > 0 else otherwise


def _start(start: str, release: Release | None) -> tuple[str, dict[str, Any], Preprocess]:
    """Return architecture, its arguments, and how it expects images, of a release or of timm's weights."""
    if release is not None:
        return str(release.config["architecture"]), dict(release.config["model_args"]), release.preprocess
    name = start.removeprefix(TIMM)
    check_timm_weights(name)
    cfg = resolve_data_config({}, pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
    preprocess = Preprocess(
        cfg["input_size"][-1], cfg["crop_pct"], cfg["interpolation"], tuple(cfg["mean"]), tuple(cfg["std"])
    )
    return name.partition(".")[0], {}, preprocess
