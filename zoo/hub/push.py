"""`zoo.push`: a release folder to a repository on the Hub, in one commit with a version tag.

A push can be repeated at any time: what it finds on the Hub decides what is left to do. Nobody's work is
lost: each commit names the one before, and what others changed since the version that this release comes
from is taken over first (`zoo.hub.merge`), or refused.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    ModelCard,
    ModelInfo,
    constants,
    get_token,
)

from zoo.errors import ReleaseError, ZooWarning
from zoo.hub.client import COMMIT, LOG_IN, hub_errors
from zoo.hub.fetch import LOG, TENSORS, client, folder_of, is_release_file, release_files
from zoo.hub.fetch import open as open_release
from zoo.hub.merge import base_of, merge, note_base
from zoo.hub.names import ModelRef, repository
from zoo.release import Release, card, format, provenance
from zoo.release.write import check_release

VERSION = re.compile(r"v([1-9][0-9]*)")
"""The tags that pushes make."""
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".onnx", ".gguf", ".msgpack")
_PUBLIC = {"digits", "cifar10", "cifar100"}

Ready = tuple[Release, str, dict[str, Any]]
"""A release that is fit to be published, the branch, and what the repository shall hold, by file name."""


class Pushed(str):
    """The address of a version, `https://huggingface.co/org/name/tree/v1`, and what was pushed."""

    repo_id: str
    version: str  # the tag: `v1`, `v2`, ...
    changed: tuple[str, ...]  # the files that this push wrote or removed; none when all was there


def push(
    release: Release | str | Path,
    repo_id: str,
    *,
    private: bool = False,
    token: str | bool | None = None,
    revision: str | None = None,
    base: str | None = None,
    images: bool = False,
) -> Pushed:
    """Publish a release on the Hub; the same push again changes nothing, an interrupted one is finished.

    The release is checked before anything is sent. All files go up in one commit, which gets the next version
    tag; files of the release that are no longer here are removed there, all others stay. What others changed
    there since this release was last pulled or pushed is taken over into its folder first (`zoo.hub.merge`).

    Args:
        release: a `Release`, or the name of one, see `zoo.open`.
        repo_id: the repository, `"org/name"`; created if there is none.
        private: create it private. One that exists and is public is then refused.
        token: access token with write permission; by default the one that huggingface_hub has stored.
        revision: the branch to push to, by default `main`; created from `main` if there is none.
        base: the revision that this release is based on, where the folder does not record it, or where what
            is there shall be replaced.
        images: also send the hashes of one's own training images, by which whoever has an image can tell
            that it was trained on. Those of public data sets are always sent.

    Returns:
        The address of the version.

    Raises:
        ReleaseError: when the release is not fit to be published, the repository holds something else or
            contradicts it, was changed meanwhile, or the Hub refuses or cannot be reached.
    """
    release, branch, contents = prepare(release, repo_id, revision, images)
    ref, api = ModelRef("hub", repo_id, branch), client(token)
    if token is False or not (token or get_token()):
        raise ReleaseError(f"{ref}: a push needs a token with write access; {LOG_IN}")
    with tempfile.TemporaryDirectory() as temporary, hub_errors(ref, ReleaseError):
        if not api.repo_exists(repo_id):
            # before there is a repository: a card that the Hub refuses shall leave none behind
            ModelCard(contents[format.CARD].decode()).validate(repo_type="model")
            api.create_repo(repo_id, private=private, exist_ok=True)
        if not api.revision_exists(repo_id, branch):
            api.create_branch(repo_id, branch=branch, exist_ok=True)
        there = api.model_info(repo_id, revision=branch, files_metadata=True)
        parent, old = str(there.sha), _hashes(there)
        if private and not there.private:
            raise ReleaseError(f"{ref}: found a public one, expected private; its settings page changes that")
        if _holds_release(release, ref, parent, old, token):
            base = base or base_of(release.path, repo_id, branch)
            if not release.writable:  # shipped, or in the cache
                release = Release.at(Path(shutil.copytree(release.path, Path(temporary) / release.path.name)))
            merge(release.path, repo_id, base, parent, token=token)
            release, branch, contents = prepare(release, repo_id, revision, images)
        LOG.info("uploading to %s", repo_id)
        made = api.create_commit(  # leaves out what is there already, and makes no empty commit
            repo_id,
            [CommitOperationAdd(name, content) for name, content in contents.items()]
            + [CommitOperationDelete(name) for name in old if is_release_file(name) and name not in contents],
            commit_message=release.name,
            revision=branch,
            parent_commit=parent,
        )
        new = _hashes(api.model_info(repo_id, revision=made.oid, files_metadata=True))
        version = _version(api, repo_id, made.oid, new)
        if release.writable:
            note_base(release.path, repo_id, branch, made.oid)
    pushed = Pushed(f"{constants.ENDPOINT}/{repo_id}/tree/{version}")
    pushed.repo_id, pushed.version = repo_id, version
    pushed.changed = tuple(sorted({name for name, _ in old.items() ^ new.items()}))
    return pushed


def prepare(
    release: Release | str | Path, repo_id: str, revision: str | None = None, images: bool = False
) -> Ready:
    """Check a release, and return what a push of it would send; asks no server.

    Raises:
        ReleaseError: when the release is not fit to be published, or nothing can be pushed to `repo_id`.
    """
    branch = str(repository(repo_id, revision or constants.DEFAULT_REVISION).revision)
    if VERSION.fullmatch(branch) or COMMIT.fullmatch(branch):
        raise ReleaseError(f'revision "{branch}": expected a branch; a push makes the version tags itself')
    release = open_release(release)  # anew: what was changed since, through another object, is published
    if release.is_plain:
        raise ReleaseError(
            f'{release.path}: a plain timm model, of which nothing is recorded; "zoo convert" makes a release'
        )
    check_release(release)
    provenance.check_public(release.path)
    card.check_card(release.path, release.config)
    if reached := format.snapshot_of(release.metrics.get("training", {})):
        warnings.warn(f"{release.name} is a snapshot of a training after {reached}", ZooWarning, stacklevel=3)
    contents: dict[str, Any] = {**release_files(release.path)}
    contents[format.CARD] = card.addressed(release.card, repo_id).encode()
    dataset = release.config["zoo"]["dataset"]
    public = dataset.get("hub_id") or dataset.get("source") in _PUBLIC
    if format.IMAGES in contents and not (images or public):
        del contents[format.IMAGES]
        config = format.read_json(release.path / format.CONFIG)
        del config["zoo"][format.HASHED[format.IMAGES]]
        contents[format.CONFIG] = format.to_json(config).encode()
    return release, branch, contents


def _hashes(info: ModelInfo) -> dict[str, str]:
    """Return of each file in a repository the SHA-256 if it is large, else git's hash."""
    return {
        file.rfilename: str(file.lfs.sha256 if file.lfs else file.blob_id) for file in info.siblings or ()
    }


