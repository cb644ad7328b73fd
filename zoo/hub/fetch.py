"""From a resolved name to a folder on this disk: huggingface_hub's cache for what is on the Hub."""

from __future__ import annotations

import logging
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download

from zoo.errors import ReleaseError, did_you_mean
from zoo.files import is_dir, is_file, names_in
from zoo.hub.names import ModelRef
from zoo.hub_client import talking
from zoo.release import configs, format
from zoo.release.schema import LIBRARY

LOG = logging.getLogger("zoo.hub")  # what is sent and fetched; the command line shows it off a terminal

TEXTS = (format.CONFIG, format.RECIPE, format.METRICS, format.HISTORY, format.CARD)
TENSORS = (format.WEIGHTS, format.CENTERS, format.IMAGES)
_PICKLES = {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".tar"}


def is_release_file(name: str) -> bool:
    """Whether a file of this name, at the top of a folder or repository, belongs to a release."""
    return name in (*TEXTS, *TENSORS) or format.PICTURE.fullmatch(name) is not None


def release_files(folder: Path) -> dict[str, Path]:
    """Return the files of the release in a folder by name; what else lies there is no part of it."""
    return {file.name: file for file in sorted(folder.iterdir()) if is_release_file(file.name)}


def folder_of(
    ref: ModelRef,
    *,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    weights: bool = True,
) -> Path:
    """Return the folder of a release, after fetching it if it is on the Hub; arguments as `fetch`.

    Raises:
        ReleaseError: when it is not there.
    """
    if ref.path is None:
        return fetch(ref.target, ref.revision, token=token, cache_dir=cache_dir, weights=weights)
    if is_file(ref.path):
        raise ReleaseError(f'"{ref.path}": found a file, expected the folder of a release')
    if not is_dir(ref.path):
        beside = ref.path.parent
        near = did_you_mean(ref.path, [str(beside / name) for name in names_in(beside)])
        raise ReleaseError(f'no folder "{ref.path}".{near}')
    return ref.path


def fetch(
    repo_id: str,
    revision: str | None = None,
    *,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    weights: bool = True,
) -> Path:
    """Return the folder in huggingface_hub's cache that holds a release, after fetching what is not there.

    Only files that a release has are fetched, the weights after `config.json` has been understood. Without
    an answer of the Hub, and with `HF_HUB_OFFLINE=1`, what the cache has of the revision is taken.

    Args:
        repo_id: the repository.
        revision: branch, tag or commit; by default the branch `main`.
        token: access token, by default the one that huggingface_hub has stored.
        cache_dir: another cache.
        weights: fetch the encoder's weights too, not only what tells about them.

    Raises:
        ReleaseError: naming the repository, what was found and what to do.
    """
    where = named_repository(repo_id, revision)

    def get(patterns: list[str], revision: str | None) -> Path:
        with talking(where, ReleaseError):
            folder = snapshot_download(
                repo_id,
                revision=revision,
                cache_dir=cache_dir,
                token=token,
                allow_patterns=patterns,
                ignore_patterns="*/*",
                library_name=LIBRARY,
            )
        return Path(folder)

    folder = get([*TEXTS, format.PICTURES], revision)
    if not is_file(folder / format.CONFIG):
        raise ReleaseError(f"{where}: no release, nor a model in timm's format: {format.CONFIG} is missing")
    config = configs.read_config(folder)
    needed = [] if configs.is_plain(config) else format.recorded_tensors(config["zoo"])
    needed += [format.WEIGHTS] if weights else []
    lacking = [name for name in needed if not is_file(folder / name)]
    if lacking:
        LOG.info("fetching %s from %s", ", ".join(lacking), repo_id)
        get(lacking, folder.name)
    if weights and not is_file(folder / format.WEIGHTS):
        raise ReleaseError(f"{where}: {_without_weights(repo_id, folder.name, token)}")
    return folder


def named_repository(repo_id: str, revision: str | None = None) -> str:
    """Return how errors name a repository."""
    return f'Hub repository "{repo_id}"' + (f' at revision "{revision}"' if revision else "")


def client(token: str | bool | None) -> HfApi:
    """Return the client; it names this project to the Hub."""
    return HfApi(token=token, library_name=LIBRARY)


def _without_weights(repo_id: str, commit: str, token: str | bool | None) -> str:
    with talking(named_repository(repo_id), ReleaseError):
        names = client(token).list_repo_files(repo_id, revision=commit)
    pickles = [name for name in names if Path(name).suffix.lower() in _PICKLES]
    if pickles:
        return (
            f"its weights are in {pickles[0]}, a pickle, which can run any code when it is read, and "
            f"{format.WEIGHTS} is missing. Download the file, then: zoo convert FILE --family FAMILY"
        )
    return f"{format.WEIGHTS} is missing"
