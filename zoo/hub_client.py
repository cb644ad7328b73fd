"""Calling huggingface_hub: no request waits for ever, and whatever is raised is said in one line.

A host that has no address, as without a network, is told at once: the client would try six times in 23 s, and
log each. It takes what a request's hook raises for its own offline mode as that: files that are in its cache
are found there, and nothing is tried again.

Releases and data sets are fetched with it; each turns the troubles told apart here into its own errors.
"""

from __future__ import annotations

import enum
import json
import re
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.request import getproxies, proxy_bypass

from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import _http, get_session  # type: ignore[attr-defined]

from zoo.errors import ZooError

ANSWER_SECONDS = 100.0
"""How long a commit may take to be answered; the client's own choice is to wait for ever."""

LOG_IN = 'log in with "hf auth login" or set HF_TOKEN'
_FACTORY = "_GLOBAL_CLIENT_FACTORY"  # huggingface_hub has a function that sets it, and none that tells it
# huggingface_hub 1 speaks through httpx, 2 through httpx2; its own errors derive from the one in use
_transport: Any = sys.modules[HfHubHTTPError.__bases__[0].__module__.partition(".")[0]]


class Trouble(enum.Enum):
    """Why a call came to nothing, as far as a caller may want to go on another way."""

    UNREACHABLE = enum.auto()
    """No answer at this time; what is in the local cache can still be used."""
    NO_REPOSITORY = enum.auto()
    """There is none of the name, or the token does not open it."""
    NO_REVISION = enum.auto()
    """The repository has no such branch, tag or commit."""
    UNKNOWN_REQUEST = enum.auto()
    """The server does not know what was asked of it: a mirror may have less."""
    OTHER = enum.auto()


class _NoHostError(OfflineModeIsEnabled):
    """The host of the Hub has no address."""


@contextmanager
def talking(where: str, kinds: Mapping[Trouble, type[ZooError]], otherwise: type[ZooError]) -> Iterator[None]:
    """Turn what the client raises inside the block into one error; bound its waiting.

    Args:
        where: what was talked about, the beginning of the message.
        kinds: what is raised for a trouble.
        otherwise: what is raised for every other one.
    """
    try:
        with _bounded():
            yield
    except ZooError:
        raise
    except Exception as error:  # of the transport (httpx, hf_xet), or a KeyError at an answer of no Hub
        trouble, problem = _explain(error)
        raise kinds.get(trouble, otherwise)(f"{where}: {problem}") from error


@contextmanager
def _bounded() -> Iterator[None]:
    """Bound the client's waiting inside the block, whoever calls it there."""
    _hook_clients()
    own = (_bound, _once(_check_host))
    _open.extend(own)
    try:
        yield
    finally:
        for hook in own:
            _open.remove(hook)


_open: list[Callable[[Any], None]] = []
"""What every request goes through now: the hooks of all blocks of `talking` that have not ended."""


def _hook(request: Any) -> None:
    """Take a request through the hooks of the open blocks; a client keeps this one, idle outside of them."""
    for hook in [*_open]:  # other threads begin and end blocks
        hook(request)


class _Hooked:
    """A factory of clients, whose every client has the hook.

    huggingface_hub closes its client after a connection that failed, and makes another one.
    """

    def __init__(self, factory: Callable[[], Any]) -> None:
        self.factory = factory

    def __call__(self) -> Any:
        return _with_hook(self.factory())


def _with_hook(client: Any) -> Any:
    hooks: list[Any] = client.event_hooks["request"]
    if _hook not in hooks:
        hooks.append(_hook)
    return client


def _hook_clients() -> None:
    """Give the hook to the client that there is, and to those that will be made."""
    factory = getattr(_http, _FACTORY, None)
    if factory is not None and not isinstance(factory, _Hooked):
        setattr(_http, _FACTORY, _Hooked(factory))  # set_client_factory would close the client in use
    _with_hook(get_session())


def _bound(request: Any) -> None:
    """Give a request without any limit of waiting one."""
    if request.extensions.get("timeout", {}).get("read") is None:
        request.extensions["timeout"] = _transport.Timeout(ANSWER_SECONDS).as_dict()


