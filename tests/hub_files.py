"""Files going in and out of the test Hub over plain HTTP: Git LFS uploads, resolve, signed links."""

from __future__ import annotations

import hashlib
from math import ceil
from urllib.parse import quote

from .hub_http import HubError, Request, Response, Route, as_json, ranged
from .hub_store import Repo, Store


def resolve(store: Store, request: Request, repo: str, rev: str, path: str) -> Response:
    """Serve a small file, or say where a large one is: a signed link to another host."""
    opened = store.open(repo, request, content=True)
    commit = opened.at(rev)
    headers = {"X-Repo-Commit": commit.sha}
    if path not in commit.files:
        raise HubError(404, "Entry not found", "EntryNotFound", **headers)
    blob = commit.files[path]
    if not blob.lfs:
        return ranged(blob.data, request, headers | {"ETag": f'"{blob.etag}"'})
    headers["Location"] = f"{store.storage_url}/storage/{repo}/{blob.sha256}/{quote(path)}"
    headers |= {"X-Linked-ETag": f'"{blob.sha256}"', "X-Linked-Size": str(len(blob.data))}
    if blob.xet_hash:
        tokens = f"{store.url}/api/models/{repo}/xet-read-token/{commit.sha}"
        headers |= {"X-Xet-Hash": blob.xet_hash, "Link": f'<{tokens}>; rel="xet-auth"'}
    # A redirect's own length and ETag are not the file's: a client that takes them for it fails here.
    return Response(302, b"Found. Redirecting", headers | {"ETag": '"of-the-redirect"'})


def unsigned(request: Request) -> None:
    """Refuse a token sent with a signed link, as S3 does: the client gave it to a host it is not for."""
    if "authorization" in request.headers:
        raise HubError(400, "Only one auth mechanism allowed")


def download(store: Store, request: Request, repo: str, oid: str, path: str) -> Response:
    unsigned(request)
    blobs = store.repos[repo].commits.values()
    data = next((c.files[path].data for c in blobs if path in c.files and c.files[path].sha256 == oid), None)
    if data is None:
        raise HubError(404, "NoSuchKey")
    return ranged(data, request, {"ETag": f'"{oid[:32]}"'})


# --- Git LFS: batch, then PUT (whole or in parts), then verify


def batch(store: Store, request: Request, repo: str) -> Response:
    opened, asked = store.open(repo, request, write=True), request.json()
    objects = []
    for item in asked["objects"]:
        oid, size = item["oid"], item["size"]
        found = {"oid": oid, "size": size, "authenticated": True}
        if oid not in opened.objects:
            found["actions"] = {
                "upload": upload_action(store, repo, oid, size),
                "verify": {"href": f"{store.url}/{repo}.git/info/lfs/verify"},
            }
        objects.append(found)
    return as_json({"transfer": "basic", "objects": objects})


def upload_action(store: Store, repo: str, oid: str, size: int) -> dict[str, object]:
    place = f"{store.storage_url}/storage/{repo}/{oid}"
    if store.part_size is None or size <= store.part_size:
        return {"href": place}
    parts = {str(n + 1): f"{place}/part/{n + 1}" for n in range(ceil(size / store.part_size))}
    header = {"chunk_size": str(store.part_size), **parts}
    return {"href": f"{store.url}/{repo}.git/info/lfs/complete/{oid}", "header": header}


def put(store: Store, request: Request, repo: str, oid: str) -> Response:
    unsigned(request)
    keep(store.repos[repo], oid, request.body)
    return Response(200, b"", {"ETag": f'"{hashlib.md5(request.body).hexdigest()}"'})


def keep(repo: Repo, oid: str, data: bytes) -> None:
    """Store an uploaded object, under the only name it can have."""
    if hashlib.sha256(data).hexdigest() != oid:
        raise HubError(400, f"XAmzContentSHA256Mismatch: the content is not {oid}")
    repo.objects[oid] = data


def put_part(store: Store, request: Request, repo: str, oid: str, number: str) -> Response:
    unsigned(request)
    store.parts[repo, oid, int(number)] = request.body
    return Response(200, b"", {"ETag": f'"{hashlib.md5(request.body).hexdigest()}"'})


def complete(store: Store, request: Request, repo: str, oid: str) -> Response:
    """Join the parts, which the client names by the ETags it was given for them."""
    joined = bytearray()
    for part in request.json()["parts"]:
        data = store.parts.pop((repo, oid, part["partNumber"]), b"")
        if part["etag"].strip('"') != hashlib.md5(data).hexdigest():
            raise HubError(400, f"InvalidPart: {part['partNumber']}")
        joined += data
    keep(store.repos[repo], oid, bytes(joined))
    return Response()


def verify(store: Store, request: Request, repo: str) -> Response:
    opened, asked = store.open(repo, request, write=True), request.json()
    if len(opened.objects.get(asked["oid"], b"")) != asked["size"]:
        raise HubError(404, f"Object {asked['oid']} is not there, or not of {asked['size']} bytes")
    return as_json({"message": "ok"})


ROUTES: list[Route] = [
    ("GET|HEAD", "/{repo}/resolve/{rev}/{path}", resolve),
    ("GET|HEAD", "/storage/{repo}/{oid}/{path}", download),
    ("POST", "/{repo}.git/info/lfs/objects/batch", batch),
    ("PUT", "/storage/{repo}/{oid}", put),
    ("PUT", "/storage/{repo}/{oid}/part/{number}", put_part),
    ("POST", "/{repo}.git/info/lfs/complete/{oid}", complete),
    ("POST", "/{repo}.git/info/lfs/verify", verify),
]
