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


# --- references and listings


def test_tags_and_branches_name_commits(hub: Hub, api: HfApi) -> None:
    first = push(api)
    api.create_tag(REPO, tag="v1")
    api.create_branch(REPO, branch="next")
    second = push(api, {"config.json": b"[]"}, revision="next")
    api.create_tag(REPO, tag="v2", revision=second)
    refs = api.list_repo_refs(REPO)
    assert {ref.name: ref.target_commit for ref in refs.branches} == {"main": first, "next": second}
    assert {ref.name: ref.target_commit for ref in refs.tags} == hub.tags(REPO) == {"v1": first, "v2": second}
    assert Path(hf_hub_download(REPO, "config.json", revision="v1")).read_bytes() == b"{}"
    assert Path(hf_hub_download(REPO, "config.json", revision="v2")).read_bytes() == b"[]"
    assert [commit.commit_id for commit in api.list_repo_commits(REPO, revision="v2")][:2] == [second, first]
    with pytest.raises(HfHubHTTPError, match="exists already"):
        api.create_tag(REPO, tag="v1")
    api.delete_tag(REPO, tag="v1")
    api.delete_branch(REPO, branch="next")
    assert hub.tags(REPO) == {"v2": second}
    with pytest.raises(RevisionNotFoundError):
        api.delete_tag(REPO, tag="v1")


def test_models_are_listed_by_author_and_tag_with_their_cards(hub: Hub, api: HfApi) -> None:
    hub.store.page_size = 2
    for number in range(5):
        hub.create(f"org/model{number}", FILES, private=number == 4)
    hub.create("org/untagged", {"README.md": b"---\ntags: [other]\n---\n"})
    hub.create("other/model", FILES)
    asked = {"author": "org", "filter": "contrastive-zoo", "cardData": True}
    listed = {model.id: model for model in HfApi(token=False).list_models(**asked)}
    assert set(listed) == {f"org/model{number}" for number in range(4)}
    assert listed["org/model0"].card_data.datasets == ["digits"]
    assert {"timm", "license:mit", "dataset:digits"} <= set(listed["org/model0"].tags)
    assert len(list(api.list_models(**asked))) == 5
    assert [model.id for model in api.list_models(author="org", search="4")] == ["org/model4"]
    assert next(iter(api.list_models(author="other"))).card_data is None


def test_files_are_listed_with_sizes_and_hashes(hub: Hub, api: HfApi) -> None:
    hub.create(REPO, FILES)
    hub.store.page_size = 2
    assert set(api.list_repo_files(REPO)) == set(FILES)
    assert [item.path for item in api.list_repo_tree(REPO)] == [
        "plots", "README.md", "config.json", "model.safetensors"
    ]  # fmt: skip
    (weights, plots) = api.get_paths_info(REPO, ["model.safetensors", "plots", "none"], expand=True)
    assert (weights.size, weights.lfs.sha256) == (len(WEIGHTS), sha256(WEIGHTS))
    assert weights.last_commit.oid == hub.commits(REPO)[0]
    assert plots.path == "plots"
    siblings = {s.rfilename: s for s in api.model_info(REPO, files_metadata=True).siblings}
    assert siblings["model.safetensors"].lfs.sha256 == sha256(WEIGHTS)
    assert siblings["config.json"].size == 2


def test_files_are_deleted_alone_and_by_folder(hub: Hub, api: HfApi) -> None:
    push(api)
    gone = [CommitOperationDelete("config.json"), CommitOperationDelete("plots/")]
    api.create_commit(REPO, gone, commit_message="delete")
    assert set(hub.files(REPO)) == {".gitattributes", "README.md", "model.safetensors"}


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
