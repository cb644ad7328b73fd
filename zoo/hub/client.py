"""Calls to huggingface_hub: every request has a timeout, and every failure is a one-line error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os.path import isdir
from pathlib import Path, PurePosixPath
from typing import Any

from zoo.errors import DataError, ZooError, first_line

_ANSWER_SECONDS = 100.0  # read timeout where the client has none, e.g. for a commit's response
_CAUSES = {  # of a refusal, by its HTTP status
    401: 'it does not exist, or needs another token: log in with "hf auth login" or set HF_TOKEN',
    403: "the token has no right to this",
    404: "it does not exist, or the token does not open it",
    412: "it was changed at the same time; nothing was overwritten, push again",
}


@contextmanager
def hub_errors(where: object, error: type[ZooError]) -> Iterator[None]:
    """Turn any exception of the client inside the block into an `error` that starts with `where`."""
    from huggingface_hub import get_session

    if get_session().timeout.read is None:
        get_session().timeout = _ANSWER_SECONDS
    try:
        yield
    except ZooError:
        raise
    except Exception as found:  # from the transport (httpx, hf_xet), or a KeyError if the server is no Hub
        raise error(f"{where}: {_explain(found)}") from found


def _explain(error: BaseException) -> str:
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RevisionNotFoundError

    causes = [error]  # "Error while uploading" and the like do not say why
    while causes[-1].__cause__:
        causes.append(causes[-1].__cause__)
    refused = next((each for each in causes if isinstance(each, HfHubHTTPError)), None)
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set, and it is not, or not all, in the local cache"
    if refused is None:
        return f"{constants.ENDPOINT}: {type(causes[-1]).__name__}: {first_line(causes[-1])}"
    if isinstance(refused, GatedRepoError):
        return "access must be requested on its page, and needs a token"
    if isinstance(refused, RevisionNotFoundError):
        return "there is no such revision; its page lists branches and tags"
    status = refused.response.status_code
    trouble = "the Hub has trouble; try again later" if status >= 500 else first_line(refused)
    return f"{_CAUSES.get(status, trouble)} ({status})"


def fetch_tables(place: str) -> Path:
    """Download parquet files from the Hub, `org/name[/FOLDER][@REVISION]`, to its cache; return their folder.

    If the Hub does not answer, the cached files of the commit, or of the branch's last known one, are used.
    """
    from huggingface_hub import snapshot_download

    path, _, revision = place.partition("@")
    repo, inside = "/".join(path.split("/")[:2]), PurePosixPath(*path.split("/")[2:])
    keys: Any = {"repo_type": "dataset", "revision": revision or None, "library_name": "zoo"}
    with hub_errors(f'Hub data set "{place}"', DataError):
        folder = Path(snapshot_download(repo, allow_patterns=str(inside / "*.parquet"), **keys), inside)
    return folder / "data" if isdir(folder / "data") else folder
