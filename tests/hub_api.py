"""The test Hub's API that changes something: repositories, references, commits."""

from __future__ import annotations

import base64
import json
import posixpath
from typing import Any

from .hub_http import HubError, Request, Response, Route, as_json
from .hub_store import ATTRIBUTES, Blob, Repo, Store, card_errors, card_metadata, is_lfs


def whoami(store: Store, request: Request) -> Response:
    role = store.role(request)
    if role is None:
        raise HubError(401, "Invalid username or password.")
    orgs = sorted({repo.namespace for repo in store.repos.values()} - store.foreign)
    member = [{"type": "org", "name": name, "fullname": name, "roleInOrg": "write"} for name in orgs]
    token = {"type": "access_token", "accessToken": {"displayName": "test", "role": role}}
    return as_json({"type": "user", "name": "tester", "fullname": "Tester", "orgs": member, "auth": token})


def validate_yaml(store: Store, request: Request) -> Response:
    del store
    try:
        data = card_metadata(request.json()["content"].encode())
    except ValueError as error:
        return as_json({"errors": [{"message": str(error)}], "warnings": []}, 400)
    warnings = [] if data else [{"message": "empty or missing yaml metadata in repo card"}]
    errors = [{"message": text} for text in card_errors(data or {})]
    return as_json({"errors": errors, "warnings": warnings}, 400 if errors else 200)


# --- repositories


def create_repo(store: Store, request: Request) -> Response:
    asked = request.json()
    name = f"{asked.get('organization') or 'tester'}/{asked['name']}"
    store.check_write(store.role(request), name.split("/")[0])
    answer = {"url": f"{store.url}/{name}", "name": name, "id": name}
    if name in store.repos:
        return as_json({"error": "You already created this model repo", **answer}, 409)
    private = asked.get("private", False) or asked.get("visibility") == "private"
    repo = store.create(name, private=private)
    repo.commit({".gitattributes": Blob(ATTRIBUTES, lfs=False)}, "initial commit")  # as the Hub does
    return as_json(answer)


def delete_repo(store: Store, request: Request) -> Response:
    asked = request.json()
    repo = store.open(f"{asked.get('organization') or 'tester'}/{asked['name']}", request, write=True)
    del store.repos[repo.id]
    return Response()


def settings(store: Store, request: Request, repo: str) -> Response:
    opened, asked = store.open(repo, request, write=True), request.json()
    opened.gated = bool(asked.get("gated", opened.gated))
    opened.private = asked.get("visibility", "private" if opened.private else "public") == "private"
    return as_json({"private": opened.private, "gated": opened.gated})


def auth_check(store: Store, request: Request, repo: str) -> Response:
    store.open(repo, request, content=True)
    return Response()


def auth_check_write(store: Store, request: Request, repo: str) -> Response:
    store.open(repo, request, write=True)
    return Response()


# --- references


def create_tag(store: Store, request: Request, repo: str, rev: str) -> Response:
    opened, name = store.open(repo, request, write=True), request.json()["tag"]
    if name in opened.tags:
        raise HubError(409, f"Tag reference exists already: {name}")
    opened.tags[name] = opened.at(rev).sha
    return Response()


def delete_tag(store: Store, request: Request, repo: str, tag: str) -> Response:
    if store.open(repo, request, write=True).tags.pop(tag, None) is None:
        raise HubError(404, f"Invalid rev id: {tag}", "RevisionNotFound")
    return Response()


def create_branch(store: Store, request: Request, repo: str, branch: str) -> Response:
    opened = store.open(repo, request, write=True)
    if branch in opened.branches:
        raise HubError(409, f"Reference already exists: {branch}")
    opened.branches[branch] = opened.at(request.json().get("startingPoint") or "main").sha
    return Response()


