"""What the user says and what a file says of itself, checked once; and the preprocessing that follows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import timm
from pydantic import AfterValidator, Field
from torch import nn

from zoo.config import Config, parse
from zoo.conversion.classes import Order
from zoo.conversion.families import IMAGENET, Family
from zoo.errors import ReleaseError
from zoo.modules.centers import Centers
from zoo.release import Preprocess
from zoo.release.schema import MAX_NAME, MAX_PIXELS

Encoder = Literal["query", "momentum"]

_SMALL = 64  # pixels; architectures of this size and below were made for CIFAR
_SUFFIXES = re.compile(r"(\.(pth|pt|tar|ckpt|bin|safetensors|th))+$", re.IGNORECASE)


def _one_or_three(values: list[float]) -> list[float]:
    if len(values) not in (1, 3):
        raise ValueError(f"found {len(values)} numbers, expected 3: of red, green and blue")
    return values * (3 // len(values))


_Size = Annotated[int, Field(gt=0, le=MAX_PIXELS)]
_Fraction = Annotated[float, Field(gt=0, le=1)]
_Channels = Annotated[list[float], AfterValidator(_one_or_three)]
_Deviations = Annotated[list[Annotated[float, Field(gt=0)]], AfterValidator(_one_or_three)]
_Text = Annotated[str, Field(max_length=10_000)]


class Given(Config):
    """What the user says, where it does not depend on the file."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-]*$", max_length=MAX_NAME)] | None
    encoder: Encoder
    label_order: Order | None
    size: _Size | None
    crop_pct: _Fraction | None
    interpolation: Literal["bilinear", "bicubic"] | None
    mean: _Channels | None
    std: _Deviations | None
    dataset: _Text
    description: _Text | None


class Stated(Config):
    """What timm's train.py writes into a checkpoint's `args`, as far as it changes what is computed."""

    model: str | None = None
    model_kwargs: dict[str, Any] = {}
    gp: str | None = None
    bn_eps: float | None = None
    img_size: _Size | None = None
    input_size: _Size | list[_Size] | None = None  # DeiT's code has one number
    crop_pct: _Fraction | None = None
    crop_mode: Literal["center", ""] | None = None
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming", ""] | None = None
    mean: _Channels | None = None
    std: _Deviations | None = None
    class_map: str | None = None
    dataset: str | None = None

    @property
    def size(self) -> int | None:
        """Pixels of the input."""
        found = self.input_size or self.img_size
        return found[-1] if isinstance(found, list) else found

    @property
    def label_order(self) -> Order | None:
        """How classes were numbered: timm reads folders in natural order, torchvision in plain order."""
        if self.class_map != "" or self.dataset is None:  # a list of the user's, or no file of train.py
            return None
        if self.dataset.startswith("torch/"):
            return "plain"
        return None if "/" in self.dataset else "natural"

    def model_args(self, arch: str) -> dict[str, Any]:
        """Arguments that the architecture was built with."""
        args = {"global_pool": self.gp, "bn_eps": self.bn_eps, **self.model_kwargs}
        cfg = timm.get_pretrained_cfg(arch)
        if cfg is not None and cfg.fixed_input_size and self.size not in (None, cfg.input_size[-1]):
            args.setdefault("img_size", self.size)
        return {key: value for key, value in args.items() if value is not None}


def read_stated(settings: Mapping[Any, Any], where: str) -> Stated:
    """Return what a checkpoint's `args` say; nothing where they are of another program.

    Raises:
        ReleaseError: for a setting that a release cannot have, such as another way of cropping.
    """
    own = {key: settings[key] for key in Stated.model_fields if settings.get(key) is not None}
    plain = {key: [*value] if isinstance(value, tuple) else value for key, value in own.items()}
    return parse(Stated, plain, f"{where}: args", ReleaseError)


def default_name(arch: str, family: str, file: str) -> str:
    """Return `arch.tag` for a release, the tag made of the family and what the file's name adds."""
    words = [word for word in re.split(r"[^a-z0-9]+", _SUFFIXES.sub("", file).lower()) if word]
    own = [word for word in re.split(r"[^a-z0-9]+", family) if word]
    skipped = {*own, "checkpoint", "model", "pth", "tar", "ckpt", "pretrain", *re.split(r"[^a-z0-9]+", arch)}
    name = f"{arch}.{'_'.join([*own, *(word for word in words if word not in skipped)])}"
    return name[:MAX_NAME].rstrip("_")


def choose_preprocess(
    model: nn.Module,
    args: Mapping[str, Any],
    centers: Centers | None,
    family: Family,
    given: Given,
    stated: Stated,
    grey: bool,
) -> Preprocess:
    """Return how the authors evaluate: timm's default for an architecture is that of other weights.

    They all resize larger images to 256 pixels and crop 224, bilinearly; those for CIFAR stay as they are.
    What an architecture was made for is the `img_size` that it is built with, before timm's default. Weights
    of no project known were trained as the file says, or else are taken to have been with that default.
    """
    default = timm.data.resolve_model_data_config(model)
    cfg: Mapping[str, Any] = model.pretrained_cfg  # type: ignore[assignment]
    side = args.get("img_size", cfg["input_size"])
    size = int(side[-1] if isinstance(side, list | tuple) else side)
    crop_pct, interpolation = default["crop_pct"], default["interpolation"]
    mean, std = default["mean"], default["std"]
    if family.architectures:  # of a project
        small, made_for_cifar = size <= _SMALL, int(cfg["input_size"][-1]) <= _SMALL
        cifar = family.cifar or ((mean, std) if made_for_cifar else IMAGENET)
        mean, std = cifar if small else IMAGENET
        if centers is not None:
            mean, std = family.by_classes.get(len(centers.weight), (mean, std))
        size = size if small or cfg.get("fixed_input_size") else 224
        crop_pct, interpolation = 1.0 if small else 0.875, "bilinear"
    for key in ("mean", "std"):
        own, files = getattr(given, key), getattr(stated, key)
        if own and files and own != files:
            raise ReleaseError(f"{key}: found {own}, but the file says {files}")
        if grey and not (own or files):
            raise ReleaseError(f"the encoder takes one channel; give the {key} of its pixels: --{key} NUMBER")
    return Preprocess(
        given.size or stated.size or size,
        given.crop_pct or stated.crop_pct or crop_pct,
        given.interpolation or stated.interpolation or interpolation,
        tuple(given.mean or stated.mean or mean),
        tuple(given.std or stated.std or std),
    )
