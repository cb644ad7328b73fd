"""The Hub's API as huggingface_hub asks it: repositories, references, listings, commits."""

from __future__ import annotations

import base64
import json
import posixpath
from typing import Any
from urllib.parse import parse_qs, urlencode

from .hub_http import HubError, Request, Response, Route, as_json
from .hub_store import ATTRIBUTES, Blob, Commit, Repo, Store, card_errors, card_metadata, is_lfs


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


# --- listings


def described(repo: Repo, commit: Commit) -> dict[str, Any]:
    """Return all that the Hub tells of a model; what a card says becomes tags."""
    readme = commit.files.get("README.md")
    try:
        card = (card_metadata(readme.data) if readme else None) or {}
    except ValueError:
        card = {}
    listed = card.get("datasets") or []
    datasets = [listed] if isinstance(listed, str) else listed
    tags = [card.get("library_name"), *(card.get("tags") or []), card.get("pipeline_tag")]
    tags += [f"dataset:{name}" for name in datasets]
    tags += [f"license:{card['license']}"] if "license" in card else []
    created = repo.history("main")[-1].date
    return {
        "_id": commit.sha[:24], "id": repo.id, "modelId": repo.id, "author": repo.namespace,
        "sha": commit.sha, "lastModified": commit.date, "createdAt": created,
        "private": repo.private, "gated": "auto" if repo.gated else False, "disabled": False,
        "downloads": 0, "likes": 0, "tags": list(dict.fromkeys(tag for tag in tags if tag)),
        "library_name": card.get("library_name"), "pipeline_tag": card.get("pipeline_tag"),
        "cardData": card, "siblings": [{"rfilename": path} for path in commit.files],
    }  # fmt: skip


LISTED = ("_id", "id", "modelId", "private", "downloads", "likes", "tags", "createdAt", "pipeline_tag",
          "library_name")  # fmt: skip
FULL = ("author", "sha", "lastModified", "gated", "disabled", "siblings")


def list_models(store: Store, request: Request) -> Response:
    role, ask = store.role(request), request.query
    shown = [described(repo, repo.at("main")) for repo in store.repos.values() if store.sees(repo, role)]
    shown = [model for model in shown if set(ask.get("filter", [])) <= set(model["tags"])]
    if "author" in ask:
        shown = [model for model in shown if model["author"] == ask["author"][0]]
    if "search" in ask:
        shown = [model for model in shown if ask["search"][0].lower() in model["id"].lower()]
    order = ask.get("sort", ["lastModified"])[0]
    shown.sort(key=lambda model: model.get(order) or 0, reverse=True)
    keys = set(LISTED) | (set(FULL) if request.flag("full") else set())
    keys |= {"cardData"} if request.flag("cardData") or request.flag("full") else set()
    keys = {"_id", "id", *ask["expand"]} if "expand" in ask else keys
    return paged(store, request, [{k: v for k, v in model.items() if k in keys} for model in shown])


def paged(store: Store, request: Request, items: list[Any]) -> Response:
    """Answer one page and, in a Link header, where the next one is."""
    start = int(request.query.get("cursor", ["0"])[0])
    stop = start + min(store.page_size, int(request.query.get("limit", [store.page_size])[0]))
    if stop >= len(items):
        return as_json(items[start:stop])
    more = urlencode({**request.query, "cursor": [str(stop)]}, doseq=True)
    return as_json(items[start:stop], Link=f'<{store.url}{request.path}?{more}>; rel="next"')


def model_info(store: Store, request: Request, repo: str, rev: str = "main") -> Response:
    opened = store.open(repo, request)
    commit = opened.at(rev)
    model = described(opened, commit)
    if request.flag("blobs"):
        model["siblings"] = [
            {"rfilename": path, "size": len(blob.data), "blobId": blob.oid} | sibling_lfs(blob)
            for path, blob in commit.files.items()
        ]
    if asked := request.query.get("expand"):
        model = {k: v for k, v in model.items() if k in {"_id", "id", "modelId", *asked}}
    return as_json(model)


def sibling_lfs(blob: Blob) -> dict[str, Any]:
    """Return an LFS file's facts; the hash is `sha256` here, and `oid` in a tree (sic)."""
    facts = {"sha256": blob.sha256, "size": len(blob.data), "pointerSize": len(blob.pointer)}
    return {"lfs": facts} if blob.lfs else {}