def _holds_release(
    release: Release, ref: ModelRef, commit: str, hashes: Mapping[str, str], token: str | bool | None
) -> bool:
    """Whether a repository holds an earlier state of this release; raise an error if it is something else."""
    held = sorted(name for name in hashes if name.endswith(_WEIGHTS))[:1]
    if format.CONFIG in hashes:
        folder = folder_of(ModelRef("hub", ref.target, commit), token=token, weights=False)
        zoo = format.read_config(folder)["zoo"]
        held = [zoo["name"]] if zoo["name"] != release.name else []
        held += [name for name in TENSORS if hashes.get(name) != zoo.get(format.HASHED[name])]
    if held:
        raise ReleaseError(f'{ref}: holds {held[0]} of no "{release.name}"; choose another repository')
    return format.CONFIG in hashes


def _version(api: HfApi, repo_id: str, commit: str, hashes: Mapping[str, str]) -> str:
    """Return the newest version tag if it has the same release, else make the next one."""
    tags = api.list_repo_refs(repo_id).tags
    newest = max((int(found[1]) for tag in tags if (found := VERSION.fullmatch(tag.name))), default=0)
    if newest:
        old = _hashes(api.model_info(repo_id, revision=f"v{newest}", files_metadata=True))
        if not any(is_release_file(name) for name, _ in old.items() ^ hashes.items()):
            return f"v{newest}"
    api.create_tag(repo_id, tag=f"v{newest + 1}", revision=commit)
    return f"v{newest + 1}"
