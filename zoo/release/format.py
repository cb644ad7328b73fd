"""The files of a release folder or a plain timm model: names, hashes, reading, and replacing all at once.

New files are gathered in a staging folder. Renaming that folder to `.writing` commits them: after a crash,
whoever opens the release next moves the remaining ones into place.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from os.path import isdir, isfile
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from zoo import catalog, files
from zoo.config import load_yaml, type_name
from zoo.errors import ReleaseError
from zoo.files import staging, sync, writing
from zoo.release import schema

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
CENTERS = "centers.safetensors"
IMAGES = "images.safetensors"
RECIPE = "recipe.yaml"
METRICS = "metrics.json"
HISTORY = "history.json"
CARD = "README.md"
EXAMPLE = "example.png"
DRAWN = ("features", "centers", "scores", "balance", "accuracy", "curves")  # pictures drawn by zoo
PICTURES = "*.png"
PICTURE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.png")  # names of pictures that a release may have
LOCK = ".lock"  # held by the process that changes the record; not part of the release
LICENSE = "apache-2.0"
HASHED = {WEIGHTS: "weights_sha256", CENTERS: "centers_sha256", RECIPE: "recipe_sha256"}
HASHED[IMAGES] = "images_sha256"
_WRITING, _STALE = ".writing", ".stale"  # folder of new files; file in it that lists old ones to remove


@dataclass(frozen=True)
class Preprocess:
    """How an image becomes the encoder's input at test time, in timm's terms."""

    input_size: int  # height and width in pixels
    crop_pct: float  # fraction of the resized image that the center crop keeps, in (0, 1]
    interpolation: str  # "bilinear", "bicubic", ...
    mean: tuple[float, ...]  # per channel, of pixels in [0, 1]
    std: tuple[float, ...]
    crop_mode: str = "center"  # or "squash", "border"


def holds_release(folder: Path) -> bool:
    """Whether `folder` contains a release, or one that a crash left partly moved into place."""
    return isfile(folder / CONFIG) or isfile(folder / _WRITING / CONFIG)


def read_text(file: Path) -> str:
    """Read a text file of the release; raise a `ReleaseError` if it is missing, not text or far too large."""
    if not isfile(file):
        raise ReleaseError(f"{file.parent}: no release, {file.name} is missing")
    return files.read_text(file, ReleaseError)


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object; raise a `ReleaseError` if the file is missing or not a JSON object."""
    try:
        data = json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        raise ReleaseError(f"{file}: not valid JSON: {error!s:.200}") from None
    if not isinstance(data, dict):
        raise ReleaseError(f"{file}: found {type_name(data)}, expected a JSON object")
    return data