def entry(path: str, blob: Blob, commit: Commit, expand: bool) -> dict[str, Any]:
    found = {"type": "file", "oid": blob.oid, "size": len(blob.data), "path": path}
    if blob.lfs:
        found["lfs"] = {"oid": blob.sha256, "size": len(blob.data), "pointerSize": len(blob.pointer)}
    if blob.xet_hash:
        found["xetHash"] = blob.xet_hash
    if expand:
        found["lastCommit"] = {"id": commit.sha, "title": commit.title, "date": commit.date}
    return found


def tree(store: Store, request: Request, repo: str, rev: str, path: str = "") -> Response:
    commit, expand = store.open(repo, request).at(rev), request.flag("expand")
    inside = f"{path}/" if path else ""
    below = {name: blob for name, blob in commit.files.items() if name.startswith(inside)}
    if path and not below:
        raise HubError(404, f"{path} does not exist on {rev}", "EntryNotFound")
    folders, files = set(), []
    for name, blob in sorted(below.items()):
        parts = name.removeprefix(inside).split("/")
        folders |= {inside + "/".join(parts[:depth]) for depth in range(1, len(parts))}
        if len(parts) == 1 or request.flag("recursive"):
            files.append(entry(name, blob, commit, expand))
    direct = {f for f in folders if request.flag("recursive") or "/" not in f.removeprefix(inside)}
    listed = [{"type": "directory", "oid": commit.sha, "size": 0, "path": name} for name in sorted(direct)]
    return paged(store, request, listed + files)


def paths_info(store: Store, request: Request, repo: str, rev: str) -> Response:
    asked, commit = parse_qs(request.body.decode()), store.open(repo, request).at(rev)
    expand = asked.get("expand", ["false"])[0].lower() == "true"
    found = []
    for path in asked.get("paths", []):
        if path in commit.files:
            found.append(entry(path, commit.files[path], commit, expand))
        elif any(name.startswith(f"{path}/") for name in commit.files):
            found.append({"type": "directory", "oid": commit.sha, "size": 0, "path": path})
    return as_json(found)


def commits(store: Store, request: Request, repo: str, rev: str) -> Response:
    return paged(store, request, [
        {"id": c.sha, "title": c.title, "message": c.message, "date": c.date, "authors": [{"user": "tester"}]}
        for c in store.open(repo, request).history(rev)
    ])  # fmt: skip


# --- references


def refs(store: Store, request: Request, repo: str) -> Response:
    opened = store.open(repo, request)

    def listed(kind: str, names: dict[str, str]) -> list[dict[str, str]]:
        return [{"name": n, "ref": f"refs/{kind}/{n}", "targetCommit": sha} for n, sha in names.items()]

    found = {"branches": listed("heads", opened.branches), "tags": listed("tags", opened.tags)}
    return as_json({**found, "converts": [], "pullRequests": []})


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
        path = value["path"]
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
    del store
    data = repo.objects.get(value["oid"])
    if data is None or len(data) != value.get("size", len(data)):
        raise HubError(400, f"LFS pointer pointed to a file that does not exist: {value['path']}")
    return Blob(data, lfs=True)


ROUTES: list[Route] = [
    ("GET", "/api/whoami-v2", whoami),
    ("POST", "/api/validate-yaml", validate_yaml),
    ("POST", "/api/repos/create", create_repo),
    ("DELETE", "/api/repos/delete", delete_repo),
    ("GET", "/api/models", list_models),
    ("GET", "/api/models/{repo}", model_info),
    ("GET", "/api/models/{repo}/revision/{rev}", model_info),
    ("PUT", "/api/models/{repo}/settings", settings),
    ("GET", "/api/models/{repo}/auth-check", auth_check),
    ("GET", "/api/models/{repo}/auth-check/write", auth_check_write),
    ("GET", "/api/models/{repo}/tree/{rev}", tree),
    ("GET", "/api/models/{repo}/tree/{rev}/{path}", tree),
    ("POST", "/api/models/{repo}/paths-info/{rev}", paths_info),
    ("GET", "/api/models/{repo}/commits/{rev}", commits),
    ("GET", "/api/models/{repo}/refs", refs),
    ("POST", "/api/models/{repo}/tag/{rev}", create_tag),
    ("DELETE", "/api/models/{repo}/tag/{tag}", delete_tag),
    ("POST", "/api/models/{repo}/branch/{branch}", create_branch),
    ("DELETE", "/api/models/{repo}/branch/{branch}", delete_branch),
    ("POST", "/api/models/{repo}/preupload/{rev}", preupload),
    ("POST", "/api/models/{repo}/commit/{rev}", commit),
]
