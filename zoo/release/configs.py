"""`config.json`: of a release of this project, or of a model that somebody saved in timm's format.

A plain timm folder (https://huggingface.co/docs/timm/hf_hub: `config.json` and `model.safetensors`) is
described as a release without a recipe. Its classifier, where that is one linear layer, holds class centers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.errors import ReleaseError
from zoo.files import is_file, writing
from zoo.release import format, schema
from zoo.release.tensors import read_shapes


def read_config(folder: Path) -> dict[str, Any]:
    """Read and check the `config.json` in `folder`, and describe a plain timm model as a release.

    A `ReleaseError` names the key that is missing, cannot be used, or that a release does not have.
    """
    with writing(f"{folder}: what an interrupted writer left", ReleaseError):
        format.complete(folder)
    config = format.read_json(folder / format.CONFIG)
    if "zoo" not in config:
        config = _describe(folder, config)
    schema.check(schema.ReleaseConfig, config, str(folder / format.CONFIG))
    return config


def is_plain(config: Mapping[str, Any]) -> bool:
    """Whether `config` is of a plain timm model: nothing is recorded of its training."""
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
    """Return the `config.json` of a release for one that timm wrote."""
    from timm.data import ImageNetInfo, infer_imagenet_subset, resolve_data_config

    where, weights = folder / format.CONFIG, folder / format.WEIGHTS
    architecture, cfg, args = raw.get("architecture"), raw.get("pretrained_cfg"), raw.get("model_args") or {}
    if not (isinstance(architecture, str) and isinstance(cfg, dict) and isinstance(args, dict)):
        expected = 'expected a release, or timm\'s "architecture" and "pretrained_cfg"'
        raise ReleaseError(f"{where}: found {', '.join(raw)[:80]}, {expected}")
    classes = raw.get("num_classes", args.get("num_classes", cfg.get("num_classes", 0)))
    if type(classes) is not int or not 0 <= classes <= 1 << 20:
        raise ReleaseError(f"{where}: num_classes: found {str(classes)[:40]!r}, expected 0 or more")
    fetched = is_file(weights)  # else only what describes them was asked for
    shapes, sha256 = (read_shapes(weights), format.sha256(weights)) if fetched else ({}, None)
    shape = shapes.get(f"{cfg.get('classifier')}.weight", ())
    linear = bool(classes) and len(shape) == 2 and shape[0] == classes
    width = shape[1] if linear else raw.get("num_features")
    tag = str(cfg.get("tag") or folder.resolve().name)
    names = raw.get("label_names") or cfg.get("label_names")
    if not isinstance(names, list):  # ImageNet's in words where timm knows them, else numbers
        subset = infer_imagenet_subset({"num_classes": classes})
        info = ImageNetInfo(subset) if subset else None
        names = [info.index_to_description(index) if info else index for index in range(classes)]
    pixels = resolve_data_config({}, pretrained_cfg=cfg)  # with timm's defaults
    return {
        "architecture": architecture,
        "num_classes": classes,
        "num_features": raw.get("num_features") or width,
        "model_args": {key: args[key] for key in args if key not in ("num_classes", "in_chans")},
        "pretrained_cfg": {
            "tag": tag,
            "custom_load": False,
            **{key: list(value) if isinstance(value, tuple) else value for key, value in pixels.items()},
            "fixed_input_size": cfg.get("fixed_input_size", False),
            "first_conv": cfg.get("first_conv"),
            "classifier": cfg.get("classifier"),
            "license": cfg.get("license") or "unknown",
        },
        **({"label_names": [*map(str, names)]} if classes else {}),
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
