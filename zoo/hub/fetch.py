"""`zoo.open` and `zoo.load`: from a name to a release; of the Hub through huggingface_hub's cache."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub import HfApi, snapshot_download
from torch import nn

from zoo import catalog
from zoo.config import plain_kind
from zoo.errors import ReleaseError, did_you_mean
from zoo.files import is_dir, is_file, names_in
from zoo.hub.names import HUB, SHIPPED, ModelRef, named_repository, resolve
from zoo.hub_client import COMMIT, talking
from zoo.release import Release, configs, format
from zoo.release.schema import LIBRARY

LOG = logging.getLogger("zoo.hub")  # what is sent and fetched; the command line shows it off a terminal

TEXTS = (format.CONFIG, format.RECIPE, format.METRICS, format.HISTORY, format.CARD)
TENSORS = (format.WEIGHTS, format.CENTERS, format.IMAGES)
_PICKLES = {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".tar"}


def named(release: Release | str | Path) -> str | Path:
    """Return the name of a release, or of one that is open its folder, or that it is a shipped one.

    Raises:
        ReleaseError: for what is neither, by its kind.
    """
    if isinstance(release, Release):
        return f"{SHIPPED}{release.path.name}" if catalog.is_shipped(release.path) else release.path
    if not isinstance(release, str | Path):
        raise ReleaseError(
            f"release: found {plain_kind(release)}, expected a name, a folder (str or Path) or a Release"
        )
    return release


def portable(release: Release | str | Path) -> str | Path:
    """Return what another machine knows a release by, too: of one from the Hub its repository and commit.

    Raises:
        ReleaseError: as `named`.
    """
    name = named(release)
    if isinstance(release, Release) and isinstance(name, Path) and (cached := cached_as(name)):
        return f"{HUB}{cached[0]}@{cached[1]}"
    return name


def cached_as(folder: Path) -> tuple[str, str] | None:
    """Return the repository and commit of a folder in huggingface_hub's cache; None for any other folder."""
    repository, snapshots, commit = folder.parts[-3:] if len(folder.parts) > 3 else ("", "", "")
    kind, *repo_id = repository.split("--")  # as the cache calls its folders
    if (kind, snapshots, len(repo_id)) == ("models", "snapshots", 2) and COMMIT.fullmatch(commit):
        return "/".join(repo_id), commit
    return None


def open(
    name: str | Path | Release,
    *,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    token: str | bool | None = None,
) -> Release:
    """Open a release.

    A name is a folder; `"org/name[@revision]"` or the address of its page, a repository on the Hub with a
    release or a model in timm's format; a shipped release, e.g. `"cifar_resnet32.paco_cifar100_lt100"`; or
    `"timm:ARCH.TAG"`, timm's own weights. A name that means two different releases is refused; `"./folder"`,
    `"hf-hub:org/name[@revision]"` and `"shipped:name"` mean one.

    Args:
        name: which release; one that is open already is opened anew.
        revision: branch, tag or commit of a Hub repository, by default the branch `main`. A commit that is
            in the cache is opened without a request.
        cache_dir: where downloads are kept, by default huggingface_hub's cache. With `HF_HUB_OFFLINE=1`
            only what is there is used.
        token: access token for the Hub; by default the one that huggingface_hub has stored.

    Raises:
        ReleaseError: naming what was looked for and the nearest release, or what the folder lacks.
    """
    ref = resolve(named(name), revision, cache_dir)
    return Release.at(folder_of(ref, token=token, cache_dir=cache_dir))


def load(
    name: str | Path | Release,
    *,
    num_classes: int = 0,
    head: Literal["centers"] | None = None,
    revision: str | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    cache_dir: str | Path | None = None,
    token: str | bool | None = None,
    **model_kwargs: Any,
) -> nn.Module:
    """Load a pretrained encoder as a timm model.

    Like `timm.create_model(..., pretrained=True)` the model is in training mode: call `.eval()` to use it as
    it is. Every parameter requires gradients.

    Args:
        name: which release, see `zoo.open`.
        num_classes: 0 for the headless encoder, `[B, 3, H, W]` -> features `[B, D_f]`; N for a fresh
            classifier of N classes, initialised by timm from torch's global generator.
        head: `"centers"` for the classifier made of the learned class centers.
        revision: branch, tag or commit of a Hub repository.
        device: where the model goes.
        dtype: the type of its floating-point tensors; by default the one that timm builds with.
        cache_dir: as in `zoo.open`.
        token: as in `zoo.open`.
        model_kwargs: timm's, e.g. `features_only=True`, `in_chans=1`, `img_size=64`, `drop_path_rate=0.1`.

    Raises:
        ReleaseError: when there is no such release, or it cannot be loaded like that.
    """
    release = open(name, revision=revision, cache_dir=cache_dir, token=token)
    return release.load(num_classes=num_classes, head=head, device=device, dtype=dtype, **model_kwargs)


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
        with talking(where, ReleaseError):
            names = client(token).list_repo_files(repo_id, revision=folder.name)
        pickles = [name for name in names if Path(name).suffix.lower() in _PICKLES]
        if pickles:
            raise ReleaseError(
                f"{where}: its weights are in {pickles[0]}, a pickle, which can run any code when it is "
                f"read, and {format.WEIGHTS} is missing. Download it, then: zoo convert FILE --family FAMILY"
            )
        raise ReleaseError(f"{where}: {format.WEIGHTS} is missing")
    return folder


def client(token: str | bool | None) -> HfApi:
    """Return the client; it names this project to the Hub."""
    return HfApi(token=token, library_name=LIBRARY)
