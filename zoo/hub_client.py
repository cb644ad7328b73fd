"""Calling huggingface_hub: no answer is waited for without end, and every failure is one clear line.

Releases (`zoo.hub`) and data sets (`zoo.data.readers`) are fetched through it; huggingface_hub on use.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

from zoo.errors import ZooError

COMMIT = re.compile(r"[0-9a-f]{40}")
REVISION = re.compile(r"(?!.*(?:\.\.|//))[A-Za-z0-9_][A-Za-z0-9_./+-]*(?<![./])")
"""A branch, tag or commit."""

LOG_IN = 'log in with "hf auth login" or set HF_TOKEN'
ANSWER_SECONDS = 100.0
"""How long an answer may take where the client would wait without end, as it does for a commit's."""


@contextmanager
def talking(where: str, error: type[ZooError]) -> Iterator[None]:
    """Turn whatever the client raises inside the block into one error.

    Args:
        where: what is talked about; the message begins with it.
        error: type of the error.
    """
    from huggingface_hub import get_session

    if get_session().timeout.read is None:
        get_session().timeout = ANSWER_SECONDS
    try:
        yield
    except ZooError:
        raise
    except Exception as found:  # of the transport (httpx, hf_xet), or a KeyError at an answer of no Hub
        raise error(f"{where}: {_explain(_cause(found))}") from found


def _cause(error: BaseException) -> BaseException:
    """Return what an error came of: "Error while uploading" and the like do not say why."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    while error.__cause__ and not isinstance(error, HfHubHTTPError | OfflineModeIsEnabled):
        if _is_transport(error):
            break
        error = error.__cause__
    return error


def _is_transport(error: BaseException) -> bool:
    """Whether a connection failed; by name: huggingface_hub 1 speaks through httpx, 2 through httpx2."""
    return any(kind.__name__ == "TransportError" for kind in type(error).__mro__)


def _explain(error: BaseException) -> str:
    """Say in one line what went wrong and what to do."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    text = " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set, and it is not, or not all, in the local cache"
    if isinstance(error, GatedRepoError):
        return f"access must be requested on its page, and needs a token; {LOG_IN}"
    if isinstance(error, RevisionNotFoundError):
        return "there is no such revision; its page lists branches and tags"
    if isinstance(error, HfHubHTTPError):
        status, token = error.response.status_code, "authorization" in error.response.request.headers
        said = f"{status}: {error.server_message}" if error.server_message else str(status)
        if status == 401 and token:
            return f"the Hub does not accept the token (401); make a new one and {LOG_IN}"
        if status == 401 or isinstance(error, RepositoryNotFoundError):
            return f"it does not exist, or is private: {'the token does not open it' if token else LOG_IN}"
        if status == 403:
            return f"the token has no right to this ({said})"
        if status in (409, 412):
            return f"it was changed at the same time ({status}); nothing was overwritten, push again"
        if status in (408, 429) or status >= 500:
            return f"the Hub has trouble ({said}); try again later"
        return f"the Hub refuses this ({said})"
    if _is_transport(error) or isinstance(error, ConnectionError | LocalEntryNotFoundError):
        return f"no connection to {constants.ENDPOINT} ({text}); try again, with a network"
    if isinstance(error, json.JSONDecodeError | KeyError | TypeError | AttributeError | AssertionError):
        return f"this is no answer of a Hub ({type(error).__name__}: {text}); is {constants.ENDPOINT} one?"
    return text
