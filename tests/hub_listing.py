"""What the test Hub tells of its repositories: models, their files, their history; data sets, their files.

A data set's name begins with "datasets/" here, as its address does.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlencode

from .hub_http import HubError, Request, Response, Route, as_json
from .hub_store import Blob, Commit, Repo, Store, card_metadata


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
        "_id": commit.sha[:24], "id": repo.id.removeprefix("datasets/"), "modelId": repo.id,
        "author": repo.namespace, "sha": commit.sha, "lastModified": commit.date, "createdAt": created,
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
    shown = [model for model in shown if not model["modelId"].startswith("datasets/")]
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
    if request.flag("blobs") and store.tells_sizes:
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


def refs(store: Store, request: Request, repo: str) -> Response:
    opened = store.open(repo, request)

    def listed(kind: str, names: dict[str, str]) -> list[dict[str, str]]:
        return [{"name": n, "ref": f"refs/{kind}/{n}", "targetCommit": sha} for n, sha in names.items()]

    found = {"branches": listed("heads", opened.branches), "tags": listed("tags", opened.tags)}
    return as_json({**found, "converts": [], "pullRequests": []})


ROUTES: list[Route] = [
    ("GET", "/api/models", list_models),
    ("GET", "/api/models/{repo}", model_info),
    ("GET", "/api/models/{repo}/revision/{rev}", model_info),
    ("GET", "/api/models/{repo}/tree/{rev}", tree),
    ("GET", "/api/models/{repo}/tree/{rev}/{path}", tree),
    ("POST", "/api/models/{repo}/paths-info/{rev}", paths_info),
    ("GET", "/api/models/{repo}/commits/{rev}", commits),
    ("GET", "/api/models/{repo}/refs", refs),
    ("GET", "/api/(?P<repo>datasets/[^/]+/[^/]+)", model_info),
    ("GET", "/api/(?P<repo>datasets/[^/]+/[^/]+)/revision/{rev}", model_info),
    ("GET", "/api/(?P<repo>datasets/[^/]+/[^/]+)/tree/{rev}", tree),
]
