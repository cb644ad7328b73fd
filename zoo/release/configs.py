"""`config.json`: of a release of this project, or of a model that somebody saved in timm's format.

A plain timm folder (https://huggingface.co/docs/timm/hf_hub: `config.json` and `model.safetensors`) is
described as a release without a recipe. Its classifier, where that is one linear layer, holds class centers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.config import plain_kind
from zoo.errors import ReleaseError, did_you_mean
from zoo.files import is_file
from zoo.release import format, schema
from zoo.release.files import complete
from zoo.release.tensors import read_header
from zoo.release.verified import known_sha256


def read_config(folder: Path) -> dict[str, Any]:
    """Read and check the `config.json` in `folder`, and describe a plain timm model as a release.

    Raises:
        ReleaseError: when the folder is none, is unfinished, is of a newer format, or its configuration holds
            what `write_release` does not write; for a plain model when a key of timm's is
            missing or cannot be used.
    """
    try:
        complete(folder, format.CONFIG)
    except OSError as error:
        raise ReleaseError(f"{folder}: writing this release was interrupted: {error}") from None
    config = format.read_json(folder / format.CONFIG)
    if "zoo" not in config:
        config = _describe(folder, config)
    zoo = config["zoo"]
    found = zoo.get("format") if isinstance(zoo, dict) else zoo
    if found != schema.FORMAT:
        newer = schema.NEWER if isinstance(found, int) and found > schema.FORMAT else ""
        raise ReleaseError(
            f"{folder}: found release format {str(found)[:40]!r}, expected {schema.FORMAT}{newer}"
        )
    schema.check_config(config, str(folder / format.CONFIG))
    return config


def is_plain(config: Mapping[str, Any]) -> bool:
    """Whether `config`, of `read_config`, is of a plain timm model: nothing is recorded of its training."""
    return config["zoo"]["recipe_sha256"] is None


def plain_recipe(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what stands for the recipe of a plain timm model."""
    return {
        "name": config["zoo"]["name"],
        "description": config["zoo"]["description"],
        "converted": {"family": "timm"},
        "backbone": {"arch": config["architecture"], "args": dict(config["model_args"])},
        "objective": {"name": config["zoo"]["objective"]},
    }


def _describe(folder: Path, raw: Mapping[str, Any]) -> dict[str, Any]:
    where = str(folder / format.CONFIG)
    cfg, args = raw.get("pretrained_cfg"), raw.get("model_args") or {}
    architecture = raw.get("architecture")
    if not (isinstance(architecture, str) and isinstance(cfg, Mapping) and isinstance(args, Mapping)):
        absent = "pretrained_cfg" if isinstance(architecture, str) else "architecture"
        raise ReleaseError(
            f'{where}: found no "{absent}", expected a release, or a model in timm\'s format '
            '({"architecture": ..., "pretrained_cfg": {...}} beside model.safetensors).'
            f"{did_you_mean(absent, [key for key in raw if isinstance(key, str)])}"
        )
    if args.get("in_chans", 3) != 3:
        raise ReleaseError(f"{where}: model_args.in_chans: found {args['in_chans']}, expected 3")
    classes = raw.get("num_classes", args.get("num_classes", cfg.get("num_classes", 0)))
    if not isinstance(classes, int) or isinstance(classes, bool) or not 0 <= classes <= 1 << 20:
        raise ReleaseError(f"{where}: num_classes: found {str(classes)[:40]!r}, expected 0 or more")
    tag = str(cfg.get("tag") or folder.resolve().name)
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", f"{architecture}.{tag}")[: schema.MAX_NAME]
    width, linear = _classifier(folder, cfg, classes)
    weights, pickled = folder / format.WEIGHTS, folder / "pytorch_model.bin"
    if is_file(pickled) and not is_file(weights):
        raise ReleaseError(
            f"{pickled}: found a pickle, never run here; expected {format.WEIGHTS}: save the model with "
            "timm.models.save_for_hf(model, FOLDER, safe_serialization=True)"
        )
    sha256 = known_sha256(weights) if is_file(weights) else None
    return {
        "architecture": architecture,
        "num_classes": classes,
        "num_features": raw.get("num_features") or width,
        "model_args": _arguments(architecture, args),
        "pretrained_cfg": _pixels(cfg, tag),
        **({"label_names": _label_names(raw, cfg, classes, where)} if classes else {}),
        "zoo": {
            "format": schema.FORMAT,
            "name": name,
            "objective": "unknown",
            "dataset": {"name": "not recorded"},
            "description": f"A {architecture} in timm's format; how it was trained is not recorded.",
            "feature_dim": width or raw.get("num_features"),
            "has_centers": linear,
            "recipe_sha256": None,
            "weights_sha256": sha256,
            "centers_sha256": sha256 if linear else None,
            **({} if classes else {"class_names": []}),
        },
    }


