"""`zoo.open` and `zoo.load`: from a name to a release, wherever it lies."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from torch import nn

from zoo import catalog
from zoo.errors import ReleaseError, did_you_mean
from zoo.release import format
from zoo.release.release import Release

_HUB_NAME = re.compile(
    r"(?P<prefix>hf-hub:|hf_hub:)?(?P<repo>\w[\w.-]*/\w[\w.-]*)(?:@(?P<revision>[^@\s]+))?"
)
_RELEASE_FILES = [
    format.CONFIG,
    format.WEIGHTS,
    format.CENTERS,
    format.RECIPE,
    format.METRICS,
    format.CARD,
    format.PICTURES,
]


def open(
    name: str | Path,
    *,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    token: str | bool | None = None,
) -> Release:
    """Open a release.

    Args:
        name: a folder; the name of a shipped release, e.g. `"cifar_resnet32.paco_cifar10_lt100"`; or a
            repository on the Hub, `"org/repo[@revision]"` or `"hf-hub:org/repo[@revision]"`.
        revision: branch, tag or commit of a Hub repository.
        cache_dir: where downloads are kept, by default huggingface_hub's cache. With `HF_HUB_OFFLINE=1`
            only what is there is used.
        token: access token for the Hub; by default the one that huggingface_hub has stored.

    Raises:
        ReleaseError: naming what was looked for and the nearest release, or what the folder lacks.
    """
    folder = Path(name).expanduser()
    hub = _HUB_NAME.fullmatch(str(name))
    prefixed = bool(hub and hub["prefix"])
    shipped = catalog.release_path(str(name))
    if not prefixed and (folder.is_dir() or shipped):
        if revision is not None:
            raise ReleaseError(f'revision="{revision}": {name} is no Hub repository, it has no revisions')
        return Release.at(folder if folder.is_dir() else shipped)  # type: ignore[arg-type]
    if isinstance(name, str) and hub:
        if revision and hub["revision"] and revision != hub["revision"]:
            raise ReleaseError(f'"{name}" and revision="{revision}" name two revisions, give one')
        return Release.at(_download(hub["repo"], revision or hub["revision"], cache_dir, token, prefixed))
    hint = did_you_mean(name, catalog.list_models())
    raise ReleaseError(
        f'no release "{name}": neither a folder, nor a shipped release, nor a Hub repository'
        f' "org/name".{hint}'
    )


def load(
    name: str | Path,
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


def _download(
    repo: str, revision: str | None, cache_dir: str | Path | None, token: str | bool | None, prefixed: bool
) -> Path:
    where = f'Hub repository "{repo}"' + (f' at revision "{revision}"' if revision else "")
    if not prefixed:
        where = f'no folder "{repo}" and no release from the {where}'
    try:
        return Path(
            snapshot_download(
                repo, revision=revision, cache_dir=cache_dir, token=token, allow_patterns=_RELEASE_FILES
            )
        )
    except GatedRepoError:
        problem = "access must be requested on its page, and needs a token"
    except RepositoryNotFoundError:
        problem = "it does not exist, or is private and the token does not open it"
    except RevisionNotFoundError:
        problem = "the repository has no such revision"
    except (LocalEntryNotFoundError, OfflineModeIsEnabled):
        problem = "it is not in the local cache, and the Hub cannot be reached or HF_HUB_OFFLINE is set"
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        problem = (str(error).strip().splitlines() or [type(error).__name__])[0]
    raise ReleaseError(f"{where}: {problem}")
