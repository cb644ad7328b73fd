"""The test Hub over Xet, driven by huggingface_hub with hf_xet, the Rust client."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import CommitOperationAdd, HfApi, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError

from .hub_cas import Chunk
from .hub_server import Hub

pytest.importorskip("hf_xet")
pytest.importorskip("lz4")

REPO, NAME = "org/name", "model.safetensors"


@pytest.fixture
def api(hub: Hub) -> HfApi:
    hub.transport = "xet"
    api = HfApi(token=hub.token)
    api.create_repo(REPO)
    return api


def noise(size: int = 300_000) -> bytes:
    """Return content that no test before has sent, and that does not compress."""
    return random.SystemRandom().randbytes(size)


def push(api: HfApi, data: bytes, name: str = NAME) -> str:
    operations = [CommitOperationAdd(name, data), CommitOperationAdd("config.json", b"{}")]
    return str(api.create_commit(REPO, operations, commit_message="push").oid)


def asked(hub: Hub, what: str) -> int:
    return len([1 for method, path in hub.requests if what in f"{method} {path}"])


def test_weights_of_20_megabytes_go_over_xet_and_come_back_both_ways(hub: Hub, api: HfApi) -> None:
    numbers = np.random.default_rng(0).standard_normal(4_000_000).astype(np.float32)
    data = numbers.tobytes() + noise(2_000_000) + b"the same words " * 150_000
    assert len(data) > 20_000_000
    push(api, data)
    assert hub.files(REPO)[NAME] == data
    assert asked(hub, "PUT ") == 0
    assert Path(hf_hub_download(REPO, NAME)).read_bytes() == data
    assert asked(hub, "/v1/reconstructions/") > 4  # the client asks for 4 MB at a time
    assert asked(hub, "GET /xorbs/") > 0
    assert asked(hub, "GET /storage/") == 0
    schemes = Counter(xorb[c.start + 4] for h, xorb in hub.store.cas.xorbs.items() for c in chunks(hub, h))
    assert set(schemes) == {0, 1, 2}  # stored, LZ4, and LZ4 of grouped bytes have all been decoded
    hub.transport = "lfs"
    plain = hf_hub_download(REPO, NAME, cache_dir=hub.home / "plain")
    assert Path(plain).read_bytes() == data
    assert asked(hub, f"GET /storage/{REPO}/{hashlib.sha256(data).hexdigest()}") == 1


def chunks(hub: Hub, xorb: str) -> list[Chunk]:
    return hub.store.cas.chunks[xorb]


def test_small_files_go_in_the_commit_and_large_ones_know_their_xet_hash(hub: Hub, api: HfApi) -> None:
    push(api, noise())
    (weights, config) = api.get_paths_info(REPO, [NAME, "config.json"])
    assert weights.xet_hash in hub.store.cas.files
    assert weights.lfs.sha256 == hashlib.sha256(hub.files(REPO)[NAME]).hexdigest()
    assert config.xet_hash is None


def test_a_changed_file_sends_only_its_new_chunks(hub: Hub, api: HfApi) -> None:
    old = noise(3_000_000)
    push(api, old)
    first = sum(map(len, hub.store.cas.xorbs.values()))
    new = old[:2_000_000] + noise(1000) + old[2_000_000:]
    push(api, new)
    assert hub.files(REPO)[NAME] == new
    assert sum(map(len, hub.store.cas.xorbs.values())) - first < 500_000
    assert Path(hf_hub_download(REPO, NAME)).read_bytes() == new


def test_a_new_hub_knows_nothing_of_what_an_old_one_had(hub: Hub, api: HfApi) -> None:
    data = noise()
    push(api, data)
    hub.reset()
    hub.transport = "xet"
    api.create_repo(REPO)
    push(api, data)
    assert Path(hf_hub_download(REPO, NAME)).read_bytes() == data


def test_content_that_is_not_what_its_sha256_says_is_refused(hub: Hub, api: HfApi) -> None:
    wrong = CommitOperationAdd(NAME, noise())
    wrong.upload_info.sha256 = bytes(32)
    with pytest.raises(Exception, match="400 Bad Request"):
        api.create_commit(REPO, [wrong], commit_message="wrong")
    assert hub.store.cas.files == {}
    assert len(hub.commits(REPO)) == 1


def test_a_file_made_behind_the_clients_back_comes_over_plain_http(hub: Hub, api: HfApi) -> None:
    data = noise()
    hub.create(REPO, {NAME: data})
    assert Path(hf_hub_download(REPO, NAME)).read_bytes() == data
    assert asked(hub, "GET /storage/") == 1


def test_a_token_for_reading_reads_a_private_file_and_writes_none(hub: Hub, api: HfApi) -> None:
    api.create_repo("org/private", private=True)
    data = noise()
    api.upload_file(path_or_fileobj=data, path_in_repo=NAME, repo_id="org/private")
    fetched = hf_hub_download("org/private", NAME, token=hub.read_token)
    assert Path(fetched).read_bytes() == data
    assert asked(hub, "GET /xorbs/") == 1
    with pytest.raises(HfHubHTTPError) as caught:
        push(HfApi(token=hub.read_token), noise())
    assert caught.value.response.status_code == 403


@pytest.mark.parametrize("kind", ["status", "cut"])
def test_an_upload_that_fails_once_is_sent_again(hub: Hub, api: HfApi, kind: str) -> None:
    hub.fault("POST .*/v1/xorbs/", **({"status": 503} if kind == "status" else {"cut_after": 1000}))
    hub.fault("POST .*/v1/shards", status=500)
    data = noise()
    push(api, data)
    assert (asked(hub, "/v1/xorbs/"), asked(hub, "/v1/shards")) == (2, 2)
    assert hub.files(REPO)[NAME] == data


@pytest.mark.parametrize("kind", ["status", "cut"])
def test_an_upload_that_always_fails_is_an_oserror_and_commits_nothing(
    hub: Hub, api: HfApi, kind: str
) -> None:
    """Not an HfHubHTTPError: hf_xet raises Python's own ConnectionError."""
    hub.fault(
        "POST .*/v1/xorbs/", times=100, **({"status": 503} if kind == "status" else {"cut_after": 1000})
    )
    with pytest.raises(ConnectionError, match="/v1/xorbs/default/"):
        push(api, noise())
    assert asked(hub, "/v1/xorbs/") == 6
    assert len(hub.commits(REPO)) == 1


