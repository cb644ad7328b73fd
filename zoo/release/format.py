"""What lies in a release folder: its file names, and `config.json` in timm's own form."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from zoo.config import dump_yaml, load_yaml, plain_kind
from zoo.errors import ReleaseError
from zoo.files import is_file
from zoo.release import schema
from zoo.release.evaluations import checked_evaluation
from zoo.release.files import WRITING, replacing
from zoo.release.unfinished import unfinished

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
CENTERS = "centers.safetensors"
IMAGES = "images.safetensors"
RECIPE = "recipe.yaml"
METRICS = "metrics.json"
HISTORY = "history.json"
CARD = "README.md"
EXAMPLE = "example.png"
PICTURES = "*.png"
PICTURE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.png")  # of these, those that a release may have
LICENSE = "apache-2.0"
NEEDED = (CONFIG, WEIGHTS, RECIPE, METRICS)
OPTIONAL = (CENTERS, IMAGES, HISTORY, PICTURES)  # what one release in a folder has, and the next may lack

HASHED = {
    WEIGHTS: "weights_sha256",
    CENTERS: "centers_sha256",
    RECIPE: "recipe_sha256",
    IMAGES: "images_sha256",
}
RECIPE_SECTIONS = ("data", "init", "objective", "views")  # of which evaluations and cards use parts
MAX_TEXT_BYTES = 8 << 20  # of config, metrics, history and card: many times what 10,000 classes need

DISGUISE_BYTES = 24
"""How much of a file's beginning tells what it pretends not to be."""
PICKLES = tuple(bytes([0x80, protocol]) for protocol in range(2, 6))
"""How a pickle begins; older protocols torch does not write."""


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


def holds_release(folder: Path) -> bool:
    """Whether a release lies in `folder`; also one whose files a crash left on the way to their place."""
    return is_file(folder / CONFIG) or is_file(folder / WRITING / CONFIG)


def read_metrics(folder: Path) -> dict[str, Any]:
    """Read and check `metrics.json`: `{"training": {...}, "evaluations": [...]}`, and `format` beside them.

    Every evaluation has what `checked_evaluation` gives it, also in files of earlier versions.

    Raises:
        ReleaseError: when it is missing, what the card is made of is not there, or an evaluation's `value` is
            not in its metrics.
    """
    return checked_metrics(read_json(folder / METRICS), folder / METRICS)


def checked_metrics(metrics: dict[str, Any], file: Path) -> dict[str, Any]:
    """Return the content of `metrics.json`, checked as `read_metrics` says."""
    metrics.setdefault("training", {})
    metrics.setdefault("evaluations", [])
    schema.check_metrics(metrics, str(file))
    entries = enumerate(metrics["evaluations"])
    metrics["evaluations"] = [checked_evaluation(entry, f"{file}: evaluation {i}") for i, entry in entries]
    return metrics


def read_recipe(folder: Path) -> dict[str, Any]:
    """Read `recipe.yaml` as plain values.

    Raises:
        ReleaseError: when it is missing or no YAML mapping; see `load_yaml` for its limits.
    """
    file = folder / RECIPE
    recipe = load_yaml(read_text(file), str(file), ReleaseError)
    if not isinstance(recipe, dict):
        raise ReleaseError(f"{file}: found {plain_kind(recipe)}, expected sections of a recipe")
    schema.check_words(recipe, str(file))
    for name in RECIPE_SECTIONS:
        if not isinstance(found := recipe.get(name), dict | None):
            raise ReleaseError(f'{file}: "{name}": found {plain_kind(found)}, expected a section')
    return recipe


def snapshot_of(training: Mapping[str, Any]) -> str | None:
    """Say of a release's `training` how far it was, "epoch 300 of 400", where it had not ended; else None."""
    facts = training.get("snapshot")
    if not isinstance(facts, Mapping):
        return None
    return f"epoch {facts.get('epoch')} of {facts.get('of_epochs')}"


def start_of(recipe: Mapping[str, Any]) -> str | None:
    """Return what a recipe's training started from; None for random weights, and of a conversion."""
    start = (recipe.get("init") or {}).get("release")
    return start if isinstance(start, str) else None


def teachers_of(recipe: Mapping[str, Any]) -> list[str]:
    """Return the releases that a recipe's student learns from beside the labels, in its order."""
    distill = _section(_section(recipe, "objective"), "distill")
    teachers = distill.get("teachers")
    return [name for name in teachers if isinstance(name, str)] if isinstance(teachers, list) else []


