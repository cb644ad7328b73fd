"""`zoo.open` and `zoo.load`: from a name to a release; of the Hub through huggingface_hub's cache."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub import HfApi, snapshot_download
from torch import nn

from zoo.errors import ReleaseError, did_you_mean
from zoo.files import is_dir, is_file, names_in
from zoo.hub.client import hub_errors
from zoo.hub.names import ModelRef, resolve
from zoo.release import Release, format
from zoo.release.schema import LIBRARY

LOG = logging.getLogger("zoo.hub")  # what is sent and fetched; the command line shows it off a terminal

_TEXTS = (format.CONFIG, format.RECIPE, format.METRICS, format.HISTORY, format.CARD)
TENSORS = (format.WEIGHTS, format.CENTERS, format.IMAGES)


def open(
    name: str | Path | Release,
    *,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    token: str | bool | None = None,
) -> Release:
    """Open a release.

    Args:
        name: a folder; `"org/name[@revision]"` or the address of its page, a repository on the Hub with a
            release or a model in timm's format; a shipped release; or `"timm:ARCH.TAG"`, timm's own weights.
            A name that means two different releases is refused; `"./folder"`, `"hf-hub:org/name[@revision]"`
            and `"shipped:name"` mean one. Or a release that is open already, which is opened anew.
        revision: branch, tag or commit of a Hub repository, by default the branch `main`. A commit that is
            in the cache is opened without a request.
        cache_dir: where downloads are kept, by default huggingface_hub's cache. With `HF_HUB_OFFLINE=1`
            only what is there is used.
        token: access token for the Hub; by default the one that huggingface_hub has stored.

    Raises:
        ReleaseError: naming what was looked for and the nearest release, or what the folder lacks.
    """
    return Release.at(folder_of(resolve(name, revision, cache_dir), token=token, cache_dir=cache_dir))


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
    """Load a pretrained encoder as a timm model, in training mode like `timm.create_model`'s: call `.eval()`.

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
    return name in (*_TEXTS, *TENSORS) or format.PICTURE.fullmatch(name) is not None


def release_files(folder: Path) -> dict[str, Path]:
    """Return the files of the release in a folder by name; other files there are no part of it."""
    return {file.name: file for file in sorted(folder.iterdir()) if is_release_file(file.name)}


def folder_of(
    ref: ModelRef,
    *,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    weights: bool = True,
) -> Path:
    """Return the folder of a release; from the Hub, what is not in huggingface_hub's cache is fetched.

    Only files of a release are fetched, the tensors after `config.json` has been understood; without
    `weights` not the encoder's. Where the Hub does not answer, what the cache has of the revision is taken.

    Raises:
        ReleaseError: naming the folder or repository, what was found and what to do.
    """
    if ref.path is not None:
        if not is_dir(ref.path):
            beside = [str(ref.path.parent / name) for name in names_in(ref.path.parent)]
            raise ReleaseError(f'no folder "{ref.path}".{did_you_mean(ref.path, beside)}')
        return ref.path

    def fetch(patterns: list[str], revision: str | None) -> Path:
        options: Any = {"revision": revision, "cache_dir": cache_dir, "token": token, "library_name": LIBRARY}
        with hub_errors(ref, ReleaseError):
            return Path(
                snapshot_download(ref.target, allow_patterns=patterns, ignore_patterns="*/*", **options)
            )

    folder = fetch([*_TEXTS, format.PICTURES], ref.revision)
    if not is_file(folder / format.CONFIG):
        raise ReleaseError(f"{ref}: no release, nor a model in timm's format: {format.CONFIG} is missing")
    config = format.read_config(folder)
    needed = [] if format.is_plain(config) else format.recorded_tensors(config["zoo"])
    needed += [format.WEIGHTS] if weights else []
    if lacking := [name for name in needed if not is_file(folder / name)]:
        LOG.info("fetching %s from %s", ", ".join(lacking), ref.target)
        fetch(lacking, folder.name)
    if weights and not is_file(folder / format.WEIGHTS):
        raise ReleaseError(
            f"{ref}: {format.WEIGHTS} is missing; for a pickle: zoo convert FILE --family FAMILY"
        )
    return folder


def client(token: str | bool | None) -> HfApi:
    """Return the Hub's client; it names this project to the Hub."""
    return HfApi(token=token, library_name=LIBRARY)
