"""What lies in a release folder: names, hashes, and files that are the old ones or the new, never a mixture.

New files are gathered in a folder of their own. Renaming that folder to `.writing` is the moment from which
the new files count: whoever opens the release after a crash moves what is left there to its place.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo import files
from zoo.config import dump_yaml, load_yaml, plain_kind
from zoo.errors import ReleaseError
from zoo.files import is_dir, is_file, read_object, staging, sync, write_text
from zoo.release import schema
from zoo.release.evaluations import checked_evaluation

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
LOCK = ".lock"  # of who adds to what a release records; no part of it
LICENSE = "apache-2.0"

HASHED = {
    WEIGHTS: "weights_sha256",
    CENTERS: "centers_sha256",
    RECIPE: "recipe_sha256",
    IMAGES: "images_sha256",
}
_WRITING, _STALE = ".writing", ".stale"  # the new files; among them the names of old ones to remove
_MAX_TEXT_BYTES = 8 << 20  # of config, metrics, history and card: many times what 10,000 classes need
_MAX_ENTRIES = 256  # of the record of hashes, the newest; an older file is hashed again
_SETTLED_NS = 2_000_000_000  # the coarsest clock of a file system: a younger file may change without a trace


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


def holds_release(folder: Path) -> bool:
    """Whether a release lies in `folder`; also one whose files a crash left on the way to their place."""
    return is_file(folder / CONFIG) or is_file(folder / _WRITING / CONFIG)


def recorded_tensors(zoo: Mapping[str, Any]) -> list[str]:
    """Return which tensor files beside the weights there have to be, by the key "zoo" of `config.json`."""
    return [name for name in (CENTERS, IMAGES) if zoo.get(HASHED[name])]


# --- texts


def read_text(file: Path) -> str:
    """Read a file of the release.

    Raises:
        ReleaseError: when it is missing, is no text, or is larger than any that belongs there.
    """
    if not is_file(file):
        raise ReleaseError(f"{file.parent}: {_unfinished(file) or f'no release, {file.name} is missing'}")
    try:
        return files.read_text(file, _MAX_TEXT_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise ReleaseError(f"{file}: cannot be read: {error}") from None


def _unfinished(file: Path) -> str:
    """Say of a folder without `config.json` that a training is under way there; '' for any other file."""
    run = file.parent / "run"
    if not is_file(run / RECIPE) and not is_file(file.parent / WEIGHTS):
        run = file.parent  # the run's own folder
    if file.name != CONFIG or not is_file(run / RECIPE):
        return ""
    name = read_recipe(run).get("name", "a recipe")
    return (
        f"no release yet, but an unfinished training of {name}. If it was stopped, the same command with "
        '--resume continues it; "zoo snapshot" makes a release of what it has learned so far'
    )


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ReleaseError: when the file is missing, is no JSON object, or holds a key twice.
    """
    try:
        data = json.loads(read_text(file), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ReleaseError(f"{file}: not valid JSON: {error!s:.200}") from None
    if not isinstance(data, dict):
        raise ReleaseError(f"{file}: found {plain_kind(data)}, expected a JSON object")
    return data


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):  # which of the two a reader takes is anybody's guess
        raise ValueError(f"a key stands twice among {', '.join(key for key, _ in pairs)}")
    return data


def to_json(data: Mapping[str, Any]) -> str:
    """Return `data` as the release's files hold it."""
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def read_metrics(folder: Path) -> dict[str, Any]:
    """Read and check `metrics.json`: `{"training": {...}, "evaluations": [...]}`, and `format` beside them.

    Every evaluation has what `checked_evaluation` gives it, also in files of earlier versions.

    Raises:
        ReleaseError: when it is missing, what the card is made of is not there, or an evaluation's `value` is
            not in its metrics.
    """
    return checked_metrics(read_json(folder / METRICS), folder / METRICS)


