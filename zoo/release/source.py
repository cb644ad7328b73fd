"""`zoo.open` and `zoo.load`: from a name to a release, wherever it lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from zoo import catalog
from zoo.config import plain_kind
from zoo.errors import ReleaseError
from zoo.release import names
from zoo.release.locate import folder_of
from zoo.release.release import Release
from zoo.revisions import COMMIT


def named(release: Release | str | Path) -> str | Path:
    """Return the name of a release, or of one that is open its folder, or that it is a shipped one.

    Raises:
        ReleaseError: for what is neither, by its kind.
    """
    if isinstance(release, Release):
        return f"shipped:{release.path.name}" if catalog.is_shipped(release.path) else release.path
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
    if isinstance(release, Release) and isinstance(name, Path):
        repository, snapshots, commit = name.parts[-3:] if len(name.parts) > 3 else ("", "", "")
        kind, *repo_id = repository.split("--")  # as huggingface_hub's cache calls its folders
        if (kind, snapshots, len(repo_id)) == ("models", "snapshots", 2) and COMMIT.fullmatch(commit):
            return f"hf-hub:{'/'.join(repo_id)}@{commit}"
    return name


def open(
    name: str | Path | Release,
    *,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    token: str | bool | None = None,
) -> Release:
    """Open a release.

    A name is read in this order: a folder; `"org/name[@revision]"`, a repository on the Hub; a shipped
    release, e.g. `"cifar_resnet32.paco_cifar100_lt100"`; that name in the namespace on the Hub
    that `ZOO_NAMESPACE` or `~/.config/zoo/config.yaml` gives. A name with two readings that are not the same
    release is refused; `"./folder"`, `"hf-hub:org/name[@revision]"` and `"shipped:name"` have one.

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
    reading = names.resolve(named(name), revision, cache_dir)
    return Release.at(folder_of(reading, token=token, cache_dir=cache_dir))


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