def to_json(data: Mapping[str, Any]) -> str:
    """Serialize a JSON file of the release."""
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def read_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes that a safetensors file declares; raise a `ReleaseError` if it is incomplete."""
    if not isfile(file):
        raise ReleaseError(f"{file.parent}: {file.name} is missing")
    try:
        with safe_open(file, "pt") as tensors:  # as in `load_file`; it checks sizes and offsets
            return {name: (*tensors.get_slice(name).get_shape(),) for name in tensors.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ReleaseError(f"{file}: expected a whole safetensors file: {error}") from None


def read_config(folder: Path) -> dict[str, Any]:
    """Read the `config.json` of a release or a plain timm model; a `ReleaseError` names the wrong key."""
    if isdir(folder / _WRITING):
        with writing(f"{folder}: what an interrupted writer left", ReleaseError):
            complete(folder)
    found = read_json(folder / CONFIG)  # transformers keeps the "zoo" of weights that it trained further
    config = found if "zoo" in found and "model_type" not in found else _describe(folder, found)
    schema.check(schema.ReleaseConfig, config, str(folder / CONFIG))
    return config


def _describe(folder: Path, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a `config.json` written by timm to a release's, see https://hf.co/docs/timm/hf_hub."""
    import timm
    import torch
    from timm.data import ImageNetInfo, infer_imagenet_subset, resolve_data_config

    where, weights = folder / CONFIG, folder / WEIGHTS
    architecture, cfg, args = raw.get("architecture"), raw.get("pretrained_cfg"), raw.get("model_args") or {}
    if not (isinstance(architecture, str) and isinstance(cfg, dict) and isinstance(args, dict)):
        expected = 'expected a release, or a model in timm\'s format: "architecture" and "pretrained_cfg"'
        raise ReleaseError(f"{where}: found {', '.join(raw)[:80] or 'nothing'}, {expected}")
    classes = raw.get("num_classes", args.get("num_classes", cfg.get("num_classes", 0)))
    if type(classes) is not int or not 0 <= classes <= 1 << 20:
        raise ReleaseError(f"{where}: num_classes: found {str(classes)[:40]!r}, expected 0 or more")
    fetched = isfile(weights)  # else only the metadata was requested
    shapes, recorded = (read_shapes(weights), cached_sha256(weights)) if fetched else ({}, None)
    last = {f"{cfg.get('classifier')}.{part}" for part in ("weight", "bias")}
    shape = shapes.get(f"{cfg.get('classifier')}.weight", ())
    linear = bool(classes) and len(shape) == 2 and shape[0] == classes
    if linear:  # an encoder without classes may lack more than this layer, as SHViT does its BatchNorm
        with suppress(Exception), torch.device("meta"):  # from any of 1,400 constructors; loading reports it
            built = [timm.create_model(architecture, **{**args, "num_classes": n}) for n in (0, classes)]
            linear = {*built[1].state_dict()} - {*built[0].state_dict()} <= last
    width = shape[1] if linear else raw.get("num_features")
    tag = str(cfg.get("tag") or folder.resolve().name)
    names: Any = raw.get("label_names") or cfg.get("label_names")
    fit = isinstance(names, list) and ("model_type" not in raw or len(names) == classes)
    if not fit:  # ImageNet's class names if timm knows them, else indices
        subset = infer_imagenet_subset({"num_classes": classes})
        info = ImageNetInfo(subset) if subset else None
        names = [info.index_to_description(index) if info else index for index in range(classes)]
    return {
        "architecture": architecture,
        "num_classes": classes,
        "num_features": raw.get("num_features") or width,
        "model_args": _without_default_pool(architecture, args),
        "pretrained_cfg": {
            "tag": tag,
            "custom_load": False,
            **resolve_data_config({}, pretrained_cfg=cfg),  # with timm's defaults
            "fixed_input_size": cfg.get("fixed_input_size", False),
            "first_conv": cfg.get("first_conv"),
            "classifier": cfg.get("classifier"),
            "license": cfg.get("license") or "unknown",
        },
        **({"label_names": [*map(str, names)]} if classes else {}),
        "zoo": {
            "format": 1,
            "name": re.sub(r"[^A-Za-z0-9_.-]", "_", f"{architecture}.{tag}")[: schema.MAX_NAME],
            "objective": "unknown",
            "dataset": {"name": "not recorded"},
            "description": f"A {architecture} in timm's format; how it was trained is not recorded.",
            "feature_dim": width,
            "has_centers": linear,
            "recipe_sha256": None,
            "weights_sha256": recorded,
            "centers_sha256": recorded if linear else None,
        },
    }


