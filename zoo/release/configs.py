"""`config.json`: of a release of this project, or of a model that somebody saved in timm's format.

A plain timm folder (https://huggingface.co/docs/timm/hf_hub: `config.json` and `model.safetensors`) is
described as a release without a recipe. Its classifier, where that is one linear layer, holds class centers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from zoo.errors import ReleaseError
from zoo.files import is_file, writing
from zoo.release import format, schema
from zoo.release.tensors import read_header

_TIMM_DEFAULTS: dict[str, Any] = {
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


def read_config(folder: Path) -> dict[str, Any]:
    """Read and check the `config.json` in `folder`, and describe a plain timm model as a release.

    A `ReleaseError` names the key that is missing, cannot be used, or that a release does not have.
    """
    with writing(f"{folder}: what an interrupted writer left", ReleaseError):
        format.complete(folder)
    config = format.read_json(folder / format.CONFIG)
    if "zoo" not in config:
        config = _describe(folder, config)
    zoo = config["zoo"]
    found = zoo.get("format") if isinstance(zoo, dict) else zoo
    if isinstance(found, int) and found > schema.FORMAT:
        raise ReleaseError(f"{folder}: found release format {found}, expected {schema.FORMAT}{schema.NEWER}")
    schema.check(schema.ReleaseConfig, config, str(folder / format.CONFIG))
    return config


def is_plain(config: Mapping[str, Any]) -> bool:
    """Whether `config` is of a plain timm model: nothing is recorded of its training."""
    return config["zoo"]["recipe_sha256"] is None


def pretrained_cfg_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what timm makes of `config` for `create_model(pretrained_cfg=...)`."""
    cfg = dict(config["pretrained_cfg"], num_classes=config["num_classes"])
    return cfg | ({"label_names": config["label_names"]} if "label_names" in config else {})


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
    """Return the `config.json` of a release for one that timm wrote."""
    where, weights = str(folder / format.CONFIG), folder / format.WEIGHTS
    architecture, cfg, args = raw.get("architecture"), raw.get("pretrained_cfg"), raw.get("model_args") or {}
    if not (isinstance(architecture, str) and isinstance(cfg, Mapping) and isinstance(args, Mapping)):
        absent = "pretrained_cfg" if isinstance(architecture, str) else "architecture"
        raise ReleaseError(f'{where}: found no "{absent}", expected a release, or a model in timm\'s format')
    if args.get("in_chans", 3) != 3:
        raise ReleaseError(f"{where}: model_args.in_chans: found {args['in_chans']}, expected 3")
    classes = raw.get("num_classes", args.get("num_classes", cfg.get("num_classes", 0)))
    if type(classes) is not int or not 0 <= classes <= 1 << 20:
        raise ReleaseError(f"{where}: num_classes: found {str(classes)[:40]!r}, expected 0 or more")
    if is_file(folder / "pytorch_model.bin") and not is_file(weights):
        raise ReleaseError(f"{folder / 'pytorch_model.bin'}: found a pickle, expected {format.WEIGHTS}")
    fetched = is_file(weights)  # else only what describes them was asked for
    header, sha256 = (read_header(weights), format.known_sha256(weights)) if fetched else ({}, None)
    layer = header.get(f"{cfg.get('classifier')}.weight")
    linear = bool(classes) and layer is not None and len(layer.shape) == 2 and layer.shape[0] == classes
    width = layer.shape[1] if linear and layer is not None else raw.get("num_features")
    tag = str(cfg.get("tag") or folder.resolve().name)
    pixels = {key: default if cfg.get(key) is None else cfg[key] for key, default in _TIMM_DEFAULTS.items()}
    return {
        "architecture": architecture,
        "num_classes": classes,
        "num_features": raw.get("num_features") or width,
        "model_args": _model_args(architecture, args),
        "pretrained_cfg": {"tag": tag, "custom_load": False, **pixels},
        **({"label_names": _label_names(raw, cfg, classes, where)} if classes else {}),
        "zoo": {
            "format": schema.FORMAT,
            "name": re.sub(r"[^A-Za-z0-9_.-]", "_", f"{architecture}.{tag}")[: schema.MAX_NAME],
            "objective": "unknown",
            "dataset": {"name": "not recorded"},
            "description": f"A {architecture} in timm's format; how it was trained is not recorded.",
            "feature_dim": width,
            "has_centers": linear,
            "recipe_sha256": None,
            "weights_sha256": sha256,
            "centers_sha256": sha256 if linear else None,
        },
    }


def _model_args(architecture: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the architecture's arguments without its default pooling, which timm's export adds."""
    kept = {key: value for key, value in args.items() if key not in ("num_classes", "in_chans")}
    if kept.keys() == {"global_pool"} and isinstance(kept["global_pool"], str):
        import timm
        import torch

        with suppress(Exception), torch.device("meta"):  # any of 1,400 constructors; `check_fit` reports it
            default, given = (str(timm.create_model(architecture, **each)) for each in ({}, kept))
            return {} if given == default else kept
    return kept


def _label_names(raw: Mapping[str, Any], cfg: Mapping[str, Any], classes: int, where: str) -> list[str]:
    """Return the classes' names: the file's, ImageNet's in words where timm knows them, else numbers."""
    names = raw.get("label_names") or cfg.get("label_names")
    texts = raw.get("label_descriptions") or cfg.get("label_descriptions") or {}
    if names is None:
        from timm.data import ImageNetInfo, infer_imagenet_subset

        if (subset := infer_imagenet_subset({"num_classes": classes})) is None:
            return [str(index) for index in range(classes)]
        info = ImageNetInfo(subset)
        names = info.label_names()
        texts = {name: info.label_name_to_description(name) for name in names}
    if not isinstance(names, list) or len(names) != classes or not isinstance(texts, Mapping):
        found = len(names) if isinstance(names, list) else repr(names)[:40]
        raise ReleaseError(f"{where}: label_names: found {found}, expected a list of {classes} names")
    words = [str(texts.get(str(name), name)) for name in names]
    count = Counter(words)
    return [f"{text} ({name})" if count[text] > 1 else text for text, name in zip(words, names, strict=True)]
