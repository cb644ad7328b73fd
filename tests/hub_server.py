"""A Hugging Face Hub for tests: real HTTP on loopback, spoken to by the real huggingface_hub client.

One per process. tests/conftest.py makes it before huggingface_hub is imported, because the client reads
`HF_ENDPOINT` and its like once, on import. Tests take the fixture `hub`. Large files travel by Git LFS.
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
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

WRITE, READ = "hf_write", "hf_read"
# A user's own settings: none of them may reach a test.
FOREIGN_SETTINGS = (
    *("HF_TOKEN", "HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"),
    *("HF_XET_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_ASSETS_CACHE"),
)
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
        self.answer = as_json(
            {"error": message}, status, **{"X-Error-Code": code, "X-Error-Message": message}
        )


def as_json(data: Any, status: int = 200, **headers: str) -> Answer:
    body = json.dumps(data, default=str).encode()  # dates of YAML become text, as on the Hub
    return status, body, {"Content-Type": "application/json", **headers}


def is_lfs(path: str, data: bytes) -> bool:
    return bool(data) and (path.endswith((".safetensors", ".png")) or len(data) > 10_000_000)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def facts(path: str, data: bytes) -> dict[str, Any]:
    """Return what the Hub lists of a file; an LFS file's git object is its pointer, here only by name."""
    git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    return {"oid": git, "size": len(data), **({"sha": sha256(data)} if is_lfs(path, data) else {})}


@dataclass
class Repo:
    id: str
    private: bool = False
    gated: bool = False
    trees: dict[str, dict[str, bytes]] = field(default_factory=dict)  # commit -> path -> content
    parents: dict[str, str | None] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        parent = self.branches.get(branch)
        sha = hashlib.sha1(f"{self.id} {branch} {len(self.trees)} {os.urandom(8).hex()}".encode()).hexdigest()
        self.trees[sha], self.parents[sha], self.branches[branch] = dict(files), parent, sha
        return sha

    def at(self, revision: str) -> str:
        sha = self.branches.get(revision) or self.tags.get(revision) or revision
        if sha not in self.trees:
            raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return sha


@dataclass
class Fault:
    """What goes wrong with the next `times` requests that match, after `skip` that do not; see Hub.fault."""

    match: str
    status: int | None = None
    times: int = 1
    skip: int = 0
    body: bytes | None = None
    cut: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    do: Callable[[], object] | None = None

    def applies(self, request: str) -> bool:
        if self.times <= 0 or not re.search(self.match, request):
            return False
        self.skip -= 1
        self.times -= self.skip < 0
        return self.skip < 0


