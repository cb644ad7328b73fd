"""`zoo.load` and `zoo.pull` from the Hub: revisions, cache, own folders, and what is never fetched."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub import HfApi, hf_hub_download

import zoo
from tests import warm
from tests.hub_helpers import EVALUATION, NAME, REPO
from tests.release_helpers import release_of, trained_encoder
from zoo.errors import ReleaseError


@pytest.fixture(scope="module")
def retrained(tmp_path_factory):
    """The same recipe with another seed: other weights under the same name."""
    return release_of(tmp_path_factory.mktemp("again") / NAME, trained_encoder(seed=1))


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.is_file()}


def asked(hub, since=0) -> list[str]:
    return [f"{method} {path}" for method, path in hub.requests[since:]]


def test_branch_tag_and_commit_pin_what_is_loaded(made, retrained, hub):
    first = hub.create(REPO, contents(made.path))
    HfApi(token=hub.token).create_tag(REPO, tag="v1")
    second = hub.create(REPO, contents(retrained.path))
    images = torch.randn(1, 3, 32, 32)
    features = {release.path: release.load().eval()(images) for release in (made, retrained)}
    for revision, commit, release in [
        ("v1", first, made), (first, first, made), ("main", second, retrained), (None, second, retrained),
    ]:  # fmt: skip
        for opened in (zoo.open(REPO, revision=revision), zoo.open(f"{REPO}@{revision or 'main'}")):
            assert opened.path.name == commit
        loaded = zoo.load(f"hf-hub:{REPO}", revision=revision).eval()
        assert torch.equal(loaded(images), features[release.path])
    with pytest.raises(ReleaseError, match=r'at revision "v2": the repository has no such revision'):
        zoo.open(f"{REPO}@v2")


def test_a_commit_in_the_cache_costs_no_request_and_a_branch_one(made, hub):
    commit = hub.create(REPO, contents(made.path))
    zoo.open(REPO)
    since = len(hub.requests)
    zoo.load(f"{REPO}@{commit}")
    assert asked(hub, since) == []
    zoo.load(REPO)
    assert asked(hub, since) == [f"GET /api/models/{REPO}/revision/main"]
    zoo.load(f"{REPO}@main")
    assert asked(hub, since)[1:] == [f"GET /api/models/{REPO}/revision/main"]


def test_a_new_commit_on_a_branch_is_fetched_and_unchanged_files_are_not(made, hub):
    hub.create(REPO, contents(made.path))
    zoo.open(REPO)
    since = len(hub.requests)
    newer = hub.create(REPO, contents(made.path) | {"README.md": b"---\nlicense: mit\n---\n"})
    assert zoo.open(REPO).path.name == newer
    assert not [path for path in asked(hub, since) if "storage" in path], "the weights are in the cache"


OFFLINE = """
import json, sys, zoo
found = []
for name, revision in json.loads(sys.argv[1]):
    try:
        found.append(zoo.open(name, revision=revision).path.name)
        zoo.load(name, revision=revision)
    except zoo.ZooError as error:
        found.append(str(error))
try:
    zoo.open(json.loads(sys.argv[1])[0][0]).add_evaluation(json.loads(sys.argv[2]))
except zoo.ZooError as error:
    found.append(str(error))
