"""Talking to the Hub: repository names, what a repository holds, and what the client's errors mean.

Every call of huggingface_hub in this project stands inside `talking`, which turns whatever it raises into one
`ReleaseError`. Imports no torch.
"""

from __future__ import annotations

import json
import logging
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
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import (  # type: ignore[attr-defined]
    get_session,
    validate_repo_id,
)

from zoo import settings
from zoo.errors import ReleaseError, did_you_mean
from zoo.release.schema import LIBRARY
from zoo.revisions import COMMIT, REVISION

ANSWER_SECONDS = 100.0
"""How long a commit may take to be answered; the client's own choice is to wait for ever."""

LOG = logging.getLogger("zoo.hub")  # what is sent and fetched; the command line shows it off a terminal
LOG_IN = 'log in with "hf auth login", set HF_TOKEN or give token='
_REPO_ID = re.compile(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+")
# huggingface_hub 1 speaks through httpx, 2 through httpx2; its own errors derive from the one in use
_transport: Any = sys.modules[HfHubHTTPError.__bases__[0].__module__.partition(".")[0]]


class UnreachableError(ReleaseError):
    """The Hub gives no answer at this time; what is in the local cache can still be used."""


class RepositoryAbsentError(ReleaseError):
    """There is no such repository, the token does not open it, or only a cache could tell and does not."""


class UnknownRequestError(ReleaseError):
    """The server does not know what was asked of it: a mirror, or a Hub's stand-in, may have less."""


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


@contextmanager
def talking(repo_id: str, revision: str | None = None) -> Iterator[None]:
    """Turn what the client raises inside the block into one `ReleaseError`; bound its waiting.

    Raises:
        RepositoryAbsentError, RevisionAbsentError, UnreachableError: a caller may go on another way.
        ReleaseError: for everything else.
    """
    where = f'Hub repository "{repo_id}"' + (f' at revision "{revision}"' if revision else "")
    hooks: list[Any] = get_session().event_hooks["request"]
    hooks.append(_bound)
    try:
        yield
    except ReleaseError:
        raise
    except Exception as error:  # of the transport (httpx, hf_xet), or a KeyError at an answer of no Hub
        kind, problem = _explain(error)
        raise kind(f"{where}: {problem}") from error
    finally:
        hooks.remove(_bound)


def _bound(request: Any) -> None:
    """Give a request without any limit of waiting one."""
    if request.extensions.get("timeout", {}).get("read") is None:
        request.extensions["timeout"] = _transport.Timeout(ANSWER_SECONDS).as_dict()


def _explain(error: Exception) -> tuple[type[ReleaseError], str]:
    known = (OfflineModeIsEnabled, _transport.HTTPError, ValueError)
    while not isinstance(error, known) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # e.g. of "Error while uploading", which does not say why
    if isinstance(error, OfflineModeIsEnabled) or constants.HF_HUB_OFFLINE:
        return UnreachableError, "HF_HUB_OFFLINE is set, and this needs the network"
    if isinstance(error, LocalTokenNotFoundError):
        return ReleaseError, f"no token is stored; {LOG_IN}"
    if isinstance(error, GatedRepoError):
        return ReleaseError, f"access must be requested on its page, and needs a token; {LOG_IN}"
    if isinstance(error, RevisionNotFoundError):
        return RevisionAbsentError, "the repository has no such revision; its page lists branches and tags"
    if isinstance(error, HfHubHTTPError):
        return _explain_answer(error)
    if isinstance(error, _transport.TimeoutException):
        return UnreachableError, "the Hub did not answer in time; try again"
    if isinstance(error, _transport.ConnectError):
        return UnreachableError, f"cannot be reached at {constants.ENDPOINT}; is there a network"
    text = _one_line(error)
    if xet := re.search(r"HTTP status \w+ error \((\d+)", text):
        return _explain_status(int(xet[1]), f"{xet[1]} of the storage", writes=True)
    if isinstance(error, _transport.HTTPError | ConnectionError) or "Request error" in text:
        return UnreachableError, f"the connection was cut ({text}); run the same command again"
    if isinstance(error, json.JSONDecodeError | KeyError | TypeError | AttributeError | AssertionError):
        return ReleaseError, f"the answer is not that of a Hub; is {constants.ENDPOINT} one?"
    if text.startswith("Consistency check failed"):
        return ReleaseError, "a file came with another size than the Hub states; run the same command again"
    if isinstance(error, OSError) and error.errno:
        return ReleaseError, f"what comes from it cannot be kept here: {text}"
    return ReleaseError, text


def _explain_answer(error: HfHubHTTPError) -> tuple[type[ReleaseError], str]:
    request, status = error.response.request, error.response.status_code
    said = f"{status}: {_one_line(error.server_message)}" if error.server_message else str(status)
    with_token, writes = "authorization" in request.headers, request.method not in ("GET", "HEAD")
    # the Hub tells those it does not know 401, whether a repository is private or not there
    if (status == 401 and not with_token) or (status != 401 and isinstance(error, RepositoryNotFoundError)):
        hint = "the token does not open it" if with_token else f"needs a token: {LOG_IN}"
        return RepositoryAbsentError, f"it does not exist, or is private and {hint} ({status})"
    if status in (404, 405):
        return UnknownRequestError, f"there is no {request.url.path} ({said})"
    return _explain_status(status, said, writes)


def _explain_status(status: int, said: str, writes: bool) -> tuple[type[ReleaseError], str]:
    if status == 401:
        return ReleaseError, f"the Hub does not accept the token (401); make a new one and {LOG_IN}"
    if status == 403:
        expected = (
            "it needs write access to the repository" if writes else "it needs access to the repository"
        )
        return ReleaseError, f"the token may not do this ({said}); {expected}"
    if writes and status in (409, 412):
        return ReleaseError, (
            f"it was changed by somebody else at the same time ({status}). Nothing was overwritten: look at"
            " what is there now, then run the same command again"
        )
    if status == 429 or status >= 500:
        return UnreachableError, f"the Hub has trouble ({said}); try again later"
    return ReleaseError, f"the Hub refuses this ({said})"


def _one_line(problem: object) -> str:
    return " ".join(str(problem).split())[:300].rstrip(".") or type(problem).__name__
