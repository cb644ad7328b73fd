"""What a Hub answers: the listing of a repository and of an organisation, over real HTTP."""

from __future__ import annotations

import threading
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any

import huggingface_hub

import zoo
from tests.fuzz import mutate
from tests.fuzz.case import Case
from zoo.hub.merge import snapshot

_SHA = "0123456789abcdef0123456789abcdef01234567"
_FILES = ("config.json", "model.safetensors", "recipe.yaml", "metrics.json", "README.md", "curves.png")
_MODEL: dict[str, Any] = {
    "_id": "1",
    "id": "org/name",
    "modelId": "org/name",
    "sha": _SHA,
    "private": False,
    "lastModified": "2026-11-01T00:00:00.000Z",
    "tags": ["contrastive-zoo"],
    "cardData": {
        "tags": ["image-classification", "contrastive-zoo", "paco"],
        "license": "apache-2.0",
        "model-index": [
            {
                "name": "x",
                "results": [
                    {
                        "task": {"type": "image-classification"},
                        "dataset": {
                            "name": "digits",
                            "type": "digits",
                            "config": "knn (k: 5)",
                            "split": "test",
                        },
                        "metrics": [{"type": "accuracy", "value": 93.1}],
                    }
                ],
            }
        ],
    },
    "siblings": [
        {
            "rfilename": name,
            "size": 900,
            "blobId": "a" * 40,
            "lfs": {"sha256": "b" * 64, "size": 900, "pointerSize": 9},
        }
        for name in _FILES
    ],
}


class _Server:
    """Answers every request with the same body."""

    def __init__(self) -> None:
        self.body = b""
        answers = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answers.body)))
                self.send_header("X-Repo-Commit", _SHA)
                self.send_header("ETag", '"x"')
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(answers.body)

            do_HEAD = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{server.server_address[1]}"


@cache
def _server() -> _Server:
    return _Server()


def hub(random: Random, folder: Path) -> Case:
    """The answer to `zoo list --hub ORG`, and to opening a repository."""
    server = _server()
    model, note = mutate.tree(random, _MODEL)
    if random.random() < 0.4:
        card, note = mutate.tree(random, _MODEL["cardData"])
        model = {**_MODEL, "cardData": card}
    listed = mutate.to_json(random, [model] if random.random() < 0.9 else model)
    single = mutate.to_json(random, model)
    if random.random() < 0.1:
        listed, note = mutate.octets(random, listed), "bytes"
        single = mutate.octets(random, single)

    def at(body: bytes, call: Any) -> None:
        server.body = body
        endpoint = huggingface_hub.constants.ENDPOINT
        template = huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE
        huggingface_hub.constants.ENDPOINT = server.address
        huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE = (
            server.address + "/{repo_id}/resolve/{revision}/{filename}"
        )
        try:
            call()
        finally:
            huggingface_hub.constants.ENDPOINT = endpoint
            huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE = template

    def repository() -> None:
        snapshot("org/name", "main", False)
        zoo.open("hf-hub:org/name", cache_dir=folder / "cache", token=False)

    return Case(
        {
            "list": lambda: at(listed, lambda: zoo.list_hub("org", token=False)),
            "open": lambda: at(single, repository),
        },
        ("org/", 'namespace "org"', "snapshots"),
        note,
    )