class Hub:
    """The server of this process, and a test's view behind the client's back.

    Attributes:
        url: address, as in HF_ENDPOINT.
        token, read_token: accepted tokens, for writing and for reading only; not in the namespace "foreign".
        repos: the repositories; a data set's name begins with "datasets/".
        requests: (method, path without query) so far.
        home: HF_HOME of this process and its children; emptied by `reset`.
    """

    token, read_token = WRITE, READ

    def __init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads, self._server.hub = True, self  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.home = Path(tempfile.mkdtemp(prefix="zoo-hub-"))
        atexit.register(shutil.rmtree, self.home, ignore_errors=True)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self._forget()

    def _forget(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.objects: dict[str, bytes] = {}  # uploaded by LFS, by SHA-256
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str]] = []

    def set_environment(self) -> None:
        """Point huggingface_hub, when it is imported later, and child processes at this server."""
        assert "huggingface_hub" not in sys.modules, "its settings are read on import: too late"
        for name in FOREIGN_SETTINGS:
            os.environ.pop(name, None)
        os.environ |= {**SETTINGS, "HF_ENDPOINT": self.url, "HF_HOME": str(self.home)}

    def reset(self) -> None:
        """Become an empty Hub without faults, and empty the client's caches."""
        self._forget()
        for path in self.home.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        # Otherwise the client asks the Hub for a list of coding agents, once a day.
        (self.home / ".agent_harnesses.json").write_text('{"harnesses": {}, "standardEnvVars": []}')

    def create(self, repo_id: str, files: dict[str, bytes], **options: bool) -> str:
        """Make `files` the content of a repository behind the client's back, and return the commit.

        A repository that exists gets one more commit. Options: `private`, `gated`.
        """
        repo = self.repos.setdefault(repo_id, Repo(repo_id))
        vars(repo).update(options)
        return repo.commit(files)

    def edit(self, repo_id: str, **files: bytes | None) -> str:
        """Change files on the branch main as a colleague does; None removes one. "__" stands for "."."""
        found = self.files(repo_id) | {name.replace("__", "."): data for name, data in files.items()}
        return self.create(repo_id, {name: data for name, data in found.items() if data is not None})

    def files(self, repo_id: str, revision: str = "main") -> dict[str, bytes]:
        """Return path -> content at a revision."""
        return dict(self.repos[repo_id].trees[self.repos[repo_id].at(revision)])

    def commits(self, repo_id: str, revision: str = "main") -> list[str]:
        """Return a revision's history, newest first; a repository's creation is a commit too."""
        found, sha = [], self.repos[repo_id].at(revision)
        while sha:
            found.append(sha)
            sha = self.repos[repo_id].parents[sha]  # type: ignore[assignment]
        return found

    def tags(self, repo_id: str) -> dict[str, str]:
        return dict(self.repos[repo_id].tags)

    def fault(self, match: str, status: int | None = None, **what: Any) -> None:
        """Let something go wrong with coming requests; see `Fault`.

        Args:
            match: expression searched in "METHOD path" (quoted, no query).
            status: answer this instead of doing anything.
            what: `times`, `skip`; `body` and `headers` of the answer; `cut` the connection "before" or
                "after" the request is answered; `do` something first.
        """
        self.faults.append(Fault(match, status, **what))

    def mend(self) -> None:
        """Let nothing go wrong any more."""
        self.faults.clear()

    # --- who may do what

    def role(self, headers: Any) -> str | None:
        token = headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in ("", WRITE, READ):
            raise HubError(401, "Invalid credentials in Authorization header")
        return token or None

    def open(self, name: str, headers: Any, *, write: bool = False, content: bool = False) -> Repo:
        role, repo = self.role(headers), self.repos.get(name)
        foreign = name.startswith("foreign/")
        if repo is None or (repo.private and (role is None or foreign)):
            raise HubError(404 if role else 401, "Repository not found", "RepoNotFound")
        if write and (role != WRITE or foreign):
            raise HubError(403 if role else 401, "Forbidden: a write token is needed")
        if content and repo.gated and (role is None or foreign):
            raise HubError(403 if role else 401, f"Access to model {name} is restricted.", "GatedRepo")
        return repo

    # --- the API: (methods, expression for the path) -> answer

    def answer(self, method: str, url: str, headers: Any, body: bytes) -> Answer:
        parts, query = urlsplit(url), parse_qs(urlsplit(url).query)
        name = r"((?:datasets/)?[^/]+/[^/]+)"
        for methods, pattern, function in (
            ("GET", "/api/models", self.list_models),
            ("POST", "/api/validate-yaml", self.validate),
            ("POST", "/api/repos/create", self.create_repo),
            ("GET", f"/api/(?:models/)?{name}(?:/revision/([^/]+))?", self.info),
            ("GET", f"/api/(?:models/)?{name}/tree/([^/]+)", self.tree),
            ("GET", f"/api/models/{name}/refs", self.refs),
            ("POST", f"/api/models/{name}/(tag|branch)/([^/]+)", self.reference),
            ("POST", f"/api/models/{name}/(preupload|commit)/([^/]+)", self.commit),
            ("POST", rf"/{name}\.git/info/lfs/objects/batch", self.batch),
            ("PUT", "/storage/([0-9a-f]{64})", self.upload),
            ("GET HEAD", f"/{name}/resolve/([^/]+)/(.+)", self.resolve),
        ):
            if method in methods.split() and (found := re.fullmatch(pattern, parts.path)):
                return function(headers, query, body, *(part and unquote(part) for part in found.groups()))
        raise HubError(404, "Repository not found", "RepoNotFound")

    def described(self, repo: Repo, sha: str) -> dict[str, Any]:
        found = re.match(rb"---\n(.*?)\n---", repo.trees[sha].get("README.md", b""), re.DOTALL)
        card = yaml.safe_load(found[1]) if found else {}
        return {
            **{"_id": sha, "id": repo.id.removeprefix("datasets/"), "modelId": repo.id, "sha": sha},
            **{"lastModified": "2026-01-01T00:00:00.000Z", "private": repo.private, "gated": repo.gated},
            **{"tags": card.get("tags", []), "cardData": card},
        }

    def list_models(self, headers: Any, query: dict[str, list[str]], body: bytes) -> Answer:
        role = self.role(headers)
        seen = [r for r in self.repos.values() if (role or not r.private) and "datasets/" not in r.id]
        found = [self.described(repo, repo.at("main")) for repo in seen]
        org, tags = query["author"][0], {*query.get("filter", [])}
        shown = [each for each in found if each["id"].startswith(f"{org}/") and tags <= {*each["tags"]}]
        return as_json(shown)

    def validate(self, headers: Any, query: Any, body: bytes) -> Answer:
        content = json.loads(body)["content"]
        data = yaml.safe_load(content.split("---\n")[1]) if content.startswith("---\n") else {}
        sound = isinstance(data, dict) and isinstance(data.get("license", ""), str)
        errors = [] if sound else [{"message": "metadata are not of the Hub's form"}]
        return as_json({"errors": errors, "warnings": []}, 400 if errors else 200)

    def create_repo(self, headers: Any, query: Any, body: bytes) -> Answer:
        asked = json.loads(body)
        name, role = f"{asked['organization']}/{asked['name']}", self.role(headers)
        if role != WRITE or name.startswith("foreign/"):
            raise HubError(403 if role else 401, "You don't have the rights to create a model")
        if name in self.repos:
            raise HubError(409, "You already created this model repo")
        private = bool(asked.get("private")) or asked.get("visibility") == "private"
        self.create(name, {".gitattributes": b"*.safetensors filter=lfs\n"}, private=private)
        return as_json({"url": f"{self.url}/{name}", "name": name, "id": name})

    def info(self, headers: Any, query: Any, body: bytes, name: str, revision: str | None) -> Answer:
        repo = self.open(name, headers)
        sha = repo.at(revision or "main")
        files = [(path, facts(path, data)) for path, data in repo.trees[sha].items()]
        siblings = [
            {"rfilename": path, "size": each["size"], "blobId": each["oid"]}
            | (
                {"lfs": {"sha256": each["sha"], "size": each["size"], "pointerSize": 1}}
                if "sha" in each
                else {}
            )
            for path, each in files
        ]
        return as_json({**self.described(repo, sha), "siblings": siblings})

    def tree(self, headers: Any, query: Any, body: bytes, name: str, revision: str) -> Answer:
        repo = self.open(name, headers)
        files = [(path, facts(path, data)) for path, data in repo.trees[repo.at(revision)].items()]
        return as_json([
            {"type": "file", "path": path, "oid": each["oid"], "size": each["size"]}
            | ({"lfs": {"oid": each["sha"], "size": each["size"], "pointerSize": 1}} if "sha" in each else {})
            for path, each in files
        ])  # fmt: skip

    def refs(self, headers: Any, query: Any, body: bytes, name: str) -> Answer:
        repo = self.open(name, headers)
        named = [
            [{"name": ref, "ref": f"refs/{kind}/{ref}", "targetCommit": sha} for ref, sha in known.items()]
            for kind, known in (("heads", repo.branches), ("tags", repo.tags))
        ]
        return as_json({"branches": named[0], "tags": named[1], "converts": []})

    def reference(self, headers: Any, query: Any, body: bytes, name: str, kind: str, ref: str) -> Answer:
        repo, asked = self.open(name, headers, write=True), json.loads(body or b"{}")
        known = repo.tags if kind == "tag" else repo.branches
        new = asked["tag"] if kind == "tag" else ref
        if new in known:
            raise HubError(409, f"Reference exists already: {new}")
        known[new] = repo.at(ref if kind == "tag" else asked.get("startingPoint") or "main")
        return as_json({})

    def commit(self, headers: Any, query: Any, body: bytes, name: str, kind: str, branch: str) -> Answer:
        repo = self.open(name, headers, write=True)
        files = dict(repo.trees[repo.at(branch)])
        if kind == "preupload":
            asked = json.loads(body)["files"]
            modes = [(f["path"], "lfs" if is_lfs(f["path"], bytes(f["size"])) else "regular") for f in asked]
            return as_json({"files": [
                {"path": path, "uploadMode": mode, "shouldIgnore": False} for path, mode in modes
            ]})  # fmt: skip
        header, *lines = (json.loads(line) for line in body.splitlines() if line.strip())
        if header["value"].get("parentCommit") not in (None, repo.branches[branch]):
            raise HubError(412, "A commit has happened since. Please refresh and try again.")
        for line in lines:
            path, value = line["value"]["path"], line["value"]
            if line["key"] == "deletedFile":
                del files[path]
            else:
                lfs = line["key"] == "lfsFile"
                files[path] = self.objects[value["oid"]] if lfs else base64.b64decode(value["content"])
        sha = repo.commit(files, branch)
        return as_json({"success": True, "commitOid": sha, "commitUrl": f"{self.url}/{name}/commit/{sha}"})

    def batch(self, headers: Any, query: Any, body: bytes, name: str) -> Answer:
        self.open(name, headers, write=True)
        objects = [
            {**each, "actions": {"upload": {"href": f"{self.url}/storage/{each['oid']}"}}}
            if each["oid"] not in self.objects
            else each
            for each in json.loads(body)["objects"]
        ]
        return as_json({"transfer": "basic", "objects": objects})

    def upload(self, headers: Any, query: Any, body: bytes, oid: str) -> Answer:
        if sha256(body) != oid:
            raise HubError(400, "the content is not what its name says")
        self.objects[oid] = body
        return as_json({})

    def resolve(self, headers: Any, query: Any, body: bytes, name: str, revision: str, path: str) -> Answer:
        repo = self.open(name, headers, content=True)
        sha = repo.at(revision)
        data = repo.trees[sha].get(path)
        if data is None:
            raise HubError(404, "Entry not found", "EntryNotFound")
        each = facts(path, data)
        found = re.fullmatch(r"bytes=(\d+)-", headers.get("Range") or "")
        start = int(found[1]) if found else 0
        named = {"X-Repo-Commit": sha, "ETag": f'"{each.get("sha", each["oid"])}"', "Accept-Ranges": "bytes"}
        return 206 if found else 200, data[start:], named


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_request(self) -> None:
        hub: Hub = self.server.hub  # type: ignore[attr-defined]
        path = urlsplit(self.path).path
        hub.requests.append((self.command, path))
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = next((each for each in hub.faults if each.applies(f"{self.command} {path}")), Fault(""))
        if fault.do:
            fault.do()
        self.close_connection = self.close_connection or bool(fault.cut)
        if fault.cut == "before":
            return
        try:
            if fault.status:
                raise HubError(fault.status, f"fault {fault.status}", fault.headers.get("X-Error-Code", ""))
            status, data, headers = hub.answer(self.command, self.path, self.headers, body)
        except HubError as error:
            status, data, headers = error.answer
        if fault.cut == "after":
            return
        data = data if fault.body is None else fault.body
        self.send_response(status)
        # without Retry-After the client waits 1 + 2 + 4 + 8 + 8 s before it gives up
        extra = {"Retry-After": "0"} if status in RETRIED else {}
        for name, value in {**headers, **extra, **fault.headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_request  # noqa: N815 (http.server's names)

    def log_message(self, *_: Any) -> None:
        pass