def began_with(recipe: Mapping[str, Any]) -> str:
    """Say what a recipe's training started and learned from; '' where that is random weights and labels."""
    start, teachers = start_of(recipe), teachers_of(recipe)
    words = [] if start is None else [f'started from "{start}"']
    if teachers:
        words.append("learned from " + ", ".join(f'"{name}"' for name in teachers))
    return " and ".join(words)


def _section(recipe: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = recipe.get(key)
    return found if isinstance(found, Mapping) else {}


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ReleaseError: when the file is missing, is no JSON object, or holds a key twice.
    """
    try:
        data = json.loads(read_text(file), object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise ReleaseError(f"{file}: not valid JSON at line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise ReleaseError(f"{file}: not valid JSON: {error!s:.200}") from None
    if not isinstance(data, dict):
        raise ReleaseError(f"{file}: found {plain_kind(data)}, expected a JSON object")
    return data


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key, value in pairs:
        if key in data:  # which of the two a reader takes is anybody's guess
            raise ValueError(f'key "{key}" stands there twice')
        data[key] = value
    return data


def read_text(file: Path) -> str:
    """Read a file of the release.

    Raises:
        ReleaseError: when it is missing, is no UTF-8 text, or is larger than any that belongs there.
    """
    if not is_file(file):  # reading a device or a pipe may never end
        why = unfinished(file.parent) if file.name == CONFIG else ""
        raise ReleaseError(f"{file.parent}: {why or f'no release, {file.name} is missing'}")
    try:
        if (size := file.stat().st_size) > MAX_TEXT_BYTES:
            raise ReleaseError(f"{file}: found {size:,} bytes, expected at most {MAX_TEXT_BYTES:,}")
        data = file.read_bytes()
    except OSError as error:
        raise ReleaseError(f"{file}: cannot be read: {error}") from None
    if kind := disguise(data):
        raise ReleaseError(f"{file}: {kind}")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ReleaseError(f"{file}: no UTF-8 text: {error.reason} at byte {error.start}") from None


def to_json(data: Mapping[str, Any]) -> str:
    """Return `data` as the release's files hold it."""
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def recorded_tensors(zoo: Mapping[str, Any]) -> list[str]:
    """Return which tensor files beside the weights there have to be, by the key "zoo" of `config.json`."""
    return [name for name in (CENTERS, IMAGES) if zoo.get(HASHED[name])]


def sha256(file: Path) -> str:
    """Return the hexadecimal SHA-256 of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def rewrite(folder: Path, config: Mapping[str, Any], recipe: Mapping[str, Any] | None = None) -> None:
    """Write another `config.json` and, with its hash in there, another recipe in the place of the old ones.

    Raises:
        ReleaseError: when the folder cannot be changed.
    """
    try:
        with replacing(folder, last=CONFIG, stale=()) as staging:  # the hash with what it is of
            if recipe is not None:
                (staging / RECIPE).write_text(dump_yaml(recipe), encoding="utf-8")
                config = {**config, "zoo": {**config["zoo"], "recipe_sha256": sha256(staging / RECIPE)}}
            (staging / CONFIG).write_text(to_json(config), encoding="utf-8")
    except OSError as error:
        raise ReleaseError(f"{folder}: cannot be changed: {error}") from None


def lfs_pointer(start: bytes) -> str:
    """Say that a file which begins with `start`, `DISGUISE_BYTES` of it, is Git LFS's; '' when it is not."""
    is_one = start.startswith(b"version https://git-lfs")
    return "this is Git LFS's pointer to the file, not the file; run `git lfs pull` there" if is_one else ""


def disguise(start: bytes) -> str:
    """Say what a file is that begins with `start` as no file of a release does; '' when it does not.

    That is a pickle or an archive around one, or what git has in the place of a large file.
    """
    if pointer := lfs_pointer(start):
        return pointer
    kinds = {b"PK\x03\x04": "a zip archive, as torch.save writes it around a pickle"}
    kinds |= dict.fromkeys(PICKLES, "a pickle")
    kind = next((kind for magic, kind in kinds.items() if start.startswith(magic)), "")
    return kind and f"this is {kind}; nothing was unpickled, as unpickling runs any code that a file holds"
