"""The test Hub, driven by the real huggingface_hub client: what other tests rely on."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    hf_hub_download,
    hf_hub_url,
    snapshot_download,
)
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import get_session

from .hub_server import Hub

REPO = "org/name"
CARD = b"""---
library_name: timm
license: mit
tags: [contrastive-zoo, timm]
datasets: [digits]
---
# Model
"""
WEIGHTS = random.Random(0).randbytes(100_000)
PICTURE = b"\x89PNG"
FILES = {"README.md": CARD, "config.json": b"{}", "model.safetensors": WEIGHTS, "plots/loss.png": PICTURE}


@pytest.fixture
def api(hub: Hub) -> HfApi:
    return HfApi(token=hub.token)


def push(api: HfApi, files: dict[str, bytes] = FILES, **options: str) -> str:
    api.create_repo(REPO, exist_ok=True)
    operations = [CommitOperationAdd(path, data) for path, data in files.items()]
    return str(api.create_commit(REPO, operations, commit_message="push", **options).oid)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# --- in and out


def test_a_pushed_folder_is_one_commit_on_the_hub_and_comes_back(hub: Hub, api: HfApi) -> None:
    sha = push(api)
    assert {k: v for k, v in hub.files(REPO).items() if k != ".gitattributes"} == FILES
    assert hub.commits(REPO) == [sha, hub.commits(REPO)[1]]
    fetched = Path(snapshot_download(REPO, token=hub.token))
    assert fetched.name == sha
    assert {path: (fetched / path).read_bytes() for path in FILES} == FILES


def test_large_and_binary_files_travel_by_lfs_and_small_ones_in_the_commit(hub: Hub, api: HfApi) -> None:
    push(api, {**FILES, "notes.bin": bytes(10_000_001)})
    sent = {path.rsplit("/")[-1] for method, path in hub.requests if method == "PUT"}
    assert sent == {sha256(WEIGHTS), sha256(PICTURE), sha256(bytes(10_000_001))}


def test_cached_files_are_named_by_sha256_for_lfs_and_by_gits_sha1_for_small_files(hub: Hub) -> None:
    hub.create(REPO, FILES)
    names = {path: Path(hf_hub_download(REPO, path)).resolve().name for path in FILES}
    assert names["model.safetensors"] == sha256(WEIGHTS)
    assert names["config.json"] == hashlib.sha1(b"blob 2\0{}").hexdigest()


def test_a_second_push_sends_only_what_changed(hub: Hub, api: HfApi) -> None:
    push(api)
    first, sent = hub.commits(REPO), len(hub.requests)
    assert push(api) == first[0]
    assert hub.commits(REPO) == first
    push(api, {**FILES, "config.json": b"{}\n"})
    assert hub.files(REPO)["config.json"] == b"{}\n"
    assert "PUT" not in {method for method, _ in hub.requests[sent:]}


def test_part_of_a_file_is_served_alone(hub: Hub) -> None:
    hub.create(REPO, FILES)
    for path in ("README.md", "model.safetensors"):  # by the Hub itself, and behind a link to the storage

        def ask(part: str, path: str = path) -> tuple[int, bytes, str | None]:
            url = hf_hub_url(REPO, path)
            answer = get_session().get(url, headers={"Range": f"bytes={part}"}, follow_redirects=True)
            return answer.status_code, answer.content, answer.headers.get("Content-Range")

        data, size = FILES[path], len(FILES[path])
        assert ask("10-19") == (206, data[10:20], f"bytes 10-19/{size}")
        assert ask("10-") == (206, data[10:], f"bytes 10-{size - 1}/{size}")
        assert ask("-10") == (206, data[-10:], f"bytes {size - 10}-{size - 1}/{size}")
        assert ask(f"10-{size + 5}") == (206, data[10:], f"bytes 10-{size - 1}/{size}")
        assert ask(f"{size}-") == (416, b"", f"bytes */{size}")


def test_a_large_upload_goes_in_parts(hub: Hub, api: HfApi) -> None:
    hub.store.part_size = 30_000
    push(api)
    place = f"/storage/{REPO}/{sha256(WEIGHTS)}/part"
    assert {path for method, path in hub.requests if path.startswith(place)} == {
        f"{place}/{number}" for number in (1, 2, 3, 4)
    }
    assert hub.files(REPO)["model.safetensors"] == WEIGHTS


def test_child_processes_talk_to_the_same_server(hub: Hub) -> None:
    hub.create(REPO, FILES)
    code = f"from huggingface_hub import hf_hub_download as get; print(get('{REPO}', 'model.safetensors'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).read_bytes() == WEIGHTS
    assert done.stdout.startswith(str(hub.home))


# --- what a Hub refuses


def test_content_that_is_not_what_its_name_says_is_refused(hub: Hub, api: HfApi) -> None:
    api.create_repo(REPO)
    place = f"{hub.store.storage_url}/storage/{REPO}/{sha256(WEIGHTS)}"
    assert get_session().put(place, content=WEIGHTS[:-1]).status_code == 400
    lost = CommitOperationAdd("model.safetensors", WEIGHTS)
    lost._is_uploaded, lost._upload_mode = True, "lfs"
    with pytest.raises(HfHubHTTPError, match="file that does not exist"):
        api.create_commit(REPO, [lost], commit_message="a pointer to nothing")
    assert len(hub.commits(REPO)) == 1


def test_a_signed_link_takes_no_token(hub: Hub) -> None:
    hub.create(REPO, FILES)
    link = f"{hub.store.storage_url}/storage/{REPO}/{sha256(WEIGHTS)}/model.safetensors"
    assert get_session().get(link).content == WEIGHTS
    assert get_session().get(link, headers={"Authorization": f"Bearer {hub.token}"}).status_code == 400


def test_a_commit_on_top_of_an_older_one_is_refused(hub: Hub, api: HfApi) -> None:
    old = push(api)
    new = push(api, {"config.json": b"[]"}, parent_commit=old)
    with pytest.raises(HfHubHTTPError, match="A commit has happened since") as caught:
        push(api, {"config.json": b"1"}, parent_commit=old)
    assert caught.value.response.status_code == 412
    assert hub.commits(REPO)[0] == new


def test_an_existing_repository_is_a_conflict(api: HfApi) -> None:
    assert api.create_repo(REPO).repo_id == REPO
    with pytest.raises(HfHubHTTPError) as caught:
        api.create_repo(REPO)
    assert caught.value.response.status_code == 409
    api.create_repo(REPO, exist_ok=True)


@pytest.mark.parametrize(
    ("act", "status"),
    [
        (lambda api: api.create_repo("org/other"), 403),
        (lambda api: api.upload_file(path_or_fileobj=b"", path_in_repo="a", repo_id=REPO), 403),
        (lambda api: api.create_tag(REPO, tag="v1"), 403),
        (lambda api: api.delete_repo(REPO), 403),
    ],
)
def test_a_token_for_reading_changes_nothing(hub: Hub, act: Callable[[HfApi], object], status: int) -> None:
    sha = hub.create(REPO, FILES, private=True)
    reader = HfApi(token=hub.read_token)
    assert reader.model_info(REPO).sha == sha
    assert reader.whoami()["auth"]["accessToken"]["role"] == "read"
    with pytest.raises(HfHubHTTPError) as caught:
        act(reader)
    assert caught.value.response.status_code == status
    assert hub.commits(REPO) == [sha]
    assert hub.tags(REPO) == {}


def test_a_token_that_is_none_is_refused_everywhere(hub: Hub) -> None:
    hub.create(REPO, FILES)
    stranger = HfApi(token="hf_unknown")
    for ask in (stranger.whoami, lambda: stranger.model_info(REPO), lambda: stranger.create_repo("org/x")):
        with pytest.raises(HfHubHTTPError) as caught:
            ask()
        assert caught.value.response.status_code == 401


def test_a_foreign_namespace_takes_no_repository(api: HfApi) -> None:
    with pytest.raises(HfHubHTTPError, match="don't have the rights"):
        api.create_repo("foreign/name")


@pytest.mark.parametrize(("token", "status"), [(None, 401), ("hf_write", 404)])
def test_what_is_missing_and_what_is_hidden_look_the_same(hub: Hub, token: str | None, status: int) -> None:
    hub.create("foreign/secret", FILES, private=True)
    for name in ("foreign/secret", "foreign/missing", "missing"):
        for ask in (HfApi(token=token or False).model_info, lambda n: hf_hub_download(n, "a", token=token)):
            with pytest.raises(RepositoryNotFoundError) as caught:
                ask(name)
            assert caught.value.response.status_code == status


def test_a_private_repository_is_its_owners(hub: Hub, api: HfApi) -> None:
    api.create_repo(REPO, private=True)
    with pytest.raises(RepositoryNotFoundError):
        snapshot_download(REPO, token=False)
    assert Path(snapshot_download(REPO, token=hub.read_token), ".gitattributes").exists()


@pytest.mark.parametrize(("token", "status"), [(None, 401), ("hf_write", 403)])
def test_a_gated_repository_is_seen_but_not_read(hub: Hub, token: str | None, status: int) -> None:
    hub.create("foreign/gated", FILES, gated=True)
    assert HfApi(token=token or False).model_info("foreign/gated").gated == "auto"
    with pytest.raises(GatedRepoError) as caught:
        hf_hub_download("foreign/gated", "config.json", token=token)
    assert caught.value.response.status_code == status


def test_missing_files_and_revisions_are_told_apart(hub: Hub, api: HfApi) -> None:
    hub.create(REPO, FILES)
    with pytest.raises(EntryNotFoundError):
        hf_hub_download(REPO, "other.json")
    with pytest.raises(RevisionNotFoundError):
        hf_hub_download(REPO, "config.json", revision="v9")
    with pytest.raises(RevisionNotFoundError):
        api.model_info(REPO, revision="v9")
    assert not api.file_exists(REPO, "other.json")
    with pytest.raises(EntryNotFoundError, match="A file with this name doesn't exist"):
        api.create_commit(REPO, [CommitOperationDelete("other.json")], commit_message="nothing to delete")


def test_a_cards_metadata_is_validated_before_anything_is_sent(hub: Hub, api: HfApi) -> None:
    api.create_repo(REPO)
    for card in (b"---\ntags: 3: 4\n---\n", b"---\nlicense: [mit]\n---\n", b"---\nmodel-index: [{}]\n---\n"):
        with pytest.raises(ValueError, match=r"Invalid metadata in README\.md"):
            push(api, {"README.md": card})
    with pytest.warns(UserWarning, match="empty or missing yaml metadata"):
        push(api, {"README.md": b"# No metadata\n"})
    assert hub.files(REPO)["README.md"] == b"# No metadata\n"


# --- behind the client's back


def test_a_repository_made_behind_the_clients_back_has_any_file_names(hub: Hub, api: HfApi) -> None:
    names = ["../../outside", "/etc/absolute", "C:\\windows", "sp ace%20?#.json"]
    hub.create(REPO, dict.fromkeys(names, b"hostile"))
    assert set(api.list_repo_files(REPO)) == set(names)
    assert Path(hf_hub_download(REPO, "sp ace%20?#.json")).read_bytes() == b"hostile"


def test_a_second_creation_is_a_commit_on_top(hub: Hub, api: HfApi) -> None:
    first = hub.create(REPO, FILES)
    second = hub.create(REPO, {"config.json": b"[]"})
    assert hub.commits(REPO) == [second, first]
    assert api.model_info(REPO).sha == second


def test_no_fault_request_or_repository_outlives_its_test(hub: Hub, api: HfApi) -> None:
    push(api)
    hub.fault(".*", status=500)
    hub.reset()
    assert hub.requests == []
    assert list(api.list_models()) == []
    assert not (hub.home / "hub").exists()
