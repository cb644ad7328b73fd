"""Calling huggingface_hub: no answer is waited for without end, and every failure is one clear line.

Releases (`zoo.hub`) and data sets (`zoo.data.sources`) are fetched so. Imports huggingface_hub on use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from zoo.errors import ZooError, first_line

COMMIT = re.compile(r"[0-9a-f]{40}")
REVISION = re.compile(r"(?!.*(?:\.\.|//))[A-Za-z0-9_][A-Za-z0-9_./+-]*(?<![./])")
"""A branch, tag or commit."""
LOG_IN = 'log in with "hf auth login" or set HF_TOKEN'
_ANSWER_SECONDS = 100.0  # where the client would wait without end, as it does for a commit's answer


@contextmanager
def hub_errors(where: object, error: type[ZooError]) -> Iterator[None]:
    """Turn whatever the client raises inside the block into one error, whose message begins with `where`."""
    from huggingface_hub import get_session

    if get_session().timeout.read is None:
        get_session().timeout = _ANSWER_SECONDS
    try:
        yield
    except ZooError:
        raise
    except Exception as found:  # of the transport (httpx, hf_xet), or a KeyError at an answer of no Hub
        raise error(f"{where}: {_explain(found)}") from found


def _explain(error: BaseException) -> str:
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RevisionNotFoundError

    causes = [error]  # "Error while uploading" and the like do not say why
    while causes[-1].__cause__:
        causes.append(causes[-1].__cause__)
    found = next((each for each in causes if isinstance(each, HfHubHTTPError)), None)
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set, and it is not, or not all, in the local cache"
    if found is None:  # by name: huggingface_hub 1 speaks through httpx, 2 through httpx2
        if any(kind.__name__ == "TransportError" for each in causes for kind in type(each).__mro__):
            return f"no connection to {constants.ENDPOINT} ({first_line(causes[-1])})"
        return f"{type(error).__name__}: {first_line(error)}"
    if isinstance(found, GatedRepoError):
        return f"access must be requested on its page, and needs a token; {LOG_IN}"
    if isinstance(found, RevisionNotFoundError):
        return "there is no such revision; its page lists branches and tags"
    status, token = found.response.status_code, "authorization" in found.response.request.headers
    if status in (408, 429) or status >= 500:
        return f"the Hub has trouble ({status}); try again later"
    missing = f"it does not exist, or is private: {'the token does not open it' if token else LOG_IN}"
    known = {
        401: f"the Hub does not accept the token (401); make a new one and {LOG_IN}" if token else missing,
        403: "the token has no right to this (403)",
        404: missing,
        **dict.fromkeys((409, 412), "it was changed at the same time; nothing was overwritten, push again"),
    }
    return known.get(status, first_line(found))
