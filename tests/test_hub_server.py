"""The test Hub, driven by the real huggingface_hub client: what other tests rely on."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

import huggingface_hub
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

from .hub_server import Hub

REPO = "org/name"
CARD = b"---\nlibrary_name: timm\nlicense: mit\ntags: [contrastive-zoo, timm]\ndatasets: [digits]\n---\n# Model\n"
WEIGHTS = random.Random(0).randbytes(100_000)
FILES = {"README.md": CARD, "config.json": b"{}", "model.safetensors": WEIGHTS, "plots/loss.png": b"\x89PNG"}


@pytest.fixture
def api(hub: Hub) -> HfApi:
    return HfApi(token=hub.token)


def additions(files: dict[str, bytes]) -> list[CommitOperationAdd]:
    return [CommitOperationAdd(path, data) for path, data in files.items()]


def push(api: HfApi, files: dict[str, bytes] = FILES, **options: str) -> str:
    api.create_repo(REPO, exist_ok=True)
    return api.create_commit(REPO, additions(files), commit_message="push", **options).oid


def test_a_pushed_folder_is_on_the_hub_and_comes_back(hub: Hub, api: HfApi, tmp_path: Path) -> None:
    sha = push(api)
    assert {k: v for k, v in hub.files(REPO).items() if k != ".gitattributes"} == FILES
    assert hub.commits(REPO)[0] == sha
    assert len(hub.commits(REPO)) == 2
    fetched = Path(snapshot_download(REPO, token=hub.token))
    assert fetched.name == sha
    assert {p: (fetched / p).read_bytes() for p in FILES} == FILES
    assert ("PUT", f"/storage/{REPO}/{hashlib.sha256(WEIGHTS).hexdigest()}") in hub.requests
