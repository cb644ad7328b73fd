"""`zoo.load`, `zoo.open` and `zoo.pull`: revisions, cache, own folders, what goes wrong."""

import json
import os
import subprocess
import sys

import pytest
import torch
from huggingface_hub import hf_hub_download

import zoo
from tests.hub_helpers import NAME, REPO
from tests.release_helpers import release_of, trained_encoder
from zoo.errors import ReleaseError


def contents(folder):
    found = {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.is_file()}
    found.pop(".hub.json", None)
    return found


def asked(hub, since=0):
    return [f"{method} {path}" for method, path in hub.requests[since:]]


def test_branch_tag_and_commit_pin_what_is_loaded(made, hub, tmp_path):
    retrained = release_of(tmp_path / NAME, trained_encoder(seed=1))  # other weights under the same name
    first = hub.create(REPO, contents(made.path))
    hub.repos[REPO].branches["v1"] = [first]
    second = hub.create(REPO, contents(retrained.path))
    images = torch.randn(1, 3, 32, 32)
    for revision, commit, release in (
        *(("v1", first, made), (first, first, made)),
        *(("main", second, retrained), (None, second, retrained)),
    ):
        assert zoo.open(f"{REPO}@{revision or 'main'}").path.name == commit
        loaded = zoo.load(f"hf-hub:{REPO}", revision=revision).eval()
        assert torch.equal(loaded(images), release.load().eval()(images))
    since = len(hub.requests)
    zoo.load(f"{REPO}@{first}")
    assert asked(hub, since) == [], "a commit in the cache costs no request"
    zoo.load(REPO)
    assert asked(hub, since) == [f"GET /api/models/{REPO}/revision/main"]
    with pytest.raises(ReleaseError, match=r'at revision "v2": there is no such revision'):
        zoo.open(f"{REPO}@v2")


OFFLINE = """
import json, sys, zoo
found = []
for name in json.loads(sys.argv[1]):
    try:
        zoo.load(name)
        found.append(zoo.pull(name).path.name)
    except zoo.ZooError as error:
        found.append(str(error))
print(json.dumps(found))
"""


def test_offline_the_cache_alone_is_used(made, hub):
    commit = hub.create(REPO, contents(made.path))
    hub.repos[REPO].branches["v1"] = [commit]
    hub.create("alice/other", contents(made.path))
    zoo.open(REPO)
    zoo.open(f"{REPO}@v1")
    hf_hub_download("alice/other", "config.json")  # as plain timm and transformers begin
    since = len(hub.requests)
    names = [REPO, f"{REPO}@v1", f"{REPO}@{commit}", f"{REPO}@v2", "alice/none", "alice/other"]
    command = [sys.executable, "-c", OFFLINE, json.dumps(names)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *opened, revision, absent, partial = json.loads(done.stdout)
    assert opened == [commit] * 3
    for message in (revision, absent, partial):
        assert "HF_HUB_OFFLINE is set" in message or "missing" in message
    assert asked(hub, since) == []


def test_pull_fetches_what_belongs_to_a_release_and_checks_it(made, hub, tmp_path):
    others = {"notes.txt": b"", "folder/x.png": b"p", "evil.pkl": b".", "../up.png": b"p"}
    hub.create(REPO, contents(made.path) | others)
    cached = zoo.pull(REPO)
    assert contents(cached.path) == contents(made.path)
    assert not [path for path in asked(hub) if any(name.split("/")[-1] in path for name in others)]
    own = zoo.pull(REPO, out=tmp_path / "deep" / "own")
    assert contents(own.path) == contents(made.path)
    assert [path.name for path in own.path.parent.iterdir()] == ["own"]
    assert not any(file.is_symlink() for file in own.path.iterdir())
    file = (cached.path / "model.safetensors").resolve()
    file.chmod(0o644)
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    for call in (zoo.load, zoo.pull):
        with pytest.raises(ReleaseError, match=r"sha256 \w+, but config\.json records"):
            call(REPO)


def test_pull_leaves_a_folder_that_holds_something_alone(made, hub, tmp_path):
    hub.create(REPO, contents(made.path))
    (tmp_path / "mine").write_text("mine")
    for out in (tmp_path, tmp_path / "mine"):
        with pytest.raises(ReleaseError, match=f"{out}: found no empty folder"):
            zoo.pull(REPO, out=out)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"config.json": b"{}"}, "expected a release, or a model in timm's format"),
        ({"config.json": None}, "config.json is missing"),
        ({"model.safetensors": None, "encoder.pth": b"\x80\x04harm."}, r"model\.safetensors"),
        ({"recipe.yaml": None}, "recipe.yaml is missing"),
    ],
)
def test_what_is_no_release_is_refused_before_its_weights_are_fetched(made, hub, files, message):
    found = contents(made.path) | files
    hub.create(REPO, {name: data for name, data in found.items() if data is not None})
    with pytest.raises(ReleaseError, match=message):
        zoo.load(REPO)
    assert not [path for path in asked(hub) if path.endswith(".pth")]
    if "config.json" in files:
        assert not [path for path in asked(hub) if path.endswith("model.safetensors")]


INFO, WEIGHTS = f"GET /api/models/{REPO}/revision/main$", "GET .*/model.safetensors"
FAULTS = {
    "gated": (WEIGHTS, {"status": 403, "code": "GatedRepo"}, "access must be requested"),
    "cut": (INFO, {"cut": "before"}, "http://127"),
    "no Hub": (INFO, {"body": b"<html>log in</html>"}, "JSONDecodeError"),
}


@pytest.mark.parametrize("what", FAULTS)
def test_a_failing_download_is_one_clear_error_and_a_retry_works(made, hub, impatient, tmp_path, what):
    files = contents(made.path)
    hub.create(REPO, files)
    match, fault, message = FAULTS[what]
    hub.fault(match, times=100, **fault)
    with pytest.raises(ReleaseError, match=message) as caught:
        zoo.pull(REPO, out=tmp_path / "out")
    assert REPO.split("/")[1] in str(caught.value) and "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    hub.mend()
    assert contents(zoo.pull(REPO, out=tmp_path / "out").path) == files


@pytest.mark.parametrize("what", ["no answer", "no network"])
def test_without_an_answer_or_a_network_the_cache_is_used(made, hub, request, what):
    commit = hub.create(REPO, contents(made.path))
    zoo.open(REPO)
    hub.fault("GET /api/models", times=100, status=500)
    request.getfixturevalue("impatient" if what == "no answer" else "no_network")
    assert zoo.pull(REPO).path.name == commit
    for call in (lambda: zoo.open("alice/other"), lambda: zoo.push(made, "alice/other", token=hub.token)):
        with pytest.raises(ReleaseError, match="500" if what == "no answer" else "http://127"):
            call()


def test_private_repositories_open_with_a_token(made, hub, monkeypatch):
    hub.create(REPO, contents(made.path), private=True)
    with pytest.raises(ReleaseError, match=r"log in.*\(401\)"):
        zoo.load(REPO)
    monkeypatch.setenv("HF_TOKEN", hub.read_token)
    assert zoo.load(REPO).num_features == 64
