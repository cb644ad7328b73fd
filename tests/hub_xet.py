"""Files going in and out of the test Hub over Xet: tokens from the Hub, and the CAS API.

After the public specification, https://huggingface.co/docs/xet. What counts on a Hub, every file's SHA-256
and size, is computed from the decoded chunks. hf_xet 1.8 first asks for newer ways (upload grants, version 2
of shards and reconstructions), and goes the specified way where a CAS answers 404, as not all have them.
"""

from __future__ import annotations

import hashlib
import re
import time

from .hub_cas import Cas, chunks_of, shard_files
from .hub_http import HubError, Request, Response, Route, as_json, ranged
from .hub_store import Store

TOKEN_SECONDS = 3600


# --- the Hub's part: tokens


def token(store: Store, request: Request, repo: str, kind: str, rev: str) -> Response:
    """Answer a short-lived token for the CAS, which takes no token of the Hub's."""
    opened = store.open(repo, request, write=kind == "write", content=True)
    opened.at(rev)
    address, expires = f"{store.url}/cas", int(time.time()) + TOKEN_SECONDS
    facts = {"accessToken": f"xet_{kind}", "exp": expires, "casUrl": address}
    headers = {"X-Xet-Access-Token": f"xet_{kind}", "X-Xet-Token-Expiration": str(expires)}
    response = as_json(facts)
    response.headers |= headers | {"X-Xet-Cas-Url": address}
    return response


# --- the CAS


def check(store: Store, request: Request, *, write: bool = False) -> Cas:
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    if given not in {"xet_read", "xet_write"}:
        raise HubError(401, "no token for the CAS")
    if write and given != "xet_write":
        raise HubError(403, "the token's scope is reading")
    return store.cas


def put_xorb(store: Store, request: Request, xorb: str) -> Response:
    cas = check(store, request, write=True)
    fresh = xorb not in cas.xorbs
    cas.chunks[xorb] = list(chunks_of(request.body))
    cas.xorbs[xorb] = request.body
    return as_json({"was_inserted": fresh})


def put_shard(store: Store, request: Request) -> Response:
    cas = check(store, request, write=True)
    for file, terms, sizes, sha256 in shard_files(request.body):
        for term, size in zip(terms, sizes, strict=True):
            known = cas.chunks.get(term.xorb, [])
            if not 0 <= term.first < term.last <= len(known):
                raise HubError(400, f"chunks {term.first}-{term.last} of {term.xorb} are not here")
            if sum(len(chunk.data) for chunk in known[term.first : term.last]) != size:
                raise HubError(400, f"a term of {file} is not of {size} bytes")
        cas.files[file] = terms
        true = hashlib.sha256(cas.content(file)).hexdigest()
        if sha256 != true:
            del cas.files[file]
            raise HubError(400, f"the content of {file} has SHA-256 {true}, not {sha256}")
        cas.names[true] = file
    return as_json({"result": 1})


def unknown(store: Store, request: Request, path: str) -> Response:
    check(store, request)
    raise HubError(404, f"no such resource: {path}")


def known_chunk(store: Store, request: Request, prefix: str, chunk: str) -> Response:
    """Global deduplication: no chunk is told of, so that clients send all they have."""
    check(store, request)
    raise HubError(404, f"chunk {prefix}/{chunk} is not tracked")


def reconstruction(store: Store, request: Request, file: str) -> Response:
    """Say which chunks make up a file, or the part of it in a Range header, and where they are."""
    cas = check(store, request)
    if file not in cas.files:
        raise HubError(404, f"no file {file}")
    asked = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("range", "bytes=0-"))
    size = sum(len(c.data) for t in cas.files[file] for c in cas.chunks[t.xorb][t.first : t.last])
    if asked is None or int(asked[1]) >= max(size, 1):
        raise HubError(416, "the range starts beyond the file's end")
    start, stop = int(asked[1]), int(asked[2] or size) + 1
    offset, place = None, 0
    terms: list[dict[str, object]] = []
    fetch: dict[str, list[dict[str, object]]] = {}
    for term in cas.files[file]:
        wanted = []
        for index in range(term.first, term.last):
            length = len(cas.chunks[term.xorb][index].data)
            if place < stop and place + length > start:
                wanted.append(index)
                offset = start - place if offset is None else offset
            place += length
        if not wanted:
            continue
        first, last = cas.chunks[term.xorb][wanted[0]], cas.chunks[term.xorb][wanted[-1]]
        span = {"start": wanted[0], "end": wanted[-1] + 1}
        length = sum(len(cas.chunks[term.xorb][index].data) for index in wanted)
        terms.append({"hash": term.xorb, "unpacked_length": length, "range": span})
        # The byte range includes its end, unlike all others.
        where = {"start": first.start, "end": last.stop - 1}
        url = f"{store.storage_url}/xorbs/{term.xorb}"
        fetch.setdefault(term.xorb, []).append({"range": span, "url": url, "url_range": where})
    return as_json({"offset_into_first_range": offset or 0, "terms": terms, "fetch_info": fetch})


def xorb_data(store: Store, request: Request, xorb: str) -> Response:
    """Serve part of a xorb at a signed link, which holds for a range only."""
    if "range" not in request.headers:
        raise HubError(403, "the link was signed for a range")
    if xorb not in store.cas.xorbs:
        raise HubError(404, "NoSuchKey")
    return ranged(store.cas.xorbs[xorb], request, {})


ROUTES: list[Route] = [
    ("GET", "/api/models/{repo}/xet-(?P<kind>read|write)-token/{rev}", token),
    ("POST", "/cas/v1/xorbs/default/{xorb}", put_xorb),
    ("POST", "/cas/v1/shards", put_shard),
    ("GET", "/cas/v1/chunks/{prefix}/{chunk}", known_chunk),
    ("GET", "/cas/v1/reconstructions/{file}", reconstruction),
    ("GET|POST|PUT", "/cas/{path}", unknown),
    ("GET", "/xorbs/{xorb}", xorb_data),
]
