"""The test Hub's transport: HTTP/1.1 on loopback, and faults put in front of any request."""

from __future__ import annotations

import json
import re
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

RETRIED = {408, 429, 500, 502, 503, 504}  # statuses on which the client's http_backoff asks again


class HubError(Exception):
    """An error answer. `code` is the X-Error-Code by which the client chooses its exception."""

    def __init__(self, status: int, message: str, code: str | None = None, **headers: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message
        self.headers = {"X-Error-Message": message, **{k.replace("_", "-"): v for k, v in headers.items()}}
        if code:
            self.headers["X-Error-Code"] = code


@dataclass(frozen=True)
class Request:
    """One request whose body has arrived in full."""

    method: str
    path: str  # as sent, still quoted
    query: dict[str, list[str]]
    headers: dict[str, str]  # lower-case names
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def flag(self, name: str) -> bool:
        return self.query.get(name, ["false"])[0].lower() in {"true", "1"}


@dataclass
class Response:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


def as_json(data: Any, status: int = 200, **headers: str) -> Response:
    """Answer `data`; dates that a card's YAML holds become text, as on the Hub."""
    named = {"Content-Type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
    return Response(status, json.dumps(data, default=str).encode(), named)


def ranged(data: bytes, request: Request, headers: dict[str, str]) -> Response:
    """Answer `data`, or the part of it that a Range header asks for (206, or 416 beyond its end)."""
    headers = {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream", **headers}
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("range", ""))
    if not found or not any(found.groups()):
        return Response(200, data, headers)
    first, last = found.groups()
    start = int(first) if first else max(len(data) - int(last), 0)
    stop = min(int(last) + 1, len(data)) if first and last else len(data)
    if start >= len(data):
        return Response(416, b"", headers | {"Content-Range": f"bytes */{len(data)}"})
    return Response(
        206, data[start:stop], headers | {"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"}
    )


@dataclass
class Fault:
    """What goes wrong with the next `times` requests that match, after `skip` that do not; see Hub.fault."""

    match: str
    status: int | None = None
    times: int = 1
    delay: float | None = None
    cut_after: int | None = None
    body: bytes | None = None
    skip: int = 0
    headers: dict[str, str] = field(default_factory=dict)

    def applies(self, method: str, path: str) -> bool:
        """Count a request; True when it is one of those that go wrong."""
        if self.times <= 0 or not re.search(self.match, f"{method} {path}"):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.times -= 1
        return True

    def spoil(self, response: Response) -> Response:
        """Return the answer with the fault's status, headers and body in place of its own."""
        if self.status is not None:
            # Without Retry-After the client waits 1 + 2 + 4 + 8 + 8 s before it gives up, with it 5 x 1 s.
            wait = {"Retry-After": "0"} if self.status in RETRIED else {}
            response = as_json({"error": f"fault {self.status}"}, self.status)
            response.headers |= wait
        if self.body is not None:
            response = Response(response.status, self.body, dict(response.headers))
        response.headers |= self.headers
        return response


Route = tuple[str, str, Callable[..., Response]]
CompiledRoute = tuple[str, re.Pattern[str], Callable[..., Response]]
PLACES = {"{repo}": r"(?P<repo>(?:datasets/)?[^/]+/[^/]+)", "{path}": r"(?P<path>.+)"}


def compiled(routes: Iterable[Route]) -> list[CompiledRoute]:
    """Turn patterns such as `/api/models/{repo}/tree/{rev}` into expressions; {name} is one segment."""

    def expression(pattern: str) -> str:
        for place, group in PLACES.items():
            pattern = pattern.replace(place, group)
        return re.sub(r"(?<!\\)\{(\w+)\}", r"(?P<\1>[^/]+)", pattern)

    return [(methods, re.compile(expression(pattern)), function) for methods, pattern, function in routes]


class Server(ThreadingHTTPServer):
    """Binds at once and listens only when asked: until then the port refuses, as with no network."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, answer: Callable[[Request], Response]) -> None:
        super().__init__(("127.0.0.1", 0), Handler, bind_and_activate=False)
        self.server_bind()
        self.answer = answer
        self.requests: list[tuple[str, str]] = []
        self.faults: list[Fault] = []
        self.ended = threading.Event()  # ends the delays of a test that is over
        self._thread: threading.Thread | None = None

    def listen(self) -> None:
        if self._thread is None:
            self.server_activate()
            self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
            self._thread.start()

    def forget(self) -> None:
        """Drop the faults and the log of requests, and end what still waits."""
        self.ended.set()
        self.ended, self.requests, self.faults = threading.Event(), [], []

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is part of the tests; anything else is a defect of the server."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def handle_request(self) -> None:
        url = urlsplit(self.path)
        server = self.server
        server.requests.append((self.command, url.path))
        fault = next((f for f in server.faults if f.applies(self.command, url.path)), Fault("", times=0))
        ended = server.ended
        body = self.read_body(fault.cut_after)
        if body is None:
            return self.cut()
        if fault.delay and fault.cut_after is None and ended.wait(fault.delay):
            return self.cut()  # the test is over: its request must not reach the next one's Hub
        headers = {k.lower(): v for k, v in self.headers.items()}
        request = Request(self.command, url.path, parse_qs(url.query), headers, body)
        response = fault.spoil(Response() if fault.status else server.answer(request))
        if fault.cut_after is not None and body:
            return self.cut()  # processed, but the answer is lost
        self.send_response(response.status)
        for name, value in response.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(response.body)))
        self.end_headers()
        if self.command == "HEAD":
            return None
        if fault.cut_after is None:
            self.wfile.write(response.body)
            return None
        self.wfile.write(response.body[: fault.cut_after])
        self.wfile.flush()
        ended.wait(fault.delay or 0)  # a download that stalls before it breaks
        self.close_connection = True
        return None

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_request  # noqa: N815 (http.server's names)

    def read_body(self, cut_after: int | None) -> bytes | None:
        """Read the request's body; None when a fault cuts it."""
        body = bytearray()
        for piece in self.pieces():
            body += piece
            if cut_after is not None and len(body) > cut_after:
                return None
        return bytes(body)

    def pieces(self) -> Iterable[bytes]:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while size := int(self.rfile.readline().split(b";")[0], 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return
        left = int(self.headers.get("Content-Length", 0))
        while left > 0:
            piece = self.rfile.read(min(left, 1 << 16))
            if not piece:
                raise ConnectionResetError("the client left in the middle of its request")
            left -= len(piece)
            yield piece

    def cut(self) -> None:
        """Reset the connection: the client sees a broken pipe rather than an early answer."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def log_message(self, *_: Any) -> None:
        pass


def matched(
    routes: list[CompiledRoute], request: Request
) -> tuple[Callable[..., Response], dict[str, str]] | None:
    """Return the route's function and the unquoted parts of the path, or None."""
    for methods, pattern, function in routes:
        if request.method in methods.split("|") and (found := pattern.fullmatch(request.path)):
            return function, {name: unquote(part) for name, part in found.groupdict().items()}
    return None