print(json.dumps(found))
"""


def test_offline_the_cache_alone_is_used(made, hub):
    commit = hub.create(REPO, contents(made.path))
    HfApi(token=hub.token).create_tag(REPO, tag="v1")
    hub.create("alice/other", contents(made.path))
    zoo.open(REPO)
    zoo.open(f"{REPO}@v1")
    hf_hub_download("alice/other", "config.json")  # as plain timm and transformers begin
    since = len(hub.requests)
    names = [
        (REPO, None), (f"hf-hub:{REPO}", None), (f"{REPO}@v1", None), (REPO, commit), (REPO, "main"),
        (f"{REPO}@v2", None), ("alice/none", None), ("alice/other", None),
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE, json.dumps(names), json.dumps(EVALUATION)],
        env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *opened, revision, absent, partial, changed = json.loads(done.stdout)
    assert opened == [commit] * 5
    assert 'at revision "v2": it is not in the local cache, and HF_HUB_OFFLINE is set' in revision
    assert 'Hub repository "alice/none": it is not in the local cache' in absent
    assert 'there is no folder "alice/none"' in absent
    assert "only a part is in the local cache, without recipe.yaml" in partial
    assert "a downloaded release does not change" in changed
    assert asked(hub, since) == []


def test_without_an_answer_the_cache_is_used_and_a_missing_one_is_said(made, hub, impatient):
    commit = hub.create(REPO, contents(made.path))
    zoo.open(REPO)
    for fault in ({"status": 500}, {"delay": 5.0}, {"cut_after": 0}):
        hub.fault("GET /api/models", times=100, **fault)
        assert zoo.open(REPO).path.name == commit
        with pytest.raises(ReleaseError, match="not in the local cache either"):
            zoo.open("alice/other")
        hub.mend()


def test_private_repositories_open_with_a_token(made, hub, monkeypatch):
    hub.create(REPO, contents(made.path), private=True)
    with pytest.raises(ReleaseError, match=r"does not exist, or is private and needs a token: log in with"):
        zoo.load(REPO)
    with pytest.raises(ReleaseError, match=r"does not accept the token \(401\)"):
        zoo.load(REPO, token="hf_wrong")
    assert zoo.load(REPO, token=hub.read_token).num_features == 64
    monkeypatch.setenv("HF_TOKEN", hub.read_token)
    assert zoo.load(REPO).num_features == 64


def test_what_plain_timm_left_in_the_cache_is_completed(made, hub):
    hub.create(REPO, contents(made.path))
    for name in ("config.json", "model.safetensors"):
        hf_hub_download(REPO, name)
    since = len(hub.requests)
    assert zoo.open(REPO).centers is not None
    assert not [path for path in asked(hub, since) if "GET" in path and "model.safetensors" in path]


def test_pull_fetches_everything_and_checks_it(made, hub, tmp_path):
    hub.create(REPO, contents(made.path) | {"notes.txt": b"", "folder/x.bin": b"pickle", "evil.pkl": b"."})
    cached = zoo.pull(REPO)
    assert contents(cached.path) == contents(made.path)
    assert not [path for path in asked(hub) if "notes" in path or "x.bin" in path or "evil" in path]
    own = zoo.pull(REPO, out=tmp_path / "deep" / "own")
    assert contents(own.path) == contents(made.path)
    assert not any(file.is_symlink() for file in own.path.iterdir())
    own.add_evaluation(EVALUATION)
    assert contents(cached.path) == contents(made.path)
    assert [path.name for path in own.path.parent.iterdir()] == ["own"]


def test_pull_completes_pictures_and_replaces_what_is_damaged_in_the_cache(made, hub):
    hub.create(REPO, contents(made.path))
    cached = zoo.open(REPO).path
    (cached / "curves.png").unlink()
    weights = (cached / "model.safetensors").resolve()
    weights.chmod(0o644)
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    assert contents(zoo.pull(REPO).path) == contents(made.path)


def test_pull_takes_an_older_state_forward_and_never_changes_of_ones_own(made, retrained, hub, tmp_path):
    out = tmp_path / "own"
    hub.create(REPO, contents(made.path))
    zoo.pull(REPO, out=out)
    assert zoo.pull(REPO, out=out).path == out  # nothing to do
    (out / "mine.txt").write_text("stays")
    hub.create(REPO, contents(retrained.path))
    assert "curves.png" in contents(out)
    zoo.pull(REPO, out=out)
    assert contents(out) == contents(retrained.path) | {"mine.txt": b"stays"}
    zoo.open(out).add_evaluation(EVALUATION)
    mine = contents(out)
    hub.create(REPO, contents(made.path))
    with pytest.raises(ReleaseError, match="with changes that no earlier state"):
        zoo.pull(REPO, out=out)
    assert contents(out) == mine


def test_a_release_that_was_pushed_from_a_folder_is_pulled_into_it_again(made, hub, tmp_path):
    out = Path(shutil.copytree(made.path, tmp_path / "own"))
    zoo.push(out, REPO, token=hub.token)
    other = zoo.pull(REPO, out=tmp_path / "other")
    other.add_evaluation(EVALUATION)
    zoo.push(other, REPO, token=hub.token)
    assert zoo.pull(f"{REPO}@v2", out=out).metrics["evaluations"] == [EVALUATION]


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda out: out.write_text("a file"), "expected a folder"),
        (lambda out: (out.mkdir(), (out / "x").touch()), "not an empty folder, and no release"),
        (
            lambda out: (out.mkdir(), (out / "config.json").write_text('{"zoo": {"name": "b"}}')),
            'release "b"',
        ),
        (lambda out: (out.mkdir(), (out / "config.json").write_text("{}")), 'found the release "None"'),
    ],
)
def test_pull_refuses_a_folder_that_holds_something_else(made, hub, tmp_path, prepare, message):
    hub.create(REPO, contents(made.path))
    prepare(tmp_path / "out")
    before = {p: p.is_file() and p.read_bytes() for p in tmp_path.rglob("*")}
    with pytest.raises(ReleaseError, match=message):
        zoo.pull(REPO, out=tmp_path / "out")
    assert {p: p.is_file() and p.read_bytes() for p in tmp_path.rglob("*")} == before


CLIMBING = ["../escaped.png", "/tmp/escaped.png", "a/../../escaped.png", "..\\escaped.png", "C:\\escaped.png",
            "./curves.png", "a//b.png", "C:/x.png", "x\ny.png"]  # fmt: skip


@pytest.mark.parametrize("name", CLIMBING)
def test_a_listing_that_climbs_out_is_refused_before_anything_is_fetched(made, hub, tmp_path, name):
    hub.create(REPO, contents(made.path) | {name: b"harm"})
    for load in (zoo.load, zoo.pull, lambda repo: zoo.pull(repo, out=tmp_path / "out")):
        with pytest.raises(ReleaseError, match=r"refused, it lists a file .* outside of its folder"):
            load(REPO)
    assert set(asked(hub)) == {f"GET /api/models/{REPO}/revision/main"}
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "encoder.pth", "model.pt", "weights/checkpoint.ckpt"])
def test_pickles_are_never_fetched_and_the_way_to_convert_is_told(made, hub, name):
    files = contents(made.path)
    del files["model.safetensors"]
    hub.create(REPO, files | {name: b"\x80\x04harm."})
    with pytest.raises(ReleaseError, match=rf"{name}, a pickle, which can run any code.*zoo convert"):
        zoo.load(REPO)
    assert asked(hub) == [f"GET /api/models/{REPO}/revision/main"]


@pytest.mark.parametrize("name", ["config.json", "recipe.yaml", "metrics.json", "README.md", "curves.png"])
def test_gigantic_small_files_are_refused_unfetched(made, hub, name):
    hub.create(REPO, contents(made.path) | {name: bytes(33 << 20)})
    with pytest.raises(ReleaseError, match=rf"{name} has 34,603,008 bytes, expected at most"):
        zoo.load(REPO)
    assert asked(hub) == [f"GET /api/models/{REPO}/revision/main"]


def test_more_pictures_than_any_release_has_are_refused(made, hub):
    hub.create(REPO, contents(made.path) | {f"p{i}.png": b"" for i in range(101)})
    with pytest.raises(ReleaseError, match="102 pictures"):
        zoo.load(REPO)


def test_a_repository_of_no_known_format_is_refused_without_fetching_its_weights(made, hub):
    for config, absent in ((b"{}", "architecture"), (b'{"architecture": "resnet18"}', "pretrained_cfg")):
        hub.create(REPO, contents(made.path) | {"config.json": config})
        with pytest.raises(ReleaseError, match=f'no "{absent}", expected a release, or a model in timm'):
            zoo.load(REPO)
    assert not [path for path in asked(hub) if path.endswith("model.safetensors")]


def test_a_commit_that_is_none_is_no_path(made, hub, tmp_path):
    hub.create(REPO, contents(made.path))
    hub.fault("GET /api/models", body=json.dumps({"id": REPO, "sha": "../../../x", "siblings": []}).encode())
    with pytest.raises(ReleaseError, match="the answer names no commit"):
        zoo.load(REPO)


def test_list_hub_reads_the_cards(made, hub):
    made_copy = zoo.pull(made.path)
    assert made_copy.path == made.path
    zoo.push(made, REPO, token=hub.token)
    zoo.push(made, "alice/hidden", private=True, token=hub.token)
    zoo.push(made, "bob/other", token=hub.token)
    hub.create("alice/unrelated", {"README.md": b"---\ntags: [timm]\n---\n"})
    hostile = b'---\ntags: [contrastive-zoo, "\\e[31mred"]\nmodel-index: 3\n---\n'
    hub.create("alice/hostile", {"README.md": hostile})
    found = zoo.list_hub("alice")
    assert [release.repo_id for release in found] == [REPO, "alice/hostile"]
    assert (found[0].objective, found[0].accuracy, found[0].private) == ("paco", "", False)
    assert found[0].updated is not None
    assert found[1].objective == "[31mred"
    hidden = zoo.list_hub("alice", token=hub.token)
    assert [release.repo_id for release in hidden if release.private] == ["alice/hidden"]
    assert zoo.list_hub("nobody") == []
    for org in ("alice/x", "", "../x"):
        with pytest.raises(ReleaseError, match="expected the name of a user"):
            zoo.list_hub(org)


def test_the_commands_list_and_pull(made, hub, tmp_path):
    release = zoo.open(shutil.copytree(made.path, tmp_path / "r"))
    release.add_evaluation(EVALUATION)
    zoo.push(release, REPO, token=hub.token)
    listed = warm.zoo("list", "--hub", "alice")
    assert listed.returncode == 0, listed.stderr
    header, row = listed.stdout.splitlines()
    assert row.split()[:5] == [REPO, "paco", "91.5", "knn", "digits"]
    assert header.split() == ["NAME", "OBJECTIVE", "ACCURACY", "DATA", "UPDATED"]
    name = REPO.partition("/")[2]
    assert warm.zoo("list", f"{name[:3]}*", "--hub", "alice").stdout == listed.stdout
    assert 'matches "alice*"' in warm.zoo("list", "alice*", "--hub", "alice").stderr
    none = warm.zoo("list", "--hub", "nobody")
    assert (none.returncode, none.stderr.count("\n")) == (1, 1)
    pulled = warm.zoo("pull", f"{REPO}@v1", "--out", tmp_path / "own")
    assert pulled.returncode == 0, pulled.stderr
    assert f'zoo.load("{tmp_path / "own"}")' in pulled.stdout
    assert zoo.open(tmp_path / "own").metrics["evaluations"] == [EVALUATION]


def test_listing_the_hub_imports_no_torch(hub):
    code = (
        "import sys, zoo; print(zoo.list_hub('alice')); "
        "assert not {'torch', 'timm'} & set(sys.modules), 'torch was imported'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