def _once(check: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a hook that looks at the first request alone: later ones may meet a network that comes back."""
    asked = False

    def hook(request: Any) -> None:
        nonlocal asked
        if not asked:
            check(request)
            asked = True

    return hook


def _check_host(request: Any) -> None:
    """Raise at a host without an address, where it is not a proxy that looks it up.

    A client that a user's own factory makes may have one that nothing here sees.
    """
    factory = getattr(_http, _FACTORY, None)
    if isinstance(factory, _Hooked) and factory.factory is not _http.default_client_factory:
        return
    host = request.url.host
    if {request.url.scheme, "all"} & getproxies().keys() and not proxy_bypass(host):
        return
    try:
        socket.getaddrinfo(host, request.url.port)
    except socket.gaierror as error:
        raise _NoHostError(f"{host}: {error}") from None


def _explain(error: Exception) -> tuple[Trouble, str]:
    known = (OfflineModeIsEnabled, _transport.HTTPError, ValueError)
    while not isinstance(error, known) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # e.g. of "Error while uploading", which does not say why
    if isinstance(error, _NoHostError):
        return Trouble.UNREACHABLE, f"cannot be reached at {constants.ENDPOINT}; is there a network"
    if isinstance(error, OfflineModeIsEnabled) or constants.HF_HUB_OFFLINE:
        return Trouble.UNREACHABLE, "HF_HUB_OFFLINE is set, and this needs the network"
    if isinstance(error, LocalTokenNotFoundError):
        return Trouble.OTHER, f"no token is stored; {LOG_IN}"
    if isinstance(error, GatedRepoError):
        return Trouble.OTHER, f"access must be requested on its page, and needs a token; {LOG_IN}"
    if isinstance(error, RevisionNotFoundError):
        return Trouble.NO_REVISION, "the repository has no such revision; its page lists branches and tags"
    if isinstance(error, HfHubHTTPError):
        return _explain_answer(error)
    if isinstance(error, _transport.TimeoutException):
        return Trouble.UNREACHABLE, "the Hub did not answer in time; try again"
    if isinstance(error, _transport.ConnectError):
        return Trouble.UNREACHABLE, f"cannot be reached at {constants.ENDPOINT}; is there a network"
    text = _one_line(error)
    if xet := re.search(r"HTTP status \w+ error \((\d+)", text):
        return _explain_status(int(xet[1]), f"{xet[1]} of the storage", writes=True)
    if isinstance(error, _transport.HTTPError | ConnectionError) or "Request error" in text:
        return Trouble.UNREACHABLE, f"the connection was cut ({text}); run the same command again"
    if isinstance(error, json.JSONDecodeError | KeyError | TypeError | AttributeError | AssertionError):
        return Trouble.OTHER, f"the answer is not that of a Hub; is {constants.ENDPOINT} one?"
    if text.startswith("Consistency check failed"):
        return Trouble.OTHER, "a file came with another size than the Hub states; run the same command again"
    if isinstance(error, OSError) and error.errno:
        return Trouble.OTHER, f"what comes from it cannot be kept here: {text}"
    return Trouble.OTHER, text


def _explain_answer(error: HfHubHTTPError) -> tuple[Trouble, str]:
    request, status = error.response.request, error.response.status_code
    said = f"{status}: {_one_line(error.server_message)}" if error.server_message else str(status)
    with_token, writes = "authorization" in request.headers, request.method not in ("GET", "HEAD")
    # the Hub tells those it does not know 401, whether a repository is private or not there
    if (status == 401 and not with_token) or (status != 401 and isinstance(error, RepositoryNotFoundError)):
        hint = "the token does not open it" if with_token else f"needs a token: {LOG_IN}"
        return Trouble.NO_REPOSITORY, f"it does not exist, or is private and {hint} ({status})"
    if status in (404, 405):
        return Trouble.UNKNOWN_REQUEST, f"there is no {request.url.path} ({said})"
    return _explain_status(status, said, writes)


def _explain_status(status: int, said: str, writes: bool) -> tuple[Trouble, str]:
    if status == 401:
        return Trouble.OTHER, f"the Hub does not accept the token (401); make a new one and {LOG_IN}"
    if status == 403:
        expected = (
            "it needs write access to the repository" if writes else "it needs access to the repository"
        )
        return Trouble.OTHER, f"the token may not do this ({said}); {expected}"
    if writes and status in (409, 412):
        return Trouble.OTHER, (
            f"it was changed by somebody else at the same time ({status}). Nothing was overwritten: look at"
            " what is there now, then run the same command again"
        )
    if status == 429 or status >= 500:
        return Trouble.UNREACHABLE, f"the Hub has trouble ({said}); try again later"
    return Trouble.OTHER, f"the Hub refuses this ({said})"


def _one_line(problem: object) -> str:
    return " ".join(str(problem).split())[:300].rstrip(".") or type(problem).__name__
