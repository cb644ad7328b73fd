"""What recipes that are made for somebody's images share: the start, how it takes images, the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from timm.data import resolve_data_config
from torch import nn

from zoo import backbones
from zoo import release as releases
from zoo.api.models import size_built_for
from zoo.config import parse
from zoo.data import DataConfig
from zoo.data.config import Digits, Memory, Source, TorchvisionSource
from zoo.modules import has_batchnorm
from zoo.release import Preprocess, Release, names
from zoo.training.overrides import apply, value_of

SMALL = 64
"""Up to so many pixels a side, images are kept at the input's size and augmented on the device."""

_WORKERS = 4  # that decode images; not the machine's number of cores, for recipes are to be the same anywhere


class Start(NamedTuple):
    """The weights that a training starts from.

    Attributes:
        spelling: what means them and nothing else, as a recipe's `init.release` has it.
        told: how a description names them, wherever they lie.
        release: None for one that was not opened.
    """

    spelling: str
    told: str
    release: Release | None


def find_start(init: str | Path | Release, *, opened: bool = True) -> Start:
    """Find a start by its name; a release in a folder is opened in any case.

    Raises:
        ReleaseError: for a name that means nothing, or two things.
    """
    init = releases.portable(init)
    reading = names.resolve(init)
    own = reading.kind == "folder"
    release = releases.open(init) if own or opened else None
    told = f"{release.name} ({_hash(release)})" if own and release is not None else reading.spelling
    return Start(reading.spelling, told, release)


def _hash(release: Release) -> str:
    """Say which weights a release in a folder has: where that lies is nobody's business but its owner's."""
    return f"weights of sha256 {release.config['zoo']['weights_sha256'][:12]}"


class Backbone(NamedTuple):
    """An architecture, how it takes images, and of what kind it is.

    Attributes:
        arch: as timm spells it.
        args: of the architecture.
        preprocess: of an image at test time.
        convolutional: whether it has BatchNorm and no attention between places: such learn by SGD, all
            others by AdamW.
        layered: whether timm knows its layers, as layer-wise decay needs.
    """

    arch: str
    args: dict[str, Any]
    preprocess: Preprocess
    convolutional: bool
    layered: bool

    @property
    def section(self) -> dict[str, Any]:
        """The recipe's `backbone`."""
        return {"arch": self.arch, "args": self.args}


def backbone_of(start: Start) -> Backbone:
    """Return the backbone of an opened start."""
    assert start.release is not None
    config = start.release.config
    return _backbone(str(config["architecture"]), dict(config["model_args"]), start.release.preprocess)


def new_backbone(arch: str, args: Mapping[str, Any]) -> Backbone:
    """Return a backbone without weights, with the size, mean and std that timm states for it.

    Raises:
        ZooError: for an unknown architecture, or arguments that it refuses.
    """
    return _backbone(arch, dict(args), None)


def at_size(backbone: Backbone, size: int) -> Backbone:
    """Return a backbone for images of another size: one that is built for a single size is built for that.

    Raises:
        ZooError: for a size that the architecture refuses.
    """
    args = backbone.args
    if size != backbone.preprocess.input_size and size_built_for(_without_weights(backbone)) not in (
        None,
        size,
    ):
        args = args | {"img_size": size}
    found = backbone._replace(args=args, preprocess=replace(backbone.preprocess, input_size=size))
    _without_weights(found)
    return found


def _without_weights(backbone: Backbone) -> nn.Module:
    with torch.device("meta"):
        return backbones.create(backbone.arch, **backbone.args)


def _backbone(arch: str, args: dict[str, Any], preprocess: Preprocess | None) -> Backbone:
    with torch.device("meta"):  # only its kind is asked for
        model: Any = backbones.create(arch, **args)
    known = preprocess or _timms(model.pretrained_cfg)
    # a pooling by attention stands behind convolutions
    names = {type(module).__name__.lower() for module in model.modules()}
    attends = any("attention" in name and "pool" not in name for name in names)
    return Backbone(arch, args, known, has_batchnorm(model) and not attends, hasattr(model, "group_matcher"))


def _timms(pretrained_cfg: dict[str, Any]) -> Preprocess:
    cfg = resolve_data_config({}, pretrained_cfg=pretrained_cfg)
    return Preprocess(
        cfg["input_size"][-1], cfg["crop_pct"], cfg["interpolation"], tuple(cfg["mean"]), tuple(cfg["std"])
    )


def overridden_data(config: DataConfig, overrides: Sequence[str]) -> DataConfig:
    """Return the data as overrides of `data` have it, by which the rest of a recipe is made."""
    plain = {"data": config.model_dump(mode="json")}
    for each in overrides:
        if each.strip().startswith("data."):
            apply(plain, each, "overrides")
    return parse(DataConfig, plain["data"], "data")


def asked(overrides: Sequence[str], key: str, otherwise: int) -> int:
    """Return the positive number that an override asks for; any other value is the schema's to refuse."""
    value = value_of(overrides, key)
    return value if type(value) is int and value > 0 else otherwise


def data_section(config: DataConfig, preprocess: Preprocess) -> dict[str, Any]:
    """Return the recipe's `data`: these images, in numbers as the backbone takes them."""
    size = preprocess.input_size
    return config.model_dump(mode="json") | {
        "partial_labels": None,
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
        "image_size": size if size <= SMALL else None,
    }


def mirrored(source: Source) -> list[dict[str, Any]]:
    """Return the operation that mirrors every other image, where a mirror image shows the same."""
    return [] if isinstance(source, Digits) else [{"op": "horizontal_flip", "p": 0.5}]


def views_section(
    source: Source, preprocess: Preprocess, train: list[list[dict[str, Any]]]
) -> dict[str, Any]:
    """Return the recipe's `views` with these training views."""
    size = preprocess.input_size
    small, decoded = size <= SMALL, isinstance(source, Digits | TorchvisionSource | Memory)
    return {
        "backend": "tensor" if small else "stream",
        "workers": 0 if decoded and small else _WORKERS,
        "train": train,
        "eval": {
            "size": size,
            "crop_pct": preprocess.crop_pct,
            "interpolation": preprocess.interpolation,
        },
    }


def cosine_section(warmup_epochs: int) -> dict[str, Any]:
    """Return the recipe's `schedule`: a cosine to 0."""
    return {
        "name": "cosine",
        "warmup_epochs": warmup_epochs,
        "warmup_lr": 0.0,
        "min_lr": 0.0,
        "milestones": [],
        "decay_rate": 0.1,
    }


def training_section(
    backbone: Backbone, *, epochs: int, batch_size: int, drop_last: bool, checkpoint_every: int
) -> dict[str, Any]:
    """Return the recipe's `training`."""
    return {
        "epochs": epochs,
        "batch_size": batch_size,
        "drop_last": drop_last,
        "seed": 0,
        "device": "auto",
        "threads": None,
        "precision": "fp32",
        "channels_last": backbone.convolutional,
        "clip_grad": None if backbone.convolutional else 1.0,
        "log_every": 10,
        "checkpoint_every": checkpoint_every,
        "checkpoint_minutes": 30.0,
    }
