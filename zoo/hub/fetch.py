"""`zoo.open`, `zoo.load`, `zoo.pull`: from a name to a release; downloads use huggingface_hub's cache."""

from __future__ import annotations

import json
import shutil
from os.path import isdir, isfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from zoo.errors import ReleaseError, did_you_mean
from zoo.files import is_unused, list_names, read_json_or_empty, write_text, writing
from zoo.hub.client import hub_errors
from zoo.hub.names import ModelRef, resolve
from zoo.release import Release, format
from zoo.release.provenance import license_of
from zoo.release.schema import LIBRARY

_TEXTS = (format.CONFIG, format.RECIPE, format.METRICS, format.HISTORY, format.CARD)
_RECORD = ".hub.json"  # in a user's folder: the commits pulled and pushed, by repository
TENSORS = (format.WEIGHTS, format.CENTERS, format.IMAGES)

if TYPE_CHECKING:
    import torch
    from torch import nn


def open(
    name: str | Path | Release,
    *,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    token: str | bool | None = None,
) -> Release:
    """Open a release.

    Args:
        name: a folder, a shipped release, or `"org/name[@revision]"`, a Hub repository with a release or a
            model in timm's format; the first of these that exists. To name one kind only: `"./folder"`,
            `"shipped:name"`, `"hf-hub:org/name[@revision]"`, or the address of the repository's page. Also
            `"timm:ARCH.TAG"`, timm's own weights; or an open `Release`, which is reopened.
        revision: branch, tag or commit of a Hub repository, by default the branch `main`. A cached commit
            is opened without a request.
        cache_dir: folder of downloads, by default huggingface_hub's cache. With `HF_HUB_OFFLINE=1` only
            cached files are used.
        token: access token for the Hub; by default the one stored by huggingface_hub.

    Raises:
        ReleaseError: if there is no such release, with the nearest name, or if its folder is incomplete.
    """
    return Release.at(local_folder(resolve(name, revision), token=token, cache_dir=cache_dir))


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
    """Load a pretrained encoder as a timm model, in training mode as from `timm.create_model`: call `eval()`.

    Args:
        name: which release, see `zoo.open`.
        num_classes: 0 for the headless encoder, `[B, 3, H, W]` -> features `[B, D_f]`; N for a new
            classifier of N classes, initialised by timm from torch's global generator.
        head: `"centers"` for the classifier made of the learned class centers.
        revision: branch, tag or commit of a Hub repository.
        device: the model's device.
        dtype: dtype of its floating-point tensors; by default float32.
        cache_dir: as in `zoo.open`.
        token: as in `zoo.open`.
        model_kwargs: timm's, e.g. `features_only=True`, `in_chans=1`, `img_size=64`, `drop_path_rate=0.1`.

    Raises:
        ReleaseError: if there is no such release, or it cannot be loaded with these arguments.
    """
    release = open(name, revision=revision, cache_dir=cache_dir, token=token)
    return release.load(num_classes=num_classes, head=head, device=device, dtype=dtype, **model_kwargs)


def pull(
    name: str | Path | Release,
    *,
    out: str | Path | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
) -> Release:
    """Download a complete release, and compare every byte with the recorded hashes.

    `out` is a new folder to copy it to, where it can be modified; by default it stays in the Hub's cache.
    The other arguments are those of `zoo.open`. A `ReleaseError` names the repository or folder at fault.
    """
    ref = resolve(name, revision)
    release = Release.at(local_folder(ref, token=token, cache_dir=cache_dir))
    release.verify()
    if out is None:
        return release
    out = Path(out).expanduser()
    if not is_unused(out):
        raise ReleaseError(f"{out}: found no empty folder; choose another one")
    with writing(f"{out}: the release", ReleaseError), format.replacing(out) as staging:
        for file in release_files(release.path).values():
            shutil.copyfile(file, staging / file.name)
    if ref.kind == "hub":
        record_base(out, ref.target, release.path.name)
    pulled = Release.at(out)
    license = license_of(out, pulled.config)  # may have been edited on the Hub, in the card alone
    same = pulled.is_plain or license == pulled.config["pretrained_cfg"]["license"]
    return pulled if same else pulled.with_license(license)


def bases_of(folder: Path, repo_id: str) -> list[str]:
    """Return the commits, of any branch, that a folder was pulled from or pushed to; the newest first."""
    found = read_json_or_empty(folder / _RECORD).get(repo_id, [])
    return [found] if isinstance(found, str) else list(found)


def record_base(folder: Path, repo_id: str, commit: str) -> None:
    """Record a commit that a folder was pulled from or pushed to."""
    record = read_json_or_empty(folder / _RECORD)
    record[repo_id] = [*dict.fromkeys([commit, *bases_of(folder, repo_id)])]
    write_text(folder / _RECORD, json.dumps(record) + "\n")


def is_release_file(name: str, card: str = "") -> bool:
    """Whether a file at the top of a folder belongs to a release: zoo's own, or a picture in its `card`."""
    own = (*_TEXTS, *TENSORS, format.EXAMPLE, *(f"{drawn}.png" for drawn in format.DRAWN))
    shown = any(f"{mark}{name}" in card for mark in "('\"/")
    return name in own or (shown and format.PICTURE.fullmatch(name) is not None)


def release_files(folder: Path) -> dict[str, Path]:
    """Return the release's files in a folder, by name, without the folder's other files."""
    card = format.read_text(folder / format.CARD) if isfile(folder / format.CARD) else ""
    return {file.name: file for file in sorted(folder.iterdir()) if is_release_file(file.name, card)}


def local_folder(
    ref: ModelRef,
    *,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    weights: bool = True,
) -> Path:
    """Return the folder of a release; downloads from the Hub what is not in huggingface_hub's cache.

    Only a release's files are downloaded, the tensors after `config.json` has been validated; without
    `weights`, not the encoder's. If the Hub does not answer, the revision's cached files are used.
    """
    if ref.path is not None:
        if not isdir(ref.path):
            beside = [name for name in list_names(ref.path.parent) if isdir(ref.path.parent / name)]
            raise ReleaseError(f'no folder "{ref.path}".{did_you_mean(ref.path.name, beside)}')
        return ref.path

    def fetch(files: list[str], revision: str | None) -> Path:
        where: Any = {"revision": revision, "cache_dir": cache_dir, "token": token, "library_name": LIBRARY}
        with hub_errors(ref, ReleaseError):
            from huggingface_hub import snapshot_download

            return Path(snapshot_download(ref.target, allow_patterns=files, ignore_patterns="*/*", **where))

    folder = fetch([*_TEXTS, format.PICTURES], ref.revision)
    config = format.read_config(folder)
    # a plain timm model has its centers in the weights' file
    tensors = (format.CENTERS, format.IMAGES) if config["zoo"]["recipe_sha256"] else ()
    wanted = [name for name in tensors if config["zoo"].get(format.HASHED[name])]
    wanted += [format.WEIGHTS] if weights else []
    if lacking := [name for name in wanted if not isfile(folder / name)]:
        fetch(lacking, folder.name)
    return folder