def _without_default_pool(architecture: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the architecture's arguments without its default pooling, which timm's export adds."""
    import timm
    import torch

    kept = {key: value for key, value in args.items() if key not in ("num_classes", "in_chans")}
    if [*kept] == ["global_pool"]:
        with suppress(Exception), torch.device("meta"):  # from any of 1,400 constructors; loading reports it
            default, given = (str(timm.create_model(architecture, **each)) for each in ({}, kept))
            return {} if given == default else kept
    return kept


def read_metrics(folder: Path) -> dict[str, Any]:
    """Return the checked content of `metrics.json`: `training`, `evaluations` and optionally `example`."""
    return checked_metrics(read_json(folder / METRICS), folder / METRICS)


def checked_metrics(metrics: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Validate the content of `metrics.json`; a `ReleaseError` names what is missing or of the wrong type."""
    schema.check(schema.Metrics, metrics, str(file))
    entries = enumerate(metrics["evaluations"])
    checked = [schema.checked_evaluation(entry, f"{file}: evaluation {i}") for i, entry in entries]
    return {**metrics, "evaluations": checked}


def is_read_only(folder: Path) -> bool:
    """Whether a release's folder must not change: it is shipped, in a cache, or a plain timm model."""
    file = folder / METRICS  # in huggingface_hub's cache, a symlink to a shared blob
    return not isfile(file) or file.is_symlink() or catalog.is_shipped(folder)


def read_recipe(folder: Path) -> dict[str, Any]:
    """Read `recipe.yaml` as plain values; raise a `ReleaseError` if it is missing or not a YAML mapping."""
    file = folder / RECIPE
    recipe = load_yaml(read_text(file), str(file), ReleaseError)
    if not isinstance(recipe, dict):
        raise ReleaseError(f"{file}: found {recipe!r:.40}, expected a mapping")
    for key in ("data", "init", "objective", "views"):
        if not isinstance(recipe.get(key), dict | None):
            raise ReleaseError(f'{file}: "{key}": found {recipe[key]!r:.40}, expected a mapping')
    schema.check_words(recipe, str(file))
    return recipe


def snapshot_of(training: Mapping[str, Any]) -> str | None:
    """Return a snapshot's progress, "epoch 300 of 400"; None if the release is not a snapshot."""
    facts = training.get("snapshot")
    return f"epoch {facts.get('epoch')} of {facts.get('of_epochs')}" if isinstance(facts, Mapping) else None


def sha256(file: Path) -> str:
    """Return the hexadecimal SHA-256 of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def cached_sha256(file: Path) -> str:
    """Return a file's SHA-256, cached below `$XDG_CACHE_HOME/zoo` until its inode, size or times change."""
    status = file.stat()
    key = f"{file.resolve()} {status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
    entry = files.cache_folder("sha256") / hashlib.sha256(os.fsencode(key)).hexdigest()
    with suppress(OSError, UnicodeDecodeError):
        return entry.read_text(encoding="utf-8")
    found = sha256(file)
    with suppress(OSError):
        files.write_text(entry, found)
    return found


def check_sha256(file: Path, expected: str, *, every_byte: bool = False) -> None:
    """Compare the SHA-256 of `file`, a cached one unless `every_byte`; a `ReleaseError` names both hashes."""
    if (found := (sha256 if every_byte else cached_sha256)(file)) != expected:
        raise ReleaseError(f"{file}: sha256 {found}, but {CONFIG} records {expected}")


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Yield an empty folder; its files replace the release in `folder` when the block ends without an error.

    Files are renamed into place, so that readers keep old files they have mapped. Others stay, pictures too.
    """
    exists = folder.exists()
    if exists:
        complete(folder)
    with staging(folder, inside=exists) as gathered:
        yield gathered
        if exists:
            optional = {CENTERS, IMAGES, HISTORY, EXAMPLE, *(f"{name}.png" for name in DRAWN)}
            old = optional - {file.name for file in gathered.iterdir()} if holds_release(folder) else ()
            (gathered / _STALE).write_text("\n".join(sorted(old)), encoding="utf-8")
        for file in [*gathered.iterdir(), gathered]:
            sync(file)
        gathered.rename(folder / _WRITING if exists else folder)
        sync(folder if exists else folder.parent)
    complete(folder)


def complete(folder: Path) -> None:
    """Move new files that an interrupted writer left into place, `config.json` last; several may."""
    new = folder / _WRITING
    if not isdir(new):
        return
    with suppress(FileNotFoundError):
        for name in (new / _STALE).read_text(encoding="utf-8").splitlines():
            if Path(name).name == name:  # the folder may be untrusted
                (folder / name).unlink(missing_ok=True)
    names = [file.name for file in new.iterdir() if file.name != _STALE]
    for name in sorted(names, key=lambda name: (name == CONFIG, name)):
        with suppress(FileNotFoundError):  # another process has moved it
            (new / name).replace(folder / name)
    sync(folder)
    shutil.rmtree(new, ignore_errors=True)
