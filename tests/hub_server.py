"""A Hugging Face Hub for tests: real HTTP on loopback, spoken to by the real huggingface_hub client.

tests/conftest.py makes it before huggingface_hub is imported, which reads its settings on import.
"""

from __future__ import annotations

import atexit
import base64
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

WRITE, READ = "hf_write", "hf_read"
SETTINGS = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_XET": "1",
    "HF_HUB_ETAG_TIMEOUT": "3",  # seconds; both are 10 by default
    "HF_HUB_DOWNLOAD_TIMEOUT": "3",
    "NO_PROXY": "127.0.0.1,localhost",
}
RETRIED = {408, 429, 500, 502, 503, 504}  # statuses on which the client asks again

Answer = tuple[int, bytes, dict[str, str]]


class HubError(Exception):
    """An error answer. `code` is the X-Error-Code by which the client chooses its exception."""

    def __init__(self, status: int, message: str, code: str = "") -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": message}
        self.answer = as_json({"error": message}, status, **headers)


def as_json(data: Any, status: int = 200, **headers: str) -> Answer:
    return status, json.dumps(data).encode(), {"Content-Type": "application/json", **headers}


def is_lfs(path: str, size: int) -> bool:
    return size > 0 and path.endswith((".safetensors", ".png"))


def etag(path: str, data: bytes) -> str:
    """Return the hash by which the Hub knows a file: SHA-256 in LFS, else git's."""
    if is_lfs(path, len(data)):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Repo:
    id: str
    private: bool = False
    trees: dict[str, dict[str, bytes]] = field(default_factory=dict)  # commit -> path -> content
    branches: dict[str, list[str]] = field(default_factory=dict)  # commits, the newest first

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        sha = os.urandom(20).hex()
        self.trees[sha] = dict(files)
        self.branches[branch] = [sha, *self.branches.get(branch, [])]
        return sha

    def at(self, revision: str) -> str:
        sha = self.branches.get(revision, [revision])[0]
        if sha not in self.trees:
            raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return sha


@dataclass
class Fault:
    """What goes wrong with the next `times` requests "METHOD path" that match, after the first `skip`."""

    match: str
    status: int | None = None
    times: int = 1
    skip: int = 0
    body: bytes | None = None
    cut: str = ""  # the connection, "before" or "after" the request is done
    code: str = ""
    do: Callable[[], object] | None = None

    def applies(self, request: str) -> bool:
        if self.times <= 0 or not re.search(self.match, request):
            return False
        self.skip -= 1
        self.times -= self.skip < 0
        return self.skip < 0


