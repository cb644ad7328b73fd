"""Which files a release consists of, here and on the Hub, and whether the two are the same.

A repository's listing is written by whoever owns it: nothing is fetched by a name that is not known here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from zoo.config import MAX_YAML_BYTES
from zoo.errors import ReleaseError
from zoo.release import card, format
from zoo.release.hub import RemoteFile

_MIB = 1 << 20
# Each is read as a whole: none may be larger than its reader takes, far above what any release has.
LIMITS = {
    format.CONFIG: format.MAX_TEXT_BYTES,
    format.RECIPE: MAX_YAML_BYTES,
    format.METRICS: format.MAX_TEXT_BYTES,
    format.HISTORY: format.MAX_TEXT_BYTES,
    format.CARD: 4 * _MIB,
    format.IMAGES: 64 * _MIB,  # eight million images
}
PICTURE_LIMIT, MAX_PICTURES = 32 * _MIB, 100
NEEDED = (format.CONFIG, format.RECIPE, format.METRICS, format.CARD, format.WEIGHTS)
PLAIN = (format.CONFIG, format.WEIGHTS)  # of a model that timm itself saved
_KNOWN = {*NEEDED, format.CENTERS, format.IMAGES, format.HISTORY}
_PICKLES = {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".tar", ".t7", ".joblib"}
_WEIGHTS = _PICKLES | {
    ".safetensors",
    ".gguf",
    ".h5",
    ".keras",
    ".msgpack",
    ".npz",
    ".onnx",
    ".pb",
    ".tflite",
}


def is_release_file(name: str) -> bool:
    """Whether a file of this name, at the top of a folder or repository, belongs to a release."""
    return name in _KNOWN or format.PICTURE.fullmatch(name) is not None


def are_weights(name: str) -> bool:
    """Whether a file of this name holds some model's weights."""
    return PurePosixPath(name).suffix.lower() in _WEIGHTS


def local_files(folder: Path) -> list[Path]:
    """Return the files of the release in `folder`; what else lies there is no part of it."""
    return sorted(file for file in folder.iterdir() if file.is_file() and is_release_file(file.name))


def contents(folder: Path, repo_id: str) -> dict[str, Path | bytes]:
    """Return what the repository of the release in `folder` shall hold: its files, the card addressed."""
    found: dict[str, Path | bytes] = {file.name: file for file in local_files(folder)}
    found[format.CARD] = card.addressed(format.read_text(folder / format.CARD), repo_id).encode()
    return found


def size(content: Path | bytes) -> int:
    """Return the number of bytes."""
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def amount(sizes: Iterable[int | None]) -> str:
    """Say how many files of how many bytes in all."""
    known = [size or 0 for size in sizes]
    return f"{len(known)} file{'s' * (len(known) != 1)}, {sum(known) / 1e6:,.1f} MB,"


def same(content: Path | bytes, remote: RemoteFile) -> bool:
    """Whether a file here has the content of one on the Hub."""
    if size(content) != remote.size:
        return False
    if remote.sha256:
        if isinstance(content, bytes):
            return hashlib.sha256(content).hexdigest() == remote.sha256
        return format.sha256(content) == remote.sha256
    data = content if isinstance(content, bytes) else content.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest() == remote.blob


def differing(here: Mapping[str, Path | bytes], there: Mapping[str, RemoteFile]) -> list[str]:
    """Return the names of the release's files that are not the same, or on one side only."""
    names = {*here, *filter(is_release_file, there)}
    return sorted(
        name for name in names if name not in here or name not in there or not same(here[name], there[name])
    )


def wanted(files: Mapping[str, RemoteFile], repo_id: str) -> list[str]:
    """Return which files of a repository to fetch, the weights last.

    Raises:
        ReleaseError: when the repository is no release, or lists what no release has: a name that climbs out
            of the folder, or small files that are gigantic.
    """
    where = f'Hub repository "{repo_id}"'
    for name in files:
        if _climbs(name):
            raise ReleaseError(f"{where}: refused, it lists a file {name!r} outside of its folder")
    plain = format.RECIPE not in files and format.METRICS not in files
    absent = [name for name in (PLAIN if plain else NEEDED) if name not in files]
    pickles = sorted(name for name in files if PurePosixPath(name).suffix.lower() in _PICKLES)
    if format.WEIGHTS in absent and pickles:
        raise ReleaseError(
            f"{where}: its weights are in {pickles[0]}, a pickle, which can run any code when it is read,"
            f" and {format.WEIGHTS} is missing. Download the file, then: zoo convert FILE --family FAMILY"
        )
    if absent:
        what = "release, nor a model in timm's format" if plain else "whole release"
        raise ReleaseError(f"{where}: no {what}, {', '.join(absent)} is missing")
    found = [name for name in files if (name in (*PLAIN, format.CARD) if plain else is_release_file(name))]
    check_sizes({name: files[name].size for name in found}, where)
    return sorted(found, key=lambda name: (name in (format.CENTERS, format.WEIGHTS), name))


def check_sizes(sizes: Mapping[str, int | None], where: object) -> None:
    """Make sure that a release's files are no larger, and no more, than `wanted` takes.

    Raises:
        ReleaseError: naming the file, its size and the limit.
    """
    pictures = [name for name in sizes if name not in _KNOWN]
    if len(pictures) > MAX_PICTURES:
        raise ReleaseError(f"{where}: {len(pictures)} pictures, a release has at most {MAX_PICTURES}")
    for name, found in sizes.items():
        limit = PICTURE_LIMIT if name in pictures else LIMITS.get(name)
        if found is None or (limit is not None and found > limit):
            stated = "no size" if found is None else f"{found:,} bytes"
            raise ReleaseError(f"{where}: {name} has {stated}, expected at most {limit or 'one stated'}")


def _climbs(name: str) -> bool:
    """Whether a listed name could mean a file outside of the folder, on any system."""
    parts = name.split("/")
    odd = "\\" in name or re.match(r"[A-Za-z]:", name) or any(ord(letter) < 32 for letter in name)
    return bool(odd) or any(part in ("", ".", "..") for part in parts)
