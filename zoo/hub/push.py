"""`zoo.push`: a release folder to a repository on the Hub, in one commit with a version tag.

A push can be repeated at any time: what it finds on the Hub decides what is left to do. Nobody's work is
lost: each commit names the one before, and what others changed since the version that this release comes
from is taken over first (`zoo.hub.merge`), or refused.
"""

from __future__ import annotations

import shutil
import tempfile
import warnings
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, ModelCard, constants, get_token
from huggingface_hub.errors import RepositoryNotFoundError

from zoo.errors import ReleaseError, ZooWarning
from zoo.hub.fetch import LOG, client, fetch, folder_of, release_files
from zoo.hub.fetch import open as open_release
from zoo.hub.merge import VERSION, Contents, Snapshot, base_of, differing, merge, note_base, snapshot
from zoo.hub.names import check_repo_id, check_revision, named_repository, resolve
from zoo.hub_client import COMMIT, LOG_IN, talking
from zoo.release import Release, card, configs, format, provenance
from zoo.release.write import check_release

_WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".onnx", ".gguf", ".msgpack"}
_PUBLIC = {"digits", "cifar10", "cifar100"}


class Ready(NamedTuple):
    """A release that was found fit to be published, and what a push of it sends where.

    Attributes:
        release: as it lies on the disk now.
        branch: of the repository.
        contents: file name -> what the repository shall hold; the card bears its address.
    """

    release: Release
    branch: str
    contents: Contents