def _pixels(cfg: Mapping[str, Any], tag: str) -> dict[str, Any]:
    """Return timm's facts about input and ends of the model, its defaults where a file lacks them."""
    defaults = {
        "input_size": [3, 224, 224],
        "fixed_input_size": False,
        "interpolation": "bicubic",
        "crop_pct": 0.875,
        "crop_mode": "center",
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
        "first_conv": None,
        "classifier": None,
        "license": "unknown",
    }
    found = {key: default if cfg.get(key) is None else cfg[key] for key, default in defaults.items()}
    return {"tag": tag, "custom_load": False, **found}


def _arguments(architecture: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the architecture without those that only repeat what it does by default.

    `timm.models.push_to_hf_hub` notes the default pooling too; a recipe that starts from here needs none.
    """
    kept = {key: value for key, value in args.items() if key not in ("num_classes", "in_chans")}
    if kept.keys() == {"global_pool"} and isinstance(kept["global_pool"], str):  # nothing else is built here
        import timm
        import torch

        if timm.is_model(architecture):
            try:
                with torch.device("meta"):
                    built = [str(timm.create_model(architecture, **each)) for each in ({}, kept)]
            except Exception:  # any of 1,400 constructors: `build.check_fit` says what is wrong
                return kept
            if built[0] == built[1]:
                return {}
    return kept


def _classifier(folder: Path, cfg: Mapping[str, Any], classes: int) -> tuple[int, bool]:
    """Return the width of the features, 0 if unknown, and whether the classifier is one linear layer."""
    place, weights = cfg.get("classifier"), folder / format.WEIGHTS
    if not classes or not isinstance(place, str) or not is_file(weights):
        return 0, False
    header = read_header(weights)
    found = header.get(f"{place}.weight")
    if found is None or len(found.shape) != 2 or found.shape[0] != classes:
        return 0, False
    return found.shape[1], True


def _label_names(raw: Mapping[str, Any], cfg: Mapping[str, Any], classes: int, where: str) -> list[str]:
    """Return the classes' names: the file's, ImageNet's in words where timm knows them, else numbers."""
    names = raw.get("label_names") or cfg.get("label_names")
    if names is not None:
        if not isinstance(names, list) or len(names) != classes:
            found = len(names) if isinstance(names, list) else plain_kind(names)
            raise ReleaseError(f"{where}: label_names: found {found}, expected a list of {classes} names")
        texts = raw.get("label_descriptions") or cfg.get("label_descriptions")
        known = texts if isinstance(texts, Mapping) else {}
        return _distinct([str(known.get(name, name)) for name in names], [str(name) for name in names])
    from timm.data import ImageNetInfo, infer_imagenet_subset

    subset = infer_imagenet_subset({"num_classes": classes})
    if subset is None:
        return [str(index) for index in range(classes)]
    info = ImageNetInfo(subset)
    synsets = [info.index_to_label_name(index) for index in range(classes)]
    return _distinct([info.label_name_to_description(each) for each in synsets], synsets)


def _distinct(texts: list[str], names: list[str]) -> list[str]:
    """Return `texts`, with the class's name behind those that several classes share."""
    count = {text: texts.count(text) for text in {*texts}} if len({*texts}) < len(texts) else {}
    return [
        f"{text} ({name})" if count.get(text, 1) > 1 else text
        for text, name in zip(texts, names, strict=True)
    ]
