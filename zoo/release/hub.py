"""Talking to the Hub: repository names, what a repository holds, and what the client's errors mean.

Every call of huggingface_hub in this project stands inside `talking`, which turns whatever it raises into one
`ReleaseError`. Imports no torch.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from huggingface_hub import HfApi, constants, get_token
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import (  # type: ignore[attr-defined]
    get_session,
    validate_repo_id,
)

from zoo.errors import ReleaseError, did_you_mean

ANSWER_SECONDS = 100.0
"""How long a commit may take to be answered; the client's own choice is to wait for ever."""

LIBRARY = "contrastive-zoo"  # what the Hub is told, and the tag that releases carry
COMMIT = re.compile(r"[0-9a-f]{40}")
_REPO_ID = re.compile(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+")
_REVISION = re.compile(r"(?!.*(?:\.\.|//))[A-Za-z0-9_][A-Za-z0-9_./+-]*(?<![./])")
# huggingface_hub 1 speaks through httpx, 2 through httpx2; its own errors derive from the one in use
_transport: Any = sys.modules[HfHubHTTPError.__bases__[0].__module__.partition(".")[0]]


class UnreachableError(ReleaseError):
    """The Hub gives no answer at this time; what is in the local cache can still be used."""


class RepositoryAbsentError(ReleaseError):
    """There is no such repository, or the token does not open it."""


class RevisionAbsentError(ReleaseError):
    """The repository has no such branch, tag or commit."""


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


def check_repo_id(repo_id: object, namespace: str | None = None) -> str:
    """Return `repo_id` when it has the form `org/name`.

    Raises:
        ReleaseError: with the nearest valid spelling, in `namespace` where only a name is given.
    """
    if isinstance(repo_id, str) and is_repo_id(repo_id):
        return repo_id
    text = re.sub(r"^(https?://[^/]+/|hf-hub:|hf_hub:)", "", str(repo_id)).partition("@")[0]
    parts = [_valid(part) for part in text.split("/")[-2:]]
    near = "/".join([*([namespace] if namespace and len(parts) == 1 else []), *parts])
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
    if isinstance(revision, str) and _REVISION.fullmatch(revision):
        return revision
    raise ReleaseError(f'revision "{revision}": expected a branch, a tag or a commit, e.g. "v1"')


def listing(client: HfApi, repo_id: str, revision: str | None) -> Listing:
    """Ask what `repo_id` holds at `revision`, in one request.

    Raises:
        RepositoryAbsentError, RevisionAbsentError, UnreachableError, ReleaseError: as `talking`.
    """
    timeout = constants.HF_HUB_ETAG_TIMEOUT  # as the client has it for a file's facts
    with talking(repo_id, revision):
        info = client.model_info(repo_id, revision=revision, files_metadata=True, timeout=timeout)
    if not COMMIT.fullmatch(info.sha or ""):
        raise ReleaseError(f'Hub repository "{repo_id}": the answer names no commit, found "{info.sha}"')
    files = {
        file.rfilename: RemoteFile(file.size, file.lfs.sha256 if file.lfs else None, file.blob_id)
        for file in info.siblings or ()
    }
    return Listing(info.sha or "", files, bool(info.private))


@contextmanager
def talking(repo_id: str, revision: str | None = None) -> Iterator[None]:
    """Turn what the client raises inside the block into one `ReleaseError`; bound its waiting.

    Raises:
        RepositoryAbsentError, RevisionAbsentError, UnreachableError: a caller may go on another way.
        ReleaseError: for everything else.
    """
    where = f'Hub repository "{repo_id}"' + (f' at revision "{revision}"' if revision else "")
    session = get_session()
    patience = session.timeout
    if session.timeout == _transport.Timeout(None):
        session.timeout = _transport.Timeout(ANSWER_SECONDS)
    try:
        yield
    except ReleaseError:
        raise
    except Exception as error:  # of the transport (httpx, hf_xet), or a KeyError at an answer of no Hub
        kind, problem = _explain(error)
        raise kind(f"{where}: {problem}") from error
    finally:
        session.timeout = patience


def _explain(error: Exception) -> tuple[type[ReleaseError], str]:
    known = (OfflineModeIsEnabled, _transport.HTTPError)
    while not isinstance(error, known) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # e.g. of "Error while uploading", which does not say why
    log_in = 'log in with "hf auth login", set HF_TOKEN or give token='
    if isinstance(error, OfflineModeIsEnabled) or constants.HF_HUB_OFFLINE:
        return UnreachableError, "HF_HUB_OFFLINE is set, and this needs the network"
    if isinstance(error, LocalTokenNotFoundError):
        return ReleaseError, f"no token is stored; {log_in}"
    if isinstance(error, GatedRepoError):
        return ReleaseError, f"access must be requested on its page, and needs a token; {log_in}"
    if isinstance(error, RevisionNotFoundError):
        return RevisionAbsentError, "the repository has no such revision; its page lists branches and tags"
    if isinstance(error, HfHubHTTPError):
        return _explain_status(error, log_in)
    if isinstance(error, _transport.TimeoutException):
        return UnreachableError, "the Hub did not answer in time; try again"
    if isinstance(error, _transport.ConnectError):
        return UnreachableError, f"cannot be reached at {constants.ENDPOINT}; is there a network?"
    if isinstance(error, _transport.HTTPError | ConnectionError):
        return UnreachableError, f"the connection was cut ({_first_line(error)}); run the same command again"
    if isinstance(error, (json.JSONDecodeError, KeyError, TypeError, AttributeError, AssertionError)):
        return ReleaseError, f"the answer is not that of a Hub; is {constants.ENDPOINT} one?"
    return ReleaseError, _first_line(error)


def _explain_status(error: HfHubHTTPError, log_in: str) -> tuple[type[ReleaseError], str]:
    status = error.response.status_code
    said = f": {_first_line(error.server_message)}" if error.server_message else ""
    with_token = "authorization" in error.response.request.headers
    if status == 401 and with_token:
        return ReleaseError, f"the Hub does not accept the token (401); make a new one and {log_in}"
    if status == 401 or isinstance(error, RepositoryNotFoundError):
        hint = "the token does not open it" if with_token else f"needs a token: {log_in}"
        return RepositoryAbsentError, f"it does not exist, or is private and {hint} ({status})"
    if status == 403:
        return ReleaseError, f"the token may not do this (403{said}); it needs write access to the repository"
    if status in (409, 412):
        return ReleaseError, (
            f"it was changed by somebody else at the same time ({status}). Nothing was overwritten: look at"
            " what is there now, then run the same command again"
        )
    if status == 429 or status >= 500:
        return UnreachableError, f"the Hub has trouble ({status}{said}); try again later"
    return ReleaseError, f"the Hub refuses this ({status}{said})"


def _first_line(problem: object) -> str:
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return (lines or [type(problem).__name__])[0][:200].rstrip(".")