def delete_branch(store: Store, request: Request, repo: str, branch: str) -> Response:
    opened = store.open(repo, request, write=True)
    if branch == "main":
        raise HubError(403, "Cannot delete the main branch")
    if opened.branches.pop(branch, None) is None:
        raise HubError(404, f"Invalid rev id: {branch}", "RevisionNotFound")
    return Response()


# --- commits


def preupload(store: Store, request: Request, repo: str, rev: str) -> Response:
    opened = store.open(repo, request, write=True)
    present = opened.at(rev).files
    return as_json({"files": [
        {
            "path": file["path"], "shouldIgnore": False,
            "uploadMode": "lfs" if is_lfs(file["path"], file["size"]) else "regular",
            # What is there already, so that a client leaves an unchanged file out of its commit.
            **({"oid": present[file["path"]].etag} if file["path"] in present else {}),
        }
        for file in request.json()["files"]
    ]})  # fmt: skip


def commit(store: Store, request: Request, repo: str, rev: str) -> Response:
    """Apply one commit's operations, all or none."""
    opened = store.open(repo, request, write=True)
    if rev not in opened.branches:
        raise HubError(404, f"Invalid rev id: {rev}", "RevisionNotFound")
    lines = [json.loads(line) for line in request.body.splitlines() if line.strip()]
    header = lines[0]["value"]
    if header.get("parentCommit") not in (None, opened.branches[rev]):
        raise HubError(412, "A commit has happened since. Please refresh and try again.")
    files = dict(opened.at(rev).files)
    for line in lines[1:]:
        kind, value = line["key"], line["value"]
        path = value["path"].removesuffix("/")  # a folder to delete comes with its slash
        if path != posixpath.normpath(path) or path.startswith(("/", "../")):
            raise HubError(400, f"Invalid path in repo: {path}")
        if kind == "file":
            files[path] = Blob(base64.b64decode(value["content"]), lfs=False)
        elif kind == "lfsFile":
            files[path] = uploaded(store, opened, value)
        else:
            gone = [path] if kind == "deletedFile" else [n for n in files if n.startswith(f"{path}/")]
            if not gone or not set(gone) <= set(files):
                raise HubError(404, f"A file with this name doesn't exist: {path}", "EntryNotFound")
            for name in gone:
                del files[name]
    made = opened.commit(files, header["summary"], header.get("description", ""), rev)
    address = f"{store.url}/{repo}/commit/{made.sha}"
    return as_json({"success": True, "commitOid": made.sha, "commitUrl": address, "hookOutput": ""})


def uploaded(store: Store, repo: Repo, value: dict[str, Any]) -> Blob:
    """Return the blob of an lfsFile line, whose content must be there in the size it says."""
    data, file = repo.objects.get(value["oid"]), store.cas.names.get(value["oid"])
    if data is None and file is not None:
        data = store.cas.content(file)
    if data is None or len(data) != value.get("size", len(data)):
        raise HubError(400, f"LFS pointer pointed to a file that does not exist: {value['path']}")
    return Blob(data, lfs=True, xet_hash=file)


ROUTES: list[Route] = [
    ("GET", "/api/whoami-v2", whoami),
    ("POST", "/api/validate-yaml", validate_yaml),
    ("POST", "/api/repos/create", create_repo),
    ("DELETE", "/api/repos/delete", delete_repo),
    ("PUT", "/api/models/{repo}/settings", settings),
    ("GET", "/api/models/{repo}/auth-check", auth_check),
    ("GET", "/api/models/{repo}/auth-check/write", auth_check_write),
    ("POST", "/api/models/{repo}/tag/{rev}", create_tag),
    ("DELETE", "/api/models/{repo}/tag/{tag}", delete_tag),
    ("POST", "/api/models/{repo}/branch/{branch}", create_branch),
    ("DELETE", "/api/models/{repo}/branch/{branch}", delete_branch),
    ("POST", "/api/models/{repo}/preupload/{rev}", preupload),
    ("POST", "/api/models/{repo}/commit/{rev}", commit),
]
