"""Find a training's recipe and data; make recipes for users' own images from the templates in `made`."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
import torch
from timm.data import resolve_data_config

from zoo import backbones, hub
from zoo.data import DataConfig, open_dataset
from zoo.data.any_data import Data, as_data, resolve
from zoo.data.config import Digits, Holdout, Memory, TorchvisionSource
from zoo.data.dataset import Root, data_words
from zoo.data.sources import data_name
from zoo.errors import DataError, RecipeError
from zoo.modules import has_batchnorm
from zoo.recipe.overrides import Changes, Overrides, as_overrides, keys_learned, value_of
from zoo.recipe.recipe import Recipe
from zoo.release import Release

Start = str | Path | Release | None
SMALL = 64  # side in pixels up to which images are kept at input size and augmented on the device
# prefixes of the keys that a recipe's name stands for
_NAMED = "data.", "method", *map("objective.{}".format, ("name", "loss", "distill", "feature_transform"))


def plan_pretraining(
    recipe: Recipe | str | Path | None = None,
    *,
    data: Data = None,
    overrides: Overrides = (),
    init: Start = None,
    arch: str | None = None,
    objective: str | None = None,
) -> tuple[Recipe, Root]:
    """Return the recipe of a training and the location of its data; the arguments are those of `pretrain`.

    Raises:
        ZooError: for a recipe, initial weights or data that are missing or do not match.
    """
    changes = as_overrides(overrides)
    if recipe is None:
        if data is None:
            raise DataError("pretrain: found no recipe and no data, expected one of them, e.g. --data DIR")
        config, root, _ = as_data(data)
        return make(objective or "moco", config, root, changes, init=init, arch=arch), root
    if (init, arch, objective) != (None, None, None):
        raise RecipeError("init, arch, objective: found beside a recipe, expected --set init.release=NAME")
    made = Recipe.load(recipe, changes)
    given = resolve(data, made.data)
    if not given.is_own:
        own, other = (each.model_dump(mode="json") for each in (made.data, given.config))
        keys = [key for key in ("source", "holdout", "long_tail", "subset") if own.get(key) != other.get(key)]
        changes = [*((f"data.{key}", other.get(key)) for key in keys), *changes]
        made = Recipe.load(recipe, changes)
    named = [key for key in keys_learned(dict(changes)) if key.startswith(_NAMED) or key == "objective"]
    if not value_of(changes, "name", "") and any(not key.startswith("data.source.") for key in named):
        end = "_changed" if "." in made.name else ".changed"
        made = Recipe.load(made, {"name": f"{made.name.removesuffix(end)}{end}"})
    return made, given.root


def make(
    kind: str,
    config: DataConfig,
    root: Root,
    overrides: Changes,
    *,
    init: Start = None,
    arch: str | None = None,
) -> Recipe:
    """Make a recipe for images: `finetuning` of a release, or pretraining with `moco` (v2) or `simclr`.

    It starts from the release `init`, or the architecture `arch` with new weights; overrides cannot change
    that. Other values are derived from the epochs, batch size and input size that overrides set.

    Raises:
        ZooError: for initial weights, architecture, objective or data that are missing or unsuitable.
    """
    if (init is None) == (arch is None):
        raise RecipeError(f"found no recipe, init {init} and arch {arch}, expected one of the three")
    if kind not in ("finetuning", "moco", "simclr"):
        raise RecipeError(f'objective: found "{kind}", expected moco or simclr without a recipe')
    tunes = kind == "finetuning"
    file = Path(__file__).parent / "made" / ("finetuning.yaml" if tunes else "pretraining.yaml")
    train_set = open_dataset(config, "train", root, unlabelled=not tunes)
    classes = train_set.num_classes > 1 and bool((train_set.class_counts > 1).any())
    if not (tunes or classes) and config.holdout is not None:  # there is nothing to measure with it
        config = config.model_copy(update={"holdout": Holdout(fraction=0)})
        train_set = open_dataset(config, "train", root, unlabelled=True)
    protocols = list[str]()
    with suppress(DataError):  # without test images there is no evaluation
        if classes and not tunes and not bool((train_set.labels < 0).any()):
            open_dataset(config, "test", root)
            protocols = ["linear", "knn"]
    images, start = len(train_set), _of_start(overrides, init, arch)
    short = tunes or (init is not None and start["size"] > SMALL)  # 600 steps of 64 images
    epochs = min(max(-(-600 * 64 // images), 5), 50) if short else max(50, min(200, 10_000_000 // images))
    epochs = value_of(overrides, "training.epochs", epochs)
    batch = value_of(overrides, "training.batch_size", min(64, images) if tunes else batch_for(images))
    rate = (0.3 if start["sgd"] else 5e-4) * (0.1 if init is not None else 1.0) * batch / 256
    small, decoded = start["size"] <= SMALL, isinstance(config.source, Digits | TorchvisionSource | Memory)
    plain = config.model_dump(mode="json")
    words = data_words({**plain, "name": data_name(config.source, root)})
    values = {
        "kind": kind,
        "words": words,
        "tag": re.sub(r"[^A-Za-z0-9]+", "_", words).strip("_")[:48] or "data",
        "data": plain | start["pixels"] | {"partial_labels": None},
        "images": images,
        "classes": classes,
        "small": small,
        "workers": 0 if decoded and small else 4,  # not the number of cores: recipes should be equal
        "mirrored": not isinstance(config.source, Digits),  # a mirrored digit is not a digit
        "blur": float(f"{2.0 * start['size'] / 224:.3g}"),  # 2 pixels at 224
        "epochs": epochs,
        "warmup": min(10, epochs // 10),
        "batch": batch,
        "asked": partial(value_of, overrides),
        "lr": float(f"{rate:.4g}"),
        "queue": max(batch, min(65_536, images // 4) // batch * batch),
        "key_groups": max(2, batch // 32) if batch >= 4 else 1,
        "protocols": protocols,
    }
    environment = jinja2.Environment(trim_blocks=True, undefined=jinja2.StrictUndefined, finalize=json.dumps)
    text = environment.from_string(file.read_text("utf-8")).render(start | values)
    changes = [(key, value) for key, value in overrides if key != "init.release"]
    return Recipe.from_yaml(text, f"{start['arch']}, {kind}", changes)


def batch_for(images: int) -> int:
    """Return a pretraining's batch size: a power of two, 32 to 256, for 16 steps an epoch; at most all."""
    return min(256, images, max(32, 1 << max(0, (images // 16).bit_length() - 1)))


def _of_start(overrides: Changes, init: Start, arch: str | None) -> dict[str, Any]:
    """Return the values that depend only on the initial weights and their input size."""
    known: dict[str, Any] = {"architecture": arch, "model_args": value_of(overrides, "backbone.args", {})}
    if init is not None:
        known = dict(hub.open(init).config)
    args = dict(known["model_args"])
    with torch.device("meta"):
        model = backbones.create(known["architecture"], **args)
    cfg = resolve_data_config({}, pretrained_cfg=known.get("pretrained_cfg", model.pretrained_cfg))
    size = value_of(overrides, "views.eval.size", cfg["input_size"][-1])
    if size != cfg["input_size"][-1] and backbones.size_built_for(model) not in (None, size):
        args["img_size"] = size
    # attention pooling is not counted: it follows convolutions
    names = {type(module).__name__.lower() for module in model.modules()}
    attends = any("attention" in name and "pool" not in name for name in names)
    return {
        "arch": known["architecture"],
        "args": args,
        "init": None if init is None else {"release": hub.resolve(init).spelling},
        "start": "from random weights" if init is None else f"started from {hub.open(init).name}",
        "size": size,
        "pixels": {"mean": cfg["mean"], "std": cfg["std"]},
        "crop_pct": cfg["crop_pct"],
        "interpolation": cfg["interpolation"],
        "batchnorm": has_batchnorm(model),
        "sgd": has_batchnorm(model) and not attends,
        "layered": hasattr(model, "group_matcher"),
    }