class Pushed(str):
    """The address of a version, `https://huggingface.co/org/name/tree/v1`, and what was pushed.

    Attributes:
        repo_id: the repository.
        version: the tag, `v1`, `v2`, ...
        changed: the files that this push wrote or removed; none when all was there.
    """

    repo_id: str
    version: str
    changed: tuple[str, ...]


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

    The release is checked before anything is sent: hashes, configuration, every number of its card, and that
    its recipe names no folder of this machine (`with_start` changes that). All files go up in one commit,
    which gets the next version tag. Its files that are no longer here are removed there; all others stay.

    What others changed there since this release was last pulled or pushed (evaluations, notes, licence,
    access conditions and other metadata of the card, files) is taken over into the release's folder first.

    Args:
        release: a `Release`, or the name of one, see `zoo.open`.
        repo_id: the repository, `"org/name"`; created if there is none.
        private: create it private. One that exists and is public is then refused.
        token: access token with write permission; by default the one that huggingface_hub has stored.
        revision: the branch to push to, by default `main`; created from `main` if there is none.
        base: the revision that this release is based on, where the folder does not record it, or where what
            is there shall be replaced: what differs from it is what was changed here.
        images: also send the hashes of one's own training images, by which whoever has an image can tell
            that it was trained on. Those of public data sets are always sent.

    Returns:
        The address of the version, a text that also tells `version` and the `changed` files.

    Raises:
        ReleaseError: when the release is not fit to be published, the repository holds something else or
            contradicts it, was changed meanwhile, or the Hub refuses or cannot be reached; the message says
            what to do.
    """
    release, branch, contents = prepare(release, repo_id, revision, images)
    where, api = named_repository(repo_id), client(token)
    if token is False or not (token or get_token()):
        raise ReleaseError(f"{where}: a push needs a token with write access; {LOG_IN}")
    there = _opened(repo_id, branch, private, contents, token)
    _check_replaceable(release, there, token)
    with tempfile.TemporaryDirectory() as temporary:
        if format.CONFIG in there.hashes and differing(contents, there):
            known = base or base_of(release.path, repo_id, branch)
            old = snapshot(repo_id, known, token) if known else None
            if base and old is None:
                raise ReleaseError(f'{where}: base: there is no revision "{base}"')
            if not release.writable:  # shipped, or in the cache
                release = Release.at(Path(shutil.copytree(release.path, Path(temporary) / release.path.name)))
            merge(release.path, contents, old, there, token=token)
            release, branch, contents = prepare(release, repo_id, revision, images)
        if changed := differing(contents, there):
            sent = [name for name in changed if name in contents]
            LOG.info("uploading %s to %s", ", ".join(sent), repo_id)
            with talking(named_repository(repo_id, branch), ReleaseError):
                made = api.create_commit(
                    repo_id,
                    [CommitOperationAdd(name, contents[name]) for name in sent]
                    + [CommitOperationDelete(name) for name in changed if name not in contents],
                    commit_message=f"{release.name}: {', '.join(changed)}",
                    revision=branch,
                    parent_commit=there.commit,
                )
            there = there._replace(commit=str(made.oid))
        version = _version(there, contents, token, made=bool(changed))
        if release.writable:
            note_base(release.path, repo_id, branch, there.commit)
    pushed = Pushed(f"{constants.ENDPOINT}/{repo_id}/tree/{version}")
    pushed.repo_id, pushed.version, pushed.changed = repo_id, version, tuple(changed)
    return pushed


def prepare(
    release: Release | str | Path, repo_id: str, revision: str | None = None, images: bool = False
) -> Ready:
    """Do all of a push that needs no answer of the Hub: check the release, and render what would be sent.

    Raises:
        ReleaseError: when the release is not fit to be published, or nothing can be pushed to `repo_id`.
    """
    check_repo_id(repo_id)
    branch = check_revision(revision or constants.DEFAULT_REVISION)
    if VERSION.fullmatch(branch) or COMMIT.fullmatch(branch):
        raise ReleaseError(
            f'revision "{branch}": expected a branch; version tags are made by the push itself'
        )
    # anew: what was changed since, through another object, is what is published
    release = Release.at(release.path) if isinstance(release, Release) else open_release(release)
    if release.is_plain:
        raise ReleaseError(
            f'{release.path}: a plain timm model, of which nothing is recorded; "zoo convert" makes a release'
        )
    check_release(release)
    provenance.check_public(release.path)
    card.check_card(release.path, release.config)
    if reached := format.snapshot_of(release.metrics.get("training", {})):
        warnings.warn(f"{release.name} is a snapshot of a training after {reached}", ZooWarning, stacklevel=3)
    contents: dict[str, Path | bytes] = {**release_files(release.path)}
    contents[format.CARD] = card.addressed(release.card, repo_id).encode()
    dataset = release.config["zoo"]["dataset"]
    public = dataset.get("hub_id") or dataset.get("by_content") or dataset.get("source") in _PUBLIC
    if format.IMAGES in contents and not (images or public):
        del contents[format.IMAGES]
        config = format.read_json(release.path / format.CONFIG)
        del config["zoo"][format.HASHED[format.IMAGES]]
        contents[format.CONFIG] = format.to_json(config).encode()
    return Ready(release, branch, contents)


def with_start(release: Release, name: str, *, token: str | bool | None = None) -> Release:
    """Let the recipe name what training started or learned from otherwise: as others can read it.

    It reproduces the same: only what has the weights of the start, or of a teacher, is taken, and takes
    that one's place.

    Args:
        release: in a folder that may be changed.
        name: of that other release: `org/name[@revision]`, or a shipped one.
        token: as in `zoo.open`.

    Returns:
        The release, opened anew: its `config.json` and card have changed with the recipe.

    Raises:
        ReleaseError: when the weights of that name are others, it is a folder, or this release started
            and learned from no release or cannot be changed.
    """
    ref = resolve(name)
    other = Release.at(folder_of(ref, token=token, weights=False))
    if not release.writable:
        raise ReleaseError(f"{release.path}: does not change. Copy it, then open the copy")
    provenance.rename(release.path, configs.read_config(release.path), ref.spelling, other.config)
    renamed = Release.at(release.path)
    renamed.render_card()
    return renamed


def _opened(
    repo_id: str, branch: str, private: bool, contents: Contents, token: str | bool | None
) -> Snapshot:
    """Return what the branch holds, after creating repository and branch where they are missing."""
    api, where = client(token), named_repository(repo_id)
    try:
        there = snapshot(repo_id, branch, token)
    except ReleaseError as error:
        if not isinstance(error.__cause__, RepositoryNotFoundError):
            raise
        readme = contents[format.CARD]
        with talking(where, ReleaseError):
            # before there is a repository: a card that the Hub refuses shall leave none behind
            ModelCard(readme.decode() if isinstance(readme, bytes) else "").validate(repo_type="model")
            api.create_repo(repo_id, private=private, exist_ok=True)
        there = snapshot(repo_id, branch, token)
    if there is None:
        with talking(where, ReleaseError):
            api.create_branch(repo_id, branch=branch, exist_ok=True)
        there = snapshot(repo_id, branch, token)
    if there is None:
        raise ReleaseError(f'{where}: no branch "{branch}"')
    if private and not there.private:
        raise ReleaseError(
            f"{where}: found a public one, expected private; change it on its settings page, or push "
            "without private"
        )
    return there


def _check_replaceable(release: Release, there: Snapshot, token: str | bool | None) -> None:
    """Refuse a repository that holds anything but an earlier state of this release."""
    where = named_repository(there.repo_id)
    if format.CONFIG not in there.hashes:
        weights = sorted(name for name in there.hashes if Path(name).suffix.lower() in _WEIGHTS)
        if weights:
            raise ReleaseError(f"{where}: holds {weights[0]} of no release; choose another repository")
        return
    try:
        config = configs.read_config(fetch(there.repo_id, there.commit, token=token, weights=False))
    except ReleaseError as error:
        if error.__cause__ is not None:  # of the connection
            raise
        raise ReleaseError(f"{where}: holds something else, choose another repository ({error})") from None
    if configs.is_plain(config) or config["zoo"]["name"] != release.name:
        kind = "a model" if configs.is_plain(config) else "the release"
        name = config["zoo"]["name"]
        raise ReleaseError(f'{where}: holds {kind} "{name}", not "{release.name}"; choose another repository')


def _version(there: Snapshot, contents: Contents, token: str | bool | None, *, made: bool) -> str:
    """Return the version tag of what the repository holds now, a new one unless the newest has the same."""
    api = client(token)
    with talking(named_repository(there.repo_id), ReleaseError):
        tags = api.list_repo_refs(there.repo_id).tags
        versions = {int(match[1]): tag for tag in tags if (match := VERSION.fullmatch(tag.name))}
        newest = max(versions, default=0)
        if newest and not made:  # other files may have been committed since
            tagged = snapshot(there.repo_id, versions[newest].target_commit, token)
            if tagged is not None and not differing(contents, tagged):
                return versions[newest].name
        version = f"v{newest + 1}"
        api.create_tag(there.repo_id, tag=version, revision=there.commit)
        return version