def checked_metrics(metrics: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return the content of `metrics.json`, checked as `read_metrics` says."""
    found = {
        **metrics,
        "training": metrics.get("training", {}),
        "evaluations": metrics.get("evaluations", []),
    }
    schema.check(schema.Metrics, found, str(file))
    entries = enumerate(found["evaluations"])
    found["evaluations"] = [checked_evaluation(entry, f"{file}: evaluation {i}") for i, entry in entries]
    return found


def read_recipe(folder: Path) -> dict[str, Any]:
    """Read `recipe.yaml` as plain values.

    Raises:
        ReleaseError: when it is missing or no YAML mapping; see `load_yaml` for its limits.
    """
    file = folder / RECIPE
    recipe = load_yaml(read_text(file), str(file), ReleaseError)
    schema.check(schema.RecipeSections, recipe, str(file))
    return dict(recipe)


def snapshot_of(training: Mapping[str, Any]) -> str | None:
    """Say of a release's `training` how far it was, "epoch 300 of 400", where it had not ended; else None."""
    facts = training.get("snapshot")
    if not isinstance(facts, Mapping):
        return None
    return f"epoch {facts.get('epoch')} of {facts.get('of_epochs')}"


# --- hashes


def sha256(file: Path) -> str:
    """Return the hexadecimal SHA-256 of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def known_sha256(file: Path) -> str:
    """Return the SHA-256 of `file`; one that was hashed by an earlier load is not hashed again.

    It counts as unchanged while inode, size, modification and change time are the same. The record is
    `$XDG_CACHE_HOME/zoo/verified.json` (default `~/.cache/zoo`); without one that can be read and written,
    files are hashed every time.

    Raises:
        OSError: when it is missing or cannot be read.
    """
    path, status = str(file.resolve(strict=True)), file.stat()
    identity = [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    record = Path(os.path.expanduser(cache)) / "zoo" / "verified.json"  # noqa: PTH111  # which has no error
    entries = read_object(record)
    entry = entries.pop(path, None)
    if isinstance(entry, list) and entry[:-1] == identity:
        return str(entry[-1])
    found = sha256(file)
    if time.time_ns() - max(identity[2:]) > _SETTLED_NS:
        newest = dict([*entries.items(), (path, [*identity, found])][-_MAX_ENTRIES:])
        with suppress(OSError, ValueError):
            write_text(record, json.dumps(newest))
    return found


def check_sha256(file: Path, expected: str, *, every_byte: bool = False) -> None:
    """Make sure that `file` has the SHA-256 `expected`, by the record or, with `every_byte`, by hashing it.

    Raises:
        ReleaseError: naming both hashes, or why the file cannot be read.
    """
    try:
        found = sha256(file) if every_byte else known_sha256(file)
    except OSError as error:
        raise ReleaseError(f"{file}: cannot be read: {error}") from None
    if found != expected:
        cached = file.parent.parent.name == "snapshots"  # of huggingface_hub
        hint = '; "zoo pull" of the repository mends the cache' if cached else ""
        raise ReleaseError(f"{file}: sha256 {found}, but {CONFIG} records {expected}{hint}")


# --- writing


@contextmanager
def replacing(folder: Path, *, stale: tuple[str, ...] = ()) -> Iterator[Path]:
    """Yield an empty folder; its files appear in `folder` when the block ends without an error.

    Files are renamed into place and never overwritten: readers that have mapped an old file keep it.

    Args:
        folder: where the files shall be. Other files and folders in it stay.
        stale: patterns of files in `folder` to remove when they are not among the new ones.
    """
    exists = folder.exists()
    if exists:
        complete(folder)
    with staging(folder, inside=exists) as gathered:
        yield gathered
        if exists:
            new = {file.name for file in gathered.iterdir()}
            old = {file.name for pattern in stale for file in folder.glob(pattern)} - new
            (gathered / _STALE).write_text("\n".join(sorted(old)), encoding="utf-8")
        for file in gathered.iterdir():
            sync(file)
        sync(gathered)
        gathered.rename(folder / _WRITING if exists else folder)
        sync(folder if exists else folder.parent)
    complete(folder)


def complete(folder: Path) -> None:
    """Move new files to their place that a stopped writer left, if there are any; `config.json` comes last.

    Two processes may do so at one time.

    Raises:
        OSError: when the folder cannot be changed.
    """
    new = folder / _WRITING
    if not is_dir(new):
        return
    with suppress(FileNotFoundError):
        for name in (new / _STALE).read_text(encoding="utf-8").splitlines():
            if Path(name).name == name:  # the folder may be a stranger's
                (folder / name).unlink(missing_ok=True)
    names = [file.name for file in new.iterdir() if file.name != _STALE]
    for name in sorted(names, key=lambda name: (name == CONFIG, name)):
        with suppress(FileNotFoundError):  # another process has moved it
            (new / name).replace(folder / name)
    sync(folder)
    shutil.rmtree(new, ignore_errors=True)


def rewrite(folder: Path, config: Mapping[str, Any], recipe: Mapping[str, Any]) -> None:
    """Write another `config.json` and, with its hash in there, another recipe in the place of the old ones.

    Raises:
        ReleaseError: when the folder cannot be changed.
    """
    try:
        with replacing(folder) as staging:  # the hash with what it is of
            (staging / RECIPE).write_text(dump_yaml(recipe), encoding="utf-8")
            config = {**config, "zoo": {**config["zoo"], "recipe_sha256": sha256(staging / RECIPE)}}
            (staging / CONFIG).write_text(to_json(config), encoding="utf-8")
    except OSError as error:
        raise ReleaseError(f"{folder}: cannot be changed: {error}") from None
