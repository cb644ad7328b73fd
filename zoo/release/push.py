"""`zoo.push`: a release folder to a repository on the Hub, in one commit with a version tag.

A push can be repeated at any time. What it finds on the Hub decides what is left to do: create the
repository, commit, tag, or nothing. Nobody else's commit is overwritten: each commit names the one before,
and evaluations of the same weights that somebody else has pushed have to be in the release that replaces
theirs.
"""

from __future__ import annotations

import json
import re
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    ModelCard,
    constants,
    hf_hub_download,
)

from zoo.errors import ReleaseError, ZooWarning
from zoo.hub_client import LOG_IN
from zoo.release import card, check, format, hub, provenance, source
from zoo.release.hub import manifest
from zoo.release.release import Release
from zoo.release.schema import LIBRARY
from zoo.revisions import COMMIT

_VERSION = re.compile(r"v([1-9][0-9]*)")
_MAIN = constants.DEFAULT_REVISION

Contents = Mapping[str, Path | bytes]


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


class Published(NamedTuple):
    """Where a release now is.

    Attributes:
        repo_id: the repository.
        version: the tag, `v1`, `v2`, ...
        url: the address of that version.
        changed: the files that this push wrote or removed; none when all was there.
    """

    repo_id: str
    version: str
    url: str
    changed: tuple[str, ...]


def push(
    release: Release | str | Path,
    repo_id: str,
    *,
    private: bool = False,
    token: str | bool | None = None,
    revision: str | None = None,
) -> str:
    """Publish a release on the Hub; the same push again changes nothing, an interrupted one is finished.

    The release is checked before anything is sent: hashes, configuration, every number of its card, and that
    its recipe starts from no folder (`Release.with_start` changes that). All files go up in one commit, which
    gets the next version tag. Release files of the former version that are no longer there are removed; other
    files in the repository stay.

    Args:
        release: a `Release`, or the name of one, see `zoo.open`.
        repo_id: the repository, `"org/name"`; created if there is none.
        private: create it private. One that exists and is public is then refused.
        token: access token with write permission; by default the one that huggingface_hub has stored.
        revision: the branch to push to, by default `main`; created from `main` if there is none.

    Returns:
        The address of the version, e.g. `https://huggingface.co/org/name/tree/v1`.

    Raises:
        ReleaseError: when the release is not fit to be published, the repository holds something else, was
            changed meanwhile, has evaluations of these weights that the release lacks, or the Hub refuses or
            cannot be reached; the message says what to do.
    """
    return publish(release, repo_id, private=private, token=token, revision=revision).url


def publish(
    release: Release | str | Path,
    repo_id: str,
    *,
    private: bool = False,
    token: str | bool | None = None,
    revision: str | None = None,
) -> Published:
    """Do what `push` says, and tell more about it."""
    release, branch, contents = prepare(release, repo_id, revision)
    check_token(repo_id, token)
    client = hub.api(token)
    there = _prepared(client, repo_id, branch, private, contents)
    _check_replaceable(there, repo_id, release, token)
    changed = manifest.differing(contents, there.files)
    if not changed:
        version = _version_of(client, repo_id, there.commit, contents)
        return _published(repo_id, version or _tag(client, repo_id, there.commit), ())
    commit = _commit(client, repo_id, branch, there, contents, changed, release.name)
    return _published(repo_id, _tag(client, repo_id, commit), tuple(changed))


def prepare(release: Release | str | Path, repo_id: str, revision: str | None = None) -> Ready:
    """Do all of a push that needs no answer of the Hub: check the release, and render what would be sent.

    Raises:
        ReleaseError: when the release is not fit to be published, or nothing can be pushed to `repo_id`.
    """
    branch = check_destination(repo_id, revision)
    # anew: what was changed since, through another object, is what is published
    release = Release.at(release.path) if isinstance(release, Release) else source.open(release)
    if release.is_plain:
        raise ReleaseError(
            f'{release.path}: a plain timm model, of which nothing is recorded; "zoo convert" makes a release'
        )
    check.check_release(release)
    provenance.check_public(release.path)
    card.check_card(release.path, release.config)
    if reached := format.snapshot_of(release.metrics.get("training", {})):
        warnings.warn(f"{release.name} is a snapshot of a training after {reached}", ZooWarning, stacklevel=3)
    contents = manifest.contents(release.path, repo_id)
    manifest.check_sizes({name: manifest.size(content) for name, content in contents.items()}, release.path)
    return Ready(release, branch, contents)


