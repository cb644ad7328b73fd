"""A Hugging Face Hub for tests: real HTTP on loopback, spoken to by the real huggingface_hub client.

One per process. tests/conftest.py makes it before huggingface_hub is imported, because the client reads
`HF_ENDPOINT` and its like once, on import. Tests take the fixture `hub`. What the server holds is in
hub_store.py; the API is in hub_api.py and hub_listing.py, files go over LFS and plain HTTP in hub_files.py.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path

from . import hub_api, hub_files, hub_listing, hub_xet
from .hub_http import Fault, HubError, Request, Response, Server, as_json, compiled, matched
from .hub_store import Blob, Store, is_lfs

WRITE, READ = "hf_write", "hf_read"
# A user's own settings: none of them may reach a test.
FOREIGN_SETTINGS = (
    "HF_TOKEN", "HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE",
    "HF_XET_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_ASSETS_CACHE",
)  # fmt: skip


class Hub:
    """The server of this process, and a test's view behind the client's back.

    Attributes:
        url: address, as in HF_ENDPOINT.
        token, read_token: accepted tokens, for writing and for reading only.
        store: what it holds; `page_size`, `part_size` (LFS uploads above it go in parts), `tells_sizes` (of
            a model's files) and `foreign` (namespaces in which the tokens have no rights) may be set.
        home: HF_HOME of this process and its children; emptied by `reset`.
    """

    token, read_token = WRITE, READ

    def __init__(self) -> None:
        self._routes = compiled([*hub_api.ROUTES, *hub_listing.ROUTES, *hub_files.ROUTES, *hub_xet.ROUTES])
        self._lock = threading.Lock()
        self._server = Server(self._answer)
        port = self._server.server_address[1]
        self.url, self._storage_url = f"http://127.0.0.1:{port}", f"http://localhost:{port}"
        self.home = Path(tempfile.mkdtemp(prefix="zoo-hub-"))
        atexit.register(shutil.rmtree, self.home, ignore_errors=True)
        self.store = Store(self.url, self._storage_url, {WRITE: "write", READ: "read"})

    def set_environment(self) -> None:
        """Point huggingface_hub, when it is imported later, and child processes at this server."""
        assert "huggingface_hub" not in sys.modules, "its settings are read on import: too late"
        for name in FOREIGN_SETTINGS:
            os.environ.pop(name, None)
        os.environ |= {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(self.home),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_XET": "1",  # until `transport` says otherwise
            "HF_HUB_ETAG_TIMEOUT": "3",  # seconds; both are 10 by default
            "HF_HUB_DOWNLOAD_TIMEOUT": "3",
            "HF_XET_CLIENT_RETRY_BASE_DELAY": "10ms",  # 3 s by default, more with each of 5 tries
            # Files of tests' size are fetched in blocks too, as by default only those above 256 MB.
            "HF_XET_RECONSTRUCTION_MIN_RECONSTRUCTION_FETCH_SIZE": "4mb",
            "HF_XET_RECONSTRUCTION_MAX_RECONSTRUCTION_FETCH_SIZE": "4mb",
            "NO_PROXY": "127.0.0.1,localhost",
        }

    def reset(self) -> None:
        """Become an empty Hub without faults, listen, and empty the client's caches."""
        self._server.forget()
        self._server.listen()
        self.store = Store(self.url, self._storage_url, {WRITE: "write", READ: "read"})
        self.transport = "lfs"
        for folder in self.home.iterdir():
            shutil.rmtree(folder) if folder.is_dir() else folder.unlink()
        # Otherwise the client asks the Hub for a list of coding agents, once a day.
        (self.home / ".agent_harnesses.json").write_text(json.dumps({"harnesses": {}, "standardEnvVars": []}))

    def close(self) -> None:
        """End what still waits for an answer, and restore the client's settings."""
        self._server.forget()
        self.transport = "lfs"

    @property
    def requests(self) -> list[tuple[str, str]]:
        """(method, path without query) of all requests so far, in the order of their arrival."""
        return self._server.requests

    @property
    def transport(self) -> str:
        """How large files travel: "lfs" or "xet".

        The client of 2.x uploads over Xet whenever hf_xet is installed and HF_HUB_DISABLE_XET is not set, so
        that the setting is the client's: this changes it here and for child processes.
        """
        return self._transport

    @transport.setter
    def transport(self, name: str) -> None:
        assert name in {"lfs", "xet"}, name
        self._transport = name
        os.environ["HF_HUB_DISABLE_XET"] = "1" if name == "lfs" else "0"
        if (constants := sys.modules.get("huggingface_hub.constants")) is not None:
            setattr(constants, "HF_HUB_DISABLE_XET", name == "lfs")  # noqa: B010

    def create(
        self, repo_id: str, files: dict[str, bytes], private: bool = False, gated: bool = False
    ) -> str:
        """Make `files` the content of a repository behind the client's back, and return the commit's sha.

        File names are taken as they are, hostile ones too. A repository that exists gets one more commit.
        """
        with self._lock:
            repo = self.store.repos.get(repo_id) or self.store.create(repo_id, private=private, gated=gated)
            blobs = {path: Blob(data, is_lfs(path, len(data))) for path, data in files.items()}
            return repo.commit(blobs, "made by the test").sha

    def files(self, repo_id: str, revision: str = "main") -> dict[str, bytes]:
        """Return path -> content at a revision."""
        return {p: blob.data for p, blob in self.store.repos[repo_id].at(revision).files.items()}

    def commits(self, repo_id: str, revision: str = "main") -> list[str]:
        """Return the shas of a revision's history, newest first; a repository's creation is a commit too."""
        return [commit.sha for commit in self.store.repos[repo_id].history(revision)]

    def tags(self, repo_id: str) -> dict[str, str]:
        """Return tag -> sha."""
        return dict(self.store.repos[repo_id].tags)

    def fault(
        self,
        match: str,
        status: int | None = None,
        times: int = 1,
        delay: float | None = None,
        cut_after: int | None = None,
        body: bytes | None = None,
        skip: int = 0,
        headers: dict[str, str] | None = None,
    ) -> None:
        """Let something go wrong with coming requests.

        Args:
            match: expression searched in "METHOD path" (quoted, no query). A download of an LFS file is a
                "GET /storage/org/name/SHA256/FILE", its upload a "PUT /storage/org/name/SHA256"; over Xet
                "GET /xorbs/HASH" and "POST /cas/v1/xorbs/default/HASH".
            status: answer this instead of doing anything.
            times: how many matching requests go wrong, after the first `skip`.
            delay: seconds before the answer; with `cut_after`, before a download breaks off (it stalls).
            cut_after: cut the connection after so many bytes: of the request's body where it has one, else
                of the answer's. A body that is shorter is processed, and its answer lost.
            body: answer this content, with the true answer's status and headers.
            headers: added to the answer, e.g. {"X-Error-Code": "GatedRepo"} or {"Retry-After": "2"}.
        """
        fault = Fault(match, status, times, delay, cut_after, body, skip, headers or {})
        self._server.faults.append(fault)

    def mend(self) -> None:
        """Let nothing go wrong any more."""
        self._server.faults.clear()

    def _answer(self, request: Request) -> Response:
        found = matched(self._routes, request)
        try:
            if found is None:
                # Any other path reads as a repository that does not exist, also "/api/models/one-word".
                self.store.open(request.path, request)
                raise AssertionError("no repository has such a name")
            function, parts = found
            with self._lock:
                return function(self.store, request, **parts)
        except HubError as error:
            return as_json({"error": error.message}, error.status, **error.headers)
