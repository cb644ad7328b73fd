"""`zoo.push`: publishes a release folder to a repository on the Hub, in one commit.

No work is lost: the commit names its parent, and what others changed since the version that this release is
based on is merged first (`zoo.hub.merge`), or the push is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants

from zoo.errors import ReleaseError
from zoo.hub.client import hub_errors
from zoo.hub.fetch import bases_of, is_release_file, record_base, release_files
from zoo.hub.fetch import open as open_release
from zoo.hub.merge import merge
from zoo.hub.names import ModelRef, repository
from zoo.release import Release, card, format, provenance
from zoo.release.schema import LIBRARY
from zoo.release.write import check_release

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".onnx", ".gguf", ".msgpack")
_PUBLIC = {"digits", "cifar10", "cifar100"}

Ready = tuple[Release, str, dict[str, Any]]
"""A release that can be published, the branch, and the repository's content by file name."""


def push(
    release: Release | str | Path,
    repo_id: str,
    *,
    private: bool = False,
    token: str | bool | None = None,
    revision: str | None = None,
    base: str | None = None,
) -> str:
    """Publish a release on the Hub; repeating a push changes nothing, or completes an interrupted one.

    The release is checked before anything is sent. Its files are uploaded in one commit, pictures of your own
    if the card shows them; zoo's files that are no longer here are deleted there, other files stay. What
    others changed there since the last pull or push is merged first, or the push is refused.

    Args:
        release: a `Release`, or the name of one, see `zoo.open`.
        repo_id: the repository, `"org/name"`; created if it does not exist.
        private: create the repository as private; an existing public one is refused.
        token: access token with write permission; by default the one stored by huggingface_hub.
        revision: the branch to push to, by default `main`; created from `main` if it does not exist.
        base: the revision that this release is based on, if the folder does not record it, or to replace
            what is on the Hub.

    Returns:
        The address of the commit, `https://huggingface.co/org/name/tree/COMMIT`.

    Raises:
        ReleaseError: if the release cannot be published, the repository has another model, conflicts with
            the release or changed meanwhile, or the Hub refuses or cannot be reached.
    """
    release, branch, contents = prepare(release, repo_id, revision)
    ref, api = ModelRef("hub", repo_id, branch), HfApi(token=token, library_name=LIBRARY)
    with hub_errors(ref, ReleaseError):
        api.create_repo(repo_id, private=private, exist_ok=True)
        api.create_branch(repo_id, branch=branch, exist_ok=True)
        there = api.model_info(repo_id, revision=branch, files_metadata=True)
        if private and not there.private:
            raise ReleaseError(f"{ref}: found a public one, expected private; its settings page changes that")
        parent, old = str(there.sha), [file.rfilename for file in there.siblings or ()]
        if base is None and (commits := bases_of(release.path, repo_id)):
            history = {each.commit_id for each in api.list_repo_commits(repo_id, revision=branch)}
            base = next(filter(history.__contains__, commits), None)  # others are of other branches
        if format.CONFIG in old:
            merge(release, repo_id, base, there, token)
            release, branch, contents = prepare(release, repo_id, revision)
        elif held := [name for name in old if name.endswith(_WEIGHTS)]:
            raise ReleaseError(f"{ref}: holds {held[0]} of another model; choose another repository")
        made = api.create_commit(  # skips unchanged files and makes no empty commit
            repo_id,
            [CommitOperationAdd(name, content) for name, content in contents.items()]
            + [CommitOperationDelete(name) for name in old if is_release_file(name) and name not in contents],
            commit_message=release.name,
            revision=branch,
            parent_commit=parent,
        )
    if release.writable:
        record_base(release.path, repo_id, made.oid)
    return f"{constants.ENDPOINT}/{repo_id}/tree/{made.oid}"


def prepare(release: Release | str | Path, repo_id: str, revision: str | None = None) -> Ready:
    """Check a release, and return what a push would send; makes no request to `repo_id`.

    Raises:
        ReleaseError: if the release cannot be published, or `repo_id` is malformed.
    """
    branch = str(repository(repo_id, revision or constants.DEFAULT_REVISION).revision)
    release = open_release(release)  # reopen: changes made through another object are published
    if release.is_plain:
        raise ReleaseError(f'{release.path}: found a plain timm model; "zoo convert" makes a release of it')
    check_release(release)
    provenance.check_public(release.path)
    card.check_card(release.path, release.config)
    contents: dict[str, Any] = {**release_files(release.path)}
    contents[format.CARD] = card.with_repo_id(release.card, repo_id).encode()
    config = format.read_json(release.path / format.CONFIG)
    public = release.config["zoo"]["dataset"].get("source") in _PUBLIC
    if format.IMAGES in contents and not public:  # whoever has an image could tell if it was trained on
        del contents[format.IMAGES]
        del config["zoo"][format.HASHED[format.IMAGES]]
    contents[format.CONFIG] = format.to_json(config).encode()  # without a byte order mark, which timm refuses
    return release, branch, contents