class Hub:
    """The server of this process, with a test's view of its `repos` and `requests` (method, path)."""

    token, read_token = WRITE, READ  # not in the namespace "foreign"

    def __init__(self) -> None:
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads, server.hub = True, self
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        self.home = Path(tempfile.mkdtemp(prefix="zoo-hub-"))
        atexit.register(shutil.rmtree, self.home, ignore_errors=True)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        self.reset()

    def reset(self) -> None:
        """Become an empty Hub without faults, and empty the client's caches."""
        self.repos: dict[str, Repo] = {}
        self.objects: dict[str, bytes] = {}  # uploaded by LFS, by SHA-256
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str]] = []
        for path in self.home.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        # Otherwise the client asks for a list of coding agents, once a day.
        (self.home / ".agent_harnesses.json").write_text('{"harnesses": {}, "standardEnvVars": []}')

    def set_environment(self) -> None:
        """Point huggingface_hub, when it is imported later, and child processes at this server."""
        assert "huggingface_hub" not in sys.modules, "its settings are read on import: too late"
        for name in [*os.environ]:  # a user's own settings: none of them may reach a test
            if name.startswith(("HF_", "HUGGING", "TRANSFORMERS_")):
                del os.environ[name]
        os.environ |= {**SETTINGS, "HF_ENDPOINT": self.url, "HF_HOME": str(self.home)}

    def create(self, repo_id: str, files: dict[str, bytes], private: bool = False) -> str:
        """Make `files` the content of a repository, in one commit."""
        return self.repos.setdefault(repo_id, Repo(repo_id, private)).commit(files)

    def edit(self, repo_id: str, name: str, data: bytes) -> str:
        """Change a file on main as a colleague does."""
        return self.create(repo_id, self.files(repo_id) | {name: data})

    def files(self, repo_id: str, revision: str = "main") -> dict[str, bytes]:
        return dict(self.repos[repo_id].trees[self.repos[repo_id].at(revision)])

    def commits(self, repo_id: str, revision: str = "main") -> list[str]:
        return self.repos[repo_id].branches[revision]

    def fault(self, match: str, status: int | None = None, **what: Any) -> None:
        self.faults.append(Fault(match, status, **what))

    def mend(self) -> None:
        self.faults.clear()

    def answer(self, ask: Handler, path: str) -> Answer:
        name = r"((?:datasets/)?[^/]+/[^/]+)"
        for methods, pattern, function, access in (
            ("POST", "/api/validate-yaml", lambda _: as_json({"errors": [], "warnings": []}), None),
            ("POST", "/api/repos/create", self.create_repo, None),
            ("GET", f"/api/(?:models/)?{name}(?:/revision/([^/]+))?", self.info, "see"),
            ("GET", f"/api/(?:models/)?{name}/tree/([^/]+)", self.tree, "see"),
            ("GET", f"/api/models/{name}/commits/([^/]+)", self.log, "see"),
            ("POST", f"/api/models/{name}/branch/([^/]+)", self.branch, "write"),
            ("POST", f"/api/models/{name}/preupload/([^/]+)", self.preupload, "write"),
            ("POST", f"/api/models/{name}/commit/([^/]+)", self.commit, "write"),
            ("POST", rf"/{name}\.git/info/lfs/objects/batch", self.batch, "write"),
            ("PUT", "/storage/([0-9a-f]{64})", self.upload, None),
            ("GET HEAD", f"/{name}/resolve/([^/]+)/(.+)", self.resolve, "read"),
        ):
            if ask.command in methods.split() and (found := re.fullmatch(pattern, path)):
                ask.role = self.role(ask.headers)
                parts: list[Any] = [part and unquote(part) for part in found.groups()]
                if access:
                    parts[0] = self.opened(parts[0], ask.role, access)
                return function(ask, *parts)
        raise HubError(404, "Repository not found", "RepoNotFound")

    def role(self, headers: Any) -> str | None:
        token = headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in ("", WRITE, READ):
            raise HubError(401, "Invalid credentials in Authorization header")
        return token or None

    def opened(self, name: str, role: str | None, access: str) -> Repo:
        repo, foreign = self.repos.get(name), name.startswith("foreign/")
        if repo is None or (repo.private and role is None):
            raise HubError(404 if role else 401, "Repository not found", "RepoNotFound")
        if access == "write" and (role != WRITE or foreign):
            raise HubError(403 if role else 401, "Forbidden: a write token is needed")
        return repo

    def create_repo(self, ask: Handler) -> Answer:
        name = f"{ask.asked['organization']}/{ask.asked['name']}"
        if ask.role != WRITE or name.startswith("foreign/"):
            raise HubError(403 if ask.role else 401, "no right to create a model")
        if name in self.repos:
            return as_json({"error": "You already created this model repo", "url": f"{self.url}/{name}"}, 409)
        private = bool(ask.asked.get("private")) or ask.asked.get("visibility") == "private"
        self.create(name, {".gitattributes": b"*.safetensors filter=lfs"}, private=private)
        return as_json({"url": f"{self.url}/{name}", "name": name, "id": name})

    def info(self, ask: Handler, repo: Repo, revision: str | None) -> Answer:
        commit = repo.at(revision or "main")
        facts = {"id": repo.id.removeprefix("datasets/"), "_id": commit, "sha": commit}
        siblings: list[dict[str, Any]] = [{"rfilename": path} for path in repo.trees[commit]]
        for each, data in zip(siblings, repo.trees[commit].values(), strict=True):
            if is_lfs(each["rfilename"], len(data)):
                each["lfs"] = {"sha256": etag(each["rfilename"], data), "size": len(data), "pointerSize": 1}
        return as_json({**facts, "private": repo.private, "siblings": siblings})

    def tree(self, ask: Handler, repo: Repo, revision: str) -> Answer:
        files = repo.trees[repo.at(revision)].items()
        facts = [{"path": path, "oid": etag(path, data), "size": len(data)} for path, data in files]
        return as_json([{"type": "file", **each} for each in facts])

    def log(self, ask: Handler, repo: Repo, branch: str) -> Answer:
        facts = {"authors": [], "date": "2026-01-01T00:00:00.000Z", "title": "", "message": ""}
        return as_json([{"id": sha, **facts} for sha in repo.branches[branch]])

    def branch(self, ask: Handler, repo: Repo, name: str) -> Answer:
        if name in repo.branches:
            raise HubError(409, f"Reference already exists: {name}")
        repo.branches[name] = list(repo.branches["main"])
        return as_json({})

    def preupload(self, ask: Handler, repo: Repo, branch: str) -> Answer:
        tree = repo.trees[repo.at(branch)]
        for file in ask.asked["files"]:
            mode = "lfs" if is_lfs(file["path"], file["size"]) else "regular"
            file |= {"uploadMode": mode, "shouldIgnore": False}
            if (data := tree.get(file["path"])) is not None:
                file["oid"] = etag(file["path"], data)
        return as_json(ask.asked)

    def commit(self, ask: Handler, repo: Repo, branch: str) -> Answer:
        header, *lines = (json.loads(line) for line in ask.body.splitlines() if line.strip())
        if header["value"].get("parentCommit") not in (None, repo.at(branch)):
            raise HubError(412, "A commit has happened since. Please refresh and try again.")
        files = dict(repo.trees[repo.at(branch)])
        for line in lines:
            kind, value = line["key"], line["value"]
            data = self.objects[value["oid"]] if kind == "lfsFile" else value.get("content")
            files[value["path"]] = base64.b64decode(data) if kind == "file" else data
        sha = repo.commit({path: data for path, data in files.items() if data is not None}, branch)
        return as_json({"success": True, "commitOid": sha, "commitUrl": f"{self.url}/{repo.id}/commit/{sha}"})

    def batch(self, ask: Handler, repo: Repo) -> Answer:
        for each in ask.asked["objects"]:
            if each["oid"] not in self.objects:
                each["actions"] = {"upload": {"href": f"{self.url}/storage/{each['oid']}"}}
        return as_json({"transfer": "basic", "objects": ask.asked["objects"]})

    def upload(self, ask: Handler, oid: str) -> Answer:
        self.objects[oid] = ask.body
        return as_json({})

    def resolve(self, ask: Handler, repo: Repo, revision: str, path: str) -> Answer:
        commit = repo.at(revision)
        data = repo.trees[commit].get(path)
        if data is None:
            raise HubError(404, "Entry not found", "EntryNotFound")
        return 200, data, {"X-Repo-Commit": commit, "ETag": f'"{etag(path, data)}"'}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_request(self) -> None:
        hub, path = self.server.hub, urlsplit(self.path).path
        hub.requests.append((self.command, path))
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        kind = self.headers.get("Content-Type", "")
        self.asked = json.loads(self.body or "{}") if kind.endswith("json") and "ndjson" not in kind else None
        fault = next((each for each in hub.faults if each.applies(f"{self.command} {path}")), Fault(""))
        if fault.do:
            fault.do()
        self.close_connection = self.close_connection or bool(fault.cut)
        if fault.cut == "before":
            return
        try:
            if fault.status:
                raise HubError(fault.status, f"fault {fault.status}", fault.code)
            status, data, headers = hub.answer(self, path)
        except HubError as error:
            status, data, headers = error.answer
        if fault.cut == "after":
            return
        data = data if fault.body is None else fault.body
        self.send_response(status)
        # without Retry-After the client waits 1 + 2 + 4 + 8 + 8 s before it gives up
        extra = {"Retry-After": "0"} if status in RETRIED else {}
        for name, value in {**headers, **extra, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_request  # noqa: N815 (http.server's names)

    def log_message(self, *_: Any) -> None:
        pass
