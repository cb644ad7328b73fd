"""What the test Hub tells the real client of repositories: references, models, files."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import CommitOperationDelete, HfApi, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, RevisionNotFoundError

from .hub_server import Hub
from .test_hub_server import FILES, REPO, WEIGHTS, push, sha256


@pytest.fixture
def api(hub: Hub) -> HfApi:
    return HfApi(token=hub.token)


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
