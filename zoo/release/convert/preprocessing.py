"""Test-time preprocessing of a converted release: the authors' own, where the user gives no other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import timm
from torch import nn

from zoo.modules.centers import Centers
from zoo.release import format
from zoo.release.convert.families import IMAGENET, Family

_SMALL = 64  # pixels; architectures of this size and below were made for CIFAR


class Preprocessing(NamedTuple):
    """Test-time preprocessing; None stands for the authors' own. See `Preprocess`."""

    size: int | None = None
    crop_pct: float | None = None
    interpolation: Literal["bilinear", "bicubic"] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


def fill_in(
    model: nn.Module,
    family: Family,
    given: Preprocessing,
    args: Mapping[str, Any],
    centers: Centers | None,
) -> format.Preprocess:
    """Fill in how the authors evaluate: timm's default for an architecture is that of other weights.

    They all resize larger images to 256 pixels and crop 224, bilinearly; those for CIFAR stay as they are.
    What an architecture was made for is the `img_size` that it is built with, before timm's default. Weights
    of no project known are taken to have been trained with that default.
    """
    default = timm.data.resolve_model_data_config(model)
    cfg: Mapping[str, Any] = model.pretrained_cfg  # type: ignore[assignment]
    side = args.get("img_size", cfg["input_size"])
    native = int(side[-1] if isinstance(side, list | tuple) else side)
    if family.any_weights:
        return format.Preprocess(
            native if given.size is None else given.size,
            default["crop_pct"] if given.crop_pct is None else given.crop_pct,
            given.interpolation or default["interpolation"],
            tuple(given.mean or default["mean"]),
            tuple(given.std or default["std"]),
        )
    small = native <= _SMALL
    made_for_cifar = int(cfg["input_size"][-1]) <= _SMALL
    cifar = family.cifar or ((default["mean"], default["std"]) if made_for_cifar else IMAGENET)
    mean, std = cifar if small else IMAGENET
    if centers is not None:
        mean, std = family.by_classes.get(len(centers.weight), (mean, std))
    size = (native if small or cfg.get("fixed_input_size") else 224) if given.size is None else given.size
    return format.Preprocess(
        size,
        (1.0 if small else 0.875) if given.crop_pct is None else given.crop_pct,
        given.interpolation or "bilinear",
        tuple(given.mean or mean),
        tuple(given.std or std),
    )
