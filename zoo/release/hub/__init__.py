"""Talking to the Hub about releases: repository names, and what a repository holds.

Every call of huggingface_hub here stands inside `talking`, which turns whatever it raises into one
`ReleaseError`. Imports no torch.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from huggingface_hub import HfApi, constants, get_token
from huggingface_hub.errors import HFValidationError
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from zoo import hub_client, settings
from zoo.errors import ReleaseError, did_you_mean
from zoo.hub_client import Trouble
from zoo.release.schema import LIBRARY
from zoo.revisions import COMMIT, REVISION

LOG = logging.getLogger("zoo.hub")  # what is sent and fetched; the command line shows it off a terminal
_REPO_ID = re.compile(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+")


class UnreachableError(ReleaseError):
    """The Hub gives no answer at this time; what is in the local cache can still be used."""


class RepositoryAbsentError(ReleaseError):
    """There is no such repository, the token does not open it, or only a cache could tell and does not."""


class UnknownRequestError(ReleaseError):
    """The server does not know what was asked of it: a mirror, or a Hub's stand-in, may have less."""


class RevisionAbsentError(ReleaseError):
    """The repository has no such branch, tag or commit."""


_KINDS = {
    Trouble.UNREACHABLE: UnreachableError,
    Trouble.NO_REPOSITORY: RepositoryAbsentError,
    Trouble.NO_REVISION: RevisionAbsentError,
    Trouble.UNKNOWN_REQUEST: UnknownRequestError,
}


class RemoteFile(NamedTuple):
    """A file as the Hub lists it: its size in bytes, and its hash.

    `sha256` is the content's for a large file, and None for a small one, whose `blob` is git's SHA-1.
    """

    size: int | None
    sha256: str | None
    blob: str | None


class Listing(NamedTuple):
    """What a repository holds at one commit, as the Hub says; names are not to be trusted."""

    commit: str
    files: Mapping[str, RemoteFile]
    private: bool


def api(token: str | bool | None) -> HfApi:
    """Return the client; it names this project to the Hub."""
    return HfApi(token=token, library_name=LIBRARY)


def has_token(token: str | bool | None) -> bool:
    """Whether requests carry a token: the one given, or the one that huggingface_hub has stored."""
    return isinstance(token, str) or (token is not False and get_token() is not None)


def is_repo_id(text: str) -> bool:
    """Whether `text` can be the name of a repository, `org/name`."""
    try:
        validate_repo_id(text)
    except HFValidationError:
        return False
    return _REPO_ID.fullmatch(text) is not None


def address(repo_id: str) -> str:
    """Return the address of a repository's page."""
    return f"{constants.ENDPOINT}/{repo_id}"


def check_repo_id(repo_id: object) -> str:
    """Return `repo_id` when it has the form `org/name`.

    Raises:
        ReleaseError: with the nearest valid spelling, in the own namespace where only a name is given.
    """
    if isinstance(repo_id, str) and is_repo_id(repo_id):
        return repo_id
    text = re.sub(r"^(https?://[^/]+/|hf-hub:|hf_hub:)", "", str(repo_id)).partition("@")[0]
    parts = [_valid(part) for part in text.split("/")[-2:]]
    namespace = settings.namespace() if len(parts) == 1 else None
    near = "/".join([*([namespace] if namespace else []), *parts])
    raise ReleaseError(
        f'repository "{repo_id}": expected "org/name" of letters, digits, ".", "_" and "-", without "--" or'
        f' "..", at most 96 characters{"." + did_you_mean(near, [near]) if is_repo_id(near) else ""}'
    )


def _valid(part: str) -> str:
    part = re.sub(r"[^A-Za-z0-9_.]+", "-", part.removesuffix(".git"))
    return re.sub(r"\.{2,}", ".", part).strip("-.")[:96].strip("-.")


def check_revision(revision: str) -> str:
    """Return `revision` when it can be a branch, tag or commit.

    Raises:
        ReleaseError: when it can be none.
    """
    if isinstance(revision, str) and REVISION.fullmatch(revision):
        return revision
    raise ReleaseError(f'revision "{revision}": expected a branch, a tag or a commit, e.g. "v1"')


def listing(client: HfApi, repo_id: str, revision: str | None) -> Listing:
    """Ask what `repo_id` holds at `revision`, or its main branch: in one request of the Hub.

    A mirror may answer it without the files' sizes and hashes (olah does); its tree is asked for them.

    Raises:
        RepositoryAbsentError, RevisionAbsentError, UnreachableError, ReleaseError: as `talking`.
    """
    timeout = constants.HF_HUB_ETAG_TIMEOUT  # as the client has it for a file's facts
    branch = revision or constants.DEFAULT_REVISION  # a mirror may not say which that is
    with talking(repo_id, revision):
        info = client.model_info(repo_id, revision=branch, files_metadata=True, timeout=timeout)
        files = dict(map(_remote, info.siblings or ()))
        if any(file.size is None for file in files.values()):
            tree = client.list_repo_tree(repo_id, recursive=True, revision=info.sha)
            files = dict(_remote(file) for file in tree if isinstance(file, RepoFile))
    if not COMMIT.fullmatch(str(info.sha or "")):
        raise ReleaseError(f'Hub repository "{repo_id}": the answer names no commit, found "{info.sha}"')
    return Listing(info.sha or "", files, bool(info.private))


def _remote(file: Any) -> tuple[str, RemoteFile]:
    """Return a listed file and its name; TypeError for what no Hub lists."""
    sha256 = file.lfs.sha256 if file.lfs else None
    name = file.path if isinstance(file, RepoFile) else file.rfilename
    for found, kind in ((name, str), (file.size, int | None), (sha256, str | None)):
        if not isinstance(found, kind):
            raise TypeError(f"found {found!r}")
    return name, RemoteFile(file.size, sha256, file.blob_id)


def talking(repo_id: str, revision: str | None = None) -> AbstractContextManager[None]:
    """Return a block in which the client is called: what it raises becomes one `ReleaseError`.

    Raises:
        RepositoryAbsentError, RevisionAbsentError, UnknownRequestError, UnreachableError: a caller may go on
            another way.
        ReleaseError: for everything else.
    """
    return talking_about(f'Hub repository "{repo_id}"' + (f' at revision "{revision}"' if revision else ""))


def talking_about(where: str) -> AbstractContextManager[None]:
    """Do what `talking` says about something else than a repository; `where` begins the error."""
    return hub_client.talking(where, _KINDS, ReleaseError)