def check_destination(repo_id: str, revision: str | None) -> str:
    """Return the branch to push to, where its name and the repository's allow it.

    Raises:
        ReleaseError: if not.
    """
    hub.check_repo_id(repo_id)
    branch = hub.check_revision(revision) if revision else _MAIN
    if _VERSION.fullmatch(branch) or COMMIT.fullmatch(branch):
        raise ReleaseError(
            f'revision "{branch}": expected a branch; version tags are made by the push itself'
        )
    return branch


def check_token(repo_id: str, token: str | bool | None) -> None:
    """Make sure that there is a token to push with.

    Raises:
        ReleaseError: if not.
    """
    if not hub.has_token(token):
        raise ReleaseError(f'Hub repository "{repo_id}": a push needs a token with write access; {LOG_IN}')


def _published(repo_id: str, version: str, changed: tuple[str, ...]) -> Published:
    return Published(repo_id, version, f"{hub.address(repo_id)}/tree/{version}", changed)


def _prepared(client: HfApi, repo_id: str, branch: str, private: bool, contents: Contents) -> hub.Listing:
    """Return what the branch holds, after creating repository and branch where they are missing."""
    try:
        there = hub.listing(client, repo_id, branch)
    except hub.RepositoryAbsentError:
        with hub.talking(repo_id):
            _check_metadata(contents[format.CARD])  # a commit asks as well, but then there is a repository
            # exist_ok: somebody else may create it just now; what is in it is looked at below
            client.create_repo(repo_id, private=private, exist_ok=True)
            if branch != _MAIN:
                client.create_branch(repo_id, branch=branch, exist_ok=True)
        there = hub.listing(client, repo_id, branch)
    except hub.RevisionAbsentError:
        if branch == _MAIN:
            raise
        with hub.talking(repo_id, branch):
            client.create_branch(repo_id, branch=branch, exist_ok=True)
        there = hub.listing(client, repo_id, branch)
    if private and not there.private:
        raise ReleaseError(
            f'Hub repository "{repo_id}": found a public one, expected private; change it on its settings'
            " page, or push without private"
        )
    return there


def _check_metadata(readme: Path | bytes) -> None:
    """Ask the Hub whether it takes a card: what `card.check_card` cannot know, such as a list it has cut."""
    text = readme.decode() if isinstance(readme, bytes) else readme.read_text(encoding="utf-8")
    try:
        ModelCard(text).validate(repo_type="model")
    except ValueError as error:
        raise ValueError(f"Invalid metadata in {format.CARD}: {error}") from None


def _check_replaceable(there: hub.Listing, repo_id: str, release: Release, token: str | bool | None) -> None:
    """Refuse a repository that holds anything but an earlier state of this release."""
    where = f'Hub repository "{repo_id}"'
    if format.CONFIG not in there.files:
        weights = sorted(filter(manifest.are_weights, there.files))
        if weights:
            raise ReleaseError(f"{where}: holds {weights[0]} of no release; choose another repository")
        return
    try:
        config = json.loads(_text(there, repo_id, format.CONFIG, token))
        found, weights_sha256 = config["zoo"]["name"], config["zoo"].get("weights_sha256")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ReleaseError(f"{where}: holds a model that is no release; choose another repository") from None
    if found != release.name:
        raise ReleaseError(
            f'{where}: holds the release "{found}", not "{release.name}"; choose another repository'
        )
    if weights_sha256 == release.config["zoo"]["weights_sha256"] and format.METRICS in there.files:
        _check_evaluations(_text(there, repo_id, format.METRICS, token), repo_id, there.commit, release)


