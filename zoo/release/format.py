"""What lies in a release folder: its file names, and `config.json` in timm's own form."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from zoo.errors import ReleaseError
from zoo.release.files import WRITING

FORMAT = 1
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
CENTERS = "centers.safetensors"
RECIPE = "recipe.yaml"
METRICS = "metrics.json"
CARD = "README.md"
PICTURES = "*.png"
LICENSE = "apache-2.0"

_TIMM_KEYS = ("architecture", "num_classes", "model_args", "pretrained_cfg")
_ZOO_KEYS = (
    *("name", "objective", "dataset", "description", "feature_dim", "has_centers"),
    *("recipe_sha256", "weights_sha256"),
)


@dataclass(frozen=True)
class Preprocess:
    """How an image becomes the encoder's input at test time, in timm's terms.

    Attributes:
        input_size: height and width in pixels.
        crop_pct: part of the resized image that the central crop keeps, in (0, 1].
        interpolation: `"bilinear"`, `"bicubic"`, ...
        mean, std: per channel, of pixels in [0, 1].
    """

    input_size: int
    crop_pct: float
    interpolation: str
    mean: tuple[float, ...]
    std: tuple[float, ...]


def timm_config(
    model: nn.Module,
    *,
    arch: str,
    model_args: Mapping[str, Any],
    preprocess: Preprocess,
    name: str,
    class_names: Sequence[str],
    license: str,
) -> dict[str, Any]:
    """Return `config.json` as timm and transformers read it, without the `zoo` key.

    Nothing is taken over from the architecture's default weights except where its first convolution and its
    classifier are: provenance, licence and preprocessing are this model's own. `num_classes` stands at the
    top level alone; transformers refuses it in `model_args`.
    """
    default: Mapping[str, Any] = model.pretrained_cfg  # type: ignore[assignment]
    size = [3, preprocess.input_size, preprocess.input_size]
    pretrained_cfg = {
        "tag": name.split(".", 1)[1] if "." in name else name,
        "custom_load": False,
        "input_size": size,
        "fixed_input_size": bool(default.get("fixed_input_size", False)),
        "interpolation": preprocess.interpolation,
        "crop_pct": preprocess.crop_pct,
        "crop_mode": "center",
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
        "first_conv": default.get("first_conv"),
        "classifier": default.get("classifier"),
        "license": license,
    }
    config = {
        "architecture": arch,
        "num_classes": int(model.num_classes),  # type: ignore[arg-type]
        "num_features": int(model.num_features),  # type: ignore[arg-type]
        "model_args": dict(model_args),
        "pretrained_cfg": pretrained_cfg,
    }
    if config["num_classes"]:
        config["label_names"] = list(class_names)
    return config


def pretrained_cfg_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what timm makes of `config` for `create_model(pretrained_cfg=...)`."""
    cfg = dict(config["pretrained_cfg"], num_classes=config["num_classes"])
    if "label_names" in config:
        cfg["label_names"] = config["label_names"]
    return cfg


def read_config(folder: Path) -> dict[str, Any]:
    """Read and check `config.json` of the release in `folder`.

    Raises:
        ReleaseError: when the folder is none, is unfinished, or is of a newer format.
    """
    if (folder / WRITING).exists():
        raise ReleaseError(f"{folder}: writing this release was interrupted; write it again")
    config = read_json(folder / CONFIG)
    if "zoo" not in config:
        raise ReleaseError(
            f'{folder}: {CONFIG} has no key "zoo", so it is no release of this project; plain timm'
            f' models load with timm.create_model("local-dir:{folder}", pretrained=True)'
        )
    zoo = config["zoo"]
    found = zoo.get("format") if isinstance(zoo, dict) else zoo
    if found != FORMAT:
        raise ReleaseError(f"{folder}: release format {found!r}, this version of zoo reads format {FORMAT}")
    absent = [key for key in _TIMM_KEYS if key not in config]
    absent += [f"zoo.{key}" for key in _ZOO_KEYS if key not in zoo]
    if absent:
        raise ReleaseError(f"{folder}: {CONFIG} has no key {', '.join(absent)}")
    return config


def read_metrics(folder: Path) -> dict[str, Any]:
    """Read `metrics.json` of the release in `folder`, both of its parts present."""
    return {"training": {}, "evaluations": [], **read_json(folder / METRICS)}


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ReleaseError: when the file is missing or is no JSON object.
    """
    try:
        data = json.loads(read_text(file))
    except json.JSONDecodeError as error:
        raise ReleaseError(f"{file}: not valid JSON at line {error.lineno}: {error.msg}") from None
    if not isinstance(data, dict):
        raise ReleaseError(f"{file}: found a {type(data).__name__}, expected a JSON object")
    return data


def read_text(file: Path) -> str:
    """Read a file of the release.

    Raises:
        ReleaseError: when it is missing or is no UTF-8 text.
    """
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ReleaseError(f"{file.parent}: no release, {file.name} is missing") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ReleaseError(f"{file}: cannot be read: {error}") from None


def to_json(data: Mapping[str, Any]) -> str:
    """Return `data` as the release's files hold it."""
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def sha256(file: Path) -> str:
    """Return the hexadecimal SHA-256 of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
