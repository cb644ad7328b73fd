"""What goes wrong on demand between the test Hub and the real client, and what the client makes of it."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd, HfApi, hf_hub_download
from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import get_session

from .hub_server import Hub

REPO = "org/name"
WEIGHTS = random.Random(0).randbytes(3_000_000)
FILES = {"config.json": b'{"architecture": "resnet18"}', "model.safetensors": WEIGHTS}
DOWNLOAD = "GET /storage/.*/model.safetensors"


@pytest.fixture
def api(hub: Hub) -> HfApi:
    api = HfApi(token=hub.token)
    api.create_repo(REPO)
    return api


def push(api: HfApi) -> str:
    operations = [CommitOperationAdd(path, data) for path, data in FILES.items()]
    return str(api.create_commit(REPO, operations, commit_message="push").oid)


def asked(hub: Hub, method: str, place: str) -> int:
    return len([1 for m, path in hub.requests if m == method and place in path])


# --- statuses


def test_a_status_is_answered_so_many_times_and_nothing_is_done(hub: Hub, api: HfApi) -> None:
    hub.fault("POST .*/commit/", status=503, times=2)
    for _ in range(2):
        with pytest.raises(HfHubHTTPError) as caught:
            push(api)
        assert caught.value.response.status_code == 503
    assert len(hub.commits(REPO)) == 1
    assert push(api) == hub.commits(REPO)[0]


def test_requests_may_be_skipped_before_one_fails(hub: Hub, api: HfApi) -> None:
    hub.fault("GET /api/models/", status=500, skip=2)
    api.model_info(REPO)
    api.list_repo_refs(REPO)
    with pytest.raises(HfHubHTTPError):
        api.model_info(REPO)
    api.model_info(REPO)


@pytest.mark.usefixtures("impatient")
def test_the_client_tries_an_upload_again_five_times(hub: Hub, api: HfApi) -> None:
    hub.fault("PUT /storage/", status=500, times=5)
    push(api)
    assert asked(hub, "PUT", "/storage/") == 6
    hub.create(REPO, {})
    hub.store.repos[REPO].objects.clear()
    hub.fault("PUT /storage/", status=500, times=6)
    with pytest.raises(RuntimeError, match="Error while uploading"):
        push(api)
    assert hub.files(REPO) == {}


def test_a_passing_error_says_to_ask_again_at_once_and_a_lasting_one_does_not(hub: Hub) -> None:
    waits = {}
    for status in (429, 503, 404):
        hub.fault("GET ", status=status)
        waits[status] = get_session().get(hub.url).headers.get("Retry-After")
    assert waits == {429: "0", 503: "0", 404: None}


@pytest.mark.parametrize(
    ("status", "headers", "error"),
    [
        (403, {"X-Error-Code": "GatedRepo"}, GatedRepoError),
        (404, {"X-Error-Code": "RepoNotFound"}, RepositoryNotFoundError),
        (404, {"X-Error-Code": "RevisionNotFound"}, RevisionNotFoundError),
        (403, {"X-Error-Message": "Access to this resource is disabled."}, DisabledRepoError),
        (401, {"X-Error-Message": "Invalid credentials in Authorization header"}, HfHubHTTPError),
    ],
)
def test_headers_choose_the_clients_exception(
    hub: Hub, api: HfApi, status: int, headers: dict[str, str], error: type[Exception]
) -> None:
    hub.fault("GET /api/models/org/name", status=status, headers=headers)
    with pytest.raises(HfHubHTTPError) as caught:
        api.model_info(REPO)
    assert type(caught.value) is error


# --- time


@pytest.mark.usefixtures("impatient")
def test_a_slow_answer_times_out_and_the_client_asks_again(hub: Hub, api: HfApi) -> None:
    push(api)
    hub.fault("HEAD .*/config.json", delay=30)
    start = time.perf_counter()
    assert Path(hf_hub_download(REPO, "config.json")).read_bytes() == FILES["config.json"]
    assert time.perf_counter() - start < 25
    assert asked(hub, "HEAD", "config.json") == 2


@pytest.mark.usefixtures("impatient")
def test_a_file_in_the_cache_stands_in_for_a_hub_that_is_too_slow(hub: Hub, api: HfApi) -> None:
    push(api)
    cached = hf_hub_download(REPO, "config.json")
    hub.create(REPO, {"config.json": b"newer"})
    hub.fault("HEAD .*/config.json", delay=30)
    assert hf_hub_download(REPO, "config.json") == cached
    assert Path(hf_hub_download(REPO, "config.json")).read_bytes() == b"newer"


def test_the_end_of_a_test_ends_its_delays(hub: Hub, api: HfApi) -> None:
    hub.fault("POST .*/tag/", delay=600)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(api.create_tag, REPO, tag="v1")
        while not asked(hub, "POST", "/tag/"):
            time.sleep(0.01)
        hub.reset()
        hub.create(REPO, FILES)
        assert waiting.exception(timeout=10) is not None
    assert hub.tags(REPO) == {}


# --- connections that break, content that is wrong


@pytest.mark.usefixtures("impatient")
def test_a_download_that_breaks_is_resumed_where_it_broke(hub: Hub, api: HfApi) -> None:
    push(api)
    hub.fault(DOWNLOAD, cut_after=1_000_000)
    hub.fault(DOWNLOAD, cut_after=500_000)
    assert Path(hf_hub_download(REPO, "model.safetensors")).read_bytes() == WEIGHTS
    assert asked(hub, "GET", "/storage/") == 3


@pytest.mark.usefixtures("impatient")
def test_a_download_that_always_breaks_leaves_no_file(hub: Hub, api: HfApi) -> None:
    push(api)
    hub.fault(DOWNLOAD, cut_after=0, times=100)
    with pytest.raises(Exception, match="peer closed connection"):
        hf_hub_download(REPO, "model.safetensors")
    assert asked(hub, "GET", "/storage/") == 6
    assert not list((hub.home / "hub").rglob("*.incomplete"))
    assert not list((hub.home / "hub").rglob("model.safetensors"))


@pytest.mark.usefixtures("impatient")
def test_a_download_that_stalls_times_out_and_is_resumed(hub: Hub, api: HfApi) -> None:
    push(api)
    hub.fault(DOWNLOAD, cut_after=1_000_000, delay=30)
    assert Path(hf_hub_download(REPO, "model.safetensors")).read_bytes() == WEIGHTS
    assert asked(hub, "GET", "/storage/") == 2


@pytest.mark.usefixtures("impatient")
def test_an_upload_that_breaks_is_sent_again(hub: Hub, api: HfApi) -> None:
    hub.fault("PUT /storage/", cut_after=1_000_000)
    push(api)
    assert asked(hub, "PUT", "/storage/") == 2
    assert hub.files(REPO)["model.safetensors"] == WEIGHTS


@pytest.mark.usefixtures("impatient")
def test_an_upload_that_always_breaks_commits_nothing(hub: Hub, api: HfApi) -> None:
    hub.fault("PUT /storage/", cut_after=1_000_000, times=100)
    with pytest.raises(RuntimeError, match=r"Error while uploading 'model\.safetensors'"):
        push(api)
    assert len(hub.commits(REPO)) == 1
    assert hub.store.repos[REPO].objects == {}


def test_a_commit_may_break_before_or_after_it_is_made(hub: Hub, api: HfApi) -> None:
    hub.fault("POST .*/commit/", cut_after=10)
    with pytest.raises(Exception, match=r"Connection reset by peer|Broken pipe|disconnected"):
        push(api)
    assert len(hub.commits(REPO)) == 1
    hub.fault("POST .*/commit/", cut_after=1_000_000)
    with pytest.raises(Exception, match=r"Connection reset by peer|disconnected"):
        push(api)
    assert len(hub.commits(REPO)) == 2
    assert hub.files(REPO)["model.safetensors"] == WEIGHTS


def test_other_content_of_the_right_length_reaches_the_cache_unnoticed(hub: Hub, api: HfApi) -> None:
    """Not a wish but a fact about the client, for which zoo compares hashes itself."""
    push(api)
    hub.fault(DOWNLOAD, body=bytes(len(WEIGHTS)))
    assert Path(hf_hub_download(REPO, "model.safetensors")).read_bytes() == bytes(len(WEIGHTS))


def test_content_of_another_length_is_refused_by_the_client(hub: Hub, api: HfApi) -> None:
    push(api)
    hub.fault(DOWNLOAD, body=WEIGHTS[:-1])
    with pytest.raises(OSError, match="Consistency check failed"):
        hf_hub_download(REPO, "model.safetensors")


def test_a_hub_that_is_down_is_not_a_missing_file(hub: Hub, api: HfApi) -> None:
    push(api)
    hub.fault("HEAD .*/config.json", status=502, times=2)
    path = hf_hub_download(REPO, "config.json")  # after one more try
    hub.fault("HEAD .*/config.json", status=502, times=100)
    assert hf_hub_download(REPO, "config.json") == path
    hub.fault("HEAD .*/model.safetensors", status=501, times=100)
    with pytest.raises(LocalEntryNotFoundError):
        hf_hub_download(REPO, "model.safetensors")