def _text(there: hub.Listing, repo_id: str, name: str, token: str | bool | None) -> bytes:
    """Return a small file of the repository."""
    size = there.files[name].size
    if size is None or size > manifest.LIMITS[name]:
        raise ReleaseError(
            f'Hub repository "{repo_id}": holds another model, its {name} has {size} bytes; choose another '
            "repository"
        )
    with tempfile.TemporaryDirectory() as folder, hub.talking(repo_id, there.commit):
        file = hf_hub_download(
            repo_id, name, revision=there.commit, local_dir=folder, token=token, library_name=LIBRARY
        )
        return Path(file).read_bytes()


def _check_evaluations(text: bytes, repo_id: str, commit: str, release: Release) -> None:
    """Refuse to replace evaluations of the same weights that `release` does not have."""
    try:
        missing = release.lacking(json.loads(text)["evaluations"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return  # no record that anybody could miss
    if missing:
        entry, *more = missing
        others = f" and {len(more)} more" if more else ""
        raise ReleaseError(
            f'Hub repository "{repo_id}": holds an evaluation of these weights that {release.path} lacks '
            f"({entry['protocol']} on {entry['data']}, {entry['split']}{others}), and this push would drop "
            f'it; take it over with zoo.open("{release.path}").add_evaluations_of("{repo_id}@{commit}") and '
            "push again"
        )


def _commit(
    client: HfApi,
    repo_id: str,
    branch: str,
    there: hub.Listing,
    contents: Contents,
    changed: list[str],
    name: str,
) -> str:
    """Upload and commit what changed, and make sure that it arrived; return the commit."""
    new = [contents[file] for file in changed if file in contents]
    hub.LOG.info("uploading %s to %s", manifest.amount(map(manifest.size, new)), repo_id)
    with hub.talking(repo_id, branch):
        operations: list[CommitOperationAdd | CommitOperationDelete] = [
            CommitOperationAdd(file, contents[file]) if file in contents else CommitOperationDelete(file)
            for file in changed
        ]
        commit = client.create_commit(
            repo_id,
            operations,
            commit_message=f"{name}: {', '.join(changed)}",
            revision=branch,
            parent_commit=there.commit,
        )
    left = manifest.differing(contents, hub.listing(client, repo_id, commit.oid).files)
    if left:
        raise ReleaseError(
            f'Hub repository "{repo_id}": after commit {commit.oid} {", ".join(left)} are not what was'
            " pushed, so it got no version; does a .gitignore in the repository exclude them?"
        )
    return str(commit.oid)


def _versions(client: HfApi, repo_id: str) -> dict[int, str]:
    """Return number -> commit of the version tags."""
    with hub.talking(repo_id):
        tags = client.list_repo_refs(repo_id).tags
    return {int(match[1]): tag.target_commit for tag in tags if (match := _VERSION.fullmatch(tag.name))}


def _version_of(client: HfApi, repo_id: str, commit: str, contents: Contents) -> str | None:
    """Return the version that has these contents, when the newest one has."""
    try:
        versions = _versions(client, repo_id)
    except hub.UnknownRequestError:
        return None  # `_tag` says so
    at_commit = [number for number, tagged in versions.items() if tagged == commit]
    if at_commit:
        return f"v{max(at_commit)}"
    newest = max(versions, default=0)  # other files may have been committed since
    if newest and not manifest.differing(contents, hub.listing(client, repo_id, versions[newest]).files):
        return f"v{newest}"
    return None


def _tag(client: HfApi, repo_id: str, commit: str) -> str:
    """Give a commit the next version and return that; of a server that has no tags return the commit."""
    try:
        return _tagged(client, repo_id, commit)
    except hub.UnknownRequestError as error:
        warnings.warn(
            f"{error}. The release is there as commit {commit}, and gets no version", ZooWarning, stacklevel=4
        )
        return commit
    except ReleaseError as error:
        raise ReleaseError(
            f"{error}. The release is there as commit {commit} and lacks its version alone, which the same "
            "push again gives it"
        ) from error


def _tagged(client: HfApi, repo_id: str, commit: str) -> str:
    versions = _versions(client, repo_id)
    if at_commit := [number for number, tagged in versions.items() if tagged == commit]:
        return f"v{max(at_commit)}"  # another push of the same content was faster
    version = f"v{max(versions, default=0) + 1}"
    with hub.talking(repo_id, version):
        client.create_tag(repo_id, tag=version, revision=commit)
    return version