def test_a_hub_without_xet_fails_the_push(hub: Hub, api: HfApi) -> None:
    hub.fault("GET .*/xet-write-token/", status=404, times=100)
    with pytest.raises(ConnectionError, match="404 Not Found"):
        push(api, noise())


def test_a_download_that_breaks_is_fetched_again(hub: Hub, api: HfApi) -> None:
    data = noise()
    push(api, data)
    hub.fault("GET /xorbs/", cut_after=1000)
    hub.fault("GET .*/v1/reconstructions/", status=500)
    assert Path(hf_hub_download(REPO, NAME)).read_bytes() == data
    assert (asked(hub, "GET /xorbs/"), asked(hub, "/v1/reconstructions/")) == (2, 2)


def test_content_of_another_length_is_a_runtime_error_and_leaves_no_file(hub: Hub, api: HfApi) -> None:
    push(api, noise())
    hub.fault("GET /xorbs/", body=bytes(1000), times=100)
    with pytest.raises(RuntimeError, match="uncompressed bytes"):
        hf_hub_download(REPO, NAME)
    assert not list((hub.home / "hub").rglob(NAME))


def test_other_content_of_the_right_length_reaches_the_cache_unnoticed(hub: Hub, api: HfApi) -> None:
    """As over plain HTTP: a fact about the client, for which zoo compares hashes itself."""
    data = noise()
    push(api, data)
    ((name, xorb),) = hub.store.cas.xorbs.items()
    served = xorb[:1000] + bytes(1000) + xorb[2000 : chunks(hub, name)[-1].stop]
    hub.fault("GET /xorbs/", body=served)
    fetched = Path(hf_hub_download(REPO, NAME)).read_bytes()
    assert fetched == data[:992] + bytes(1000) + data[1992:]  # less the chunk's header of 8 bytes
