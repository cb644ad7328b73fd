"""`zoo.push`: one commit and a version tag over real HTTP, repeated, overtaken, interrupted, refused."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import pytest
from huggingface_hub import HfApi, ModelCard
from typer.testing import CliRunner

import zoo
from tests import warm
from tests.hub_helpers import EVALUATION, NAME, REPO
from tests.release_helpers import release_of, trained_encoder
from zoo import cli
from zoo.config import dump_yaml
from zoo.errors import ReleaseError, ZooWarning
from zoo.release.card import check_card
from zoo.release.provenance import check_public
from zoo.release.push import publish

WRITES = ("POST", "PUT", "DELETE")
xet = pytest.param(
    "xet", marks=pytest.mark.skipif(find_spec("lz4") is None, reason="the test server's Xet needs lz4")
)


@pytest.fixture
def release(made, tmp_path):
    """A copy of that release, to be changed."""
    return zoo.open(shutil.copytree(made.path, tmp_path / NAME))


def asked(hub, since=0):
    """Return what was asked of the API, "METHOD what", without what only reads."""
    writes = [(method, path) for method, path in hub.requests[since:] if method in WRITES]
    return [f"{method} {path.removeprefix('/api/').replace(REPO, 'R')}" for method, path in writes]


@pytest.mark.parametrize("transport", ["lfs", xet])
def test_everything_goes_up_in_one_commit_which_gets_the_first_version(made, release, hub, transport):
    hub.transport = transport
    (release.path / "notes.txt").write_text("mine")
    (release.path / "run").mkdir()
    address = zoo.push(release, REPO, token=hub.token)
    assert address == f"{hub.url}/{REPO}/tree/v1"
    assert len(hub.commits(REPO)) == 2, "creating a repository is a commit, and the push is one"
    assert hub.tags(REPO) == {"v1": hub.commits(REPO)[0]}
    there = hub.files(REPO)
    assert sorted(there) == sorted(
        {".gitattributes", "README.md"} | {file.name for file in made.path.iterdir()}
    )
    for file in release.path.iterdir():
        if file.name in there and file.name != "README.md":
            assert there[file.name] == file.read_bytes(), file.name
    card = there["README.md"].decode()
    assert f'"{REPO}"' in card
    assert "ORG/" not in card
    assert f"ORG/{NAME}" in release.card, "the release here stays as it is"
    assert ModelCard(card).data.library_name == "contrastive-zoo"
    commit = [path for method, path in hub.requests if "/commit/" in path]
    assert commit == [f"/api/models/{REPO}/commit/main"]


@pytest.mark.parametrize("transport", ["lfs", xet])
def test_the_same_push_again_changes_nothing(release, hub, transport):
    hub.transport = transport
    first = zoo.push(release, REPO, token=hub.token)
    commits, tags, since = hub.commits(REPO), hub.tags(REPO), len(hub.requests)
    published = publish(release.path, REPO, token=hub.token)
    assert (published.url, published.changed) == (first, ())
    assert asked(hub, since) == []
    assert (hub.commits(REPO), hub.tags(REPO)) == (commits, tags)


def test_what_a_colleague_measured_on_the_same_weights_is_not_dropped(release, hub, tmp_path):
    theirs = zoo.open(shutil.copytree(release.path, tmp_path / "theirs"))
    theirs.add_evaluation(EVALUATION | {"protocol": "linear", "data": "theirs"})
    zoo.push(theirs, REPO, token=hub.token)
    release.add_evaluation(EVALUATION | {"protocol": "linear", "data": "ours"})
    commits = hub.commits(REPO)
    expected = r"holds an evaluation of these weights .*\(linear on theirs.*add_evaluations_of\("
    with pytest.raises(ReleaseError, match=expected) as refused:
        zoo.push(release, REPO, token=hub.token)
    assert hub.commits(REPO) == commits
    message = str(refused.value)
    said = re.search(r'add_evaluations_of\("(.*?)"\)', message)
    assert said and said[1] == f"{REPO}@{commits[0]}"
    since = len(hub.requests)
    assert zoo.open(release.path).add_evaluations_of(said[1], token=hub.token) == 1
    assert not [path for _, path in hub.requests[since:] if "model.safetensors" in path]
    assert zoo.push(release, REPO, token=hub.token).endswith("/v2")
    there = json.loads(hub.files(REPO)["metrics.json"])["evaluations"]
    assert {"theirs", "ours"} <= {entry["data"] for entry in there}


def test_evaluations_of_other_weights_are_not_taken_over(release):
    with pytest.raises(ReleaseError, match="has other weights than"):
        release.add_evaluations_of("cifar_resnet20.paco_digits_lt50")


def started_from(start, folder, **changes):
    """Write a release whose training started from another one, as older versions described it."""
    text = f"Cross-entropy, started from {start}; a recipe made for the release."
    recipe = {"description": text, "init": {"release": str(start), "head": "fresh"}, "seed": 3}
    facts = {"init_weights_sha256": zoo.open(start).config["zoo"]["weights_sha256"]}
    changes = {"metrics": {"training": facts}, "name": "cifar_resnet20.tuned", **changes}
    encoder = trained_encoder(seed=1)
    return release_of(folder, encoder, recipe_text=dump_yaml(recipe), description=text, **changes)


def test_no_path_is_published_as_what_training_started_from(release, hub, tmp_path):
    start = release.path.rename(tmp_path / "home alice")
    tuned, repo = started_from(start, tmp_path / "tuned"), "alice/cifar_resnet20.tuned"
    with pytest.raises(ReleaseError) as refused:
        zoo.push(tuned, repo, token=hub.token)
    assert str(refused.value) == (
        f'{tuned.path / "recipe.yaml"}: init.release is the folder "{start}": others cannot read it, and its '
        "path would be published. Push that release first, then this one with --start ORG/NAME, or in Python "
        f'zoo.open("{tuned.path}").with_start("ORG/NAME"): that repository then stands in the recipe'
    )
    assert hub.requests == []
    zoo.push(start, REPO, token=hub.token)
    since = len(hub.requests)
    named = tuned.with_start(REPO, token=hub.token)
    assert not [path for _, path in hub.requests[since:] if "model.safetensors" in path]
    assert named.recipe == {
        "description": f"Cross-entropy, started from hf-hub:{REPO}; a recipe made for the release.",
        "init": {"release": f"hf-hub:{REPO}", "head": "fresh"},
        "seed": 3,
    }
    named.verify()
    done = warm.zoo("push", tuned.path, repo, "--start", f"{REPO}@v1", HF_TOKEN=hub.token)
    assert done.returncode == 0, done.stderr
    there = hub.files(repo)
    assert f"release: hf-hub:{REPO}@v1" in there["recipe.yaml"].decode()
    assert not [name for name, content in there.items() if b"home alice" in content]
    assert f"base_model: {REPO}" in there["README.md"].decode()


@pytest.mark.parametrize(
    ("license", "said"),
    [
        ("dinov3-license", {"license": "other", "license_name": "dinov3-license"}),
        ("Terms of Org, 2.0", {"license": "other", "license_name": "terms-of-org-2.0"}),
        ("CC BY 4.0", {"license": "cc-by-4.0"}),
    ],
)
def test_a_licence_that_the_hub_does_not_list_is_pushed_by_its_name(release, hub, license, said):
    done = warm.zoo("push", release.path, REPO, "--license", license, HF_TOKEN=hub.token)
    assert done.returncode == 0, done.stderr
    assert json.loads(hub.files(REPO)["config.json"])["pretrained_cfg"]["license"] == license
    there = ModelCard(hub.files(REPO)["README.md"].decode())
    assert {key: value for key, value in there.data.to_dict().items() if key.startswith("license")} == said
    assert f"released under `{license}`" in there.text


def test_metadata_that_the_hub_refuses_make_no_repository(release, hub, monkeypatch):
    release.with_license("cc-by-4.0")
    monkeypatch.setattr("zoo.release.licenses.IDENTIFIERS", frozenset({"other"}))
    card = (release.path / "README.md").read_text()
    with pytest.raises(ReleaseError, match=r"license: found 'cc-by-4.0', expected 'other'"):
        zoo.push(release.path, REPO, token=hub.token)
    monkeypatch.setattr("zoo.release.card.check_card", lambda folder, config: None)
    with pytest.raises(ReleaseError, match=r"Invalid metadata in README.md: .*license.* must be one of"):
        zoo.push(release.path, REPO, token=hub.token)
    assert (release.path / "README.md").read_text() == card
    assert REPO not in hub.store.repos


def test_another_licence_does_not_lift_the_terms_of_the_start_in_silence(release, tmp_path, recwarn):
    release.with_license("mit")  # weights of one's own
    assert not [each for each in recwarn if each.category is ZooWarning]
    tuned = started_from(
        "shipped:cifar_resnet20.paco_digits_lt50", tmp_path / "tuned", license="seer-license"
    )
    with pytest.warns(ZooWarning) as warned:
        changed = tuned.with_license("mit")
    (message,) = [str(each.message) for each in warned]
    start = 'the training started from "shipped:cifar_resnet20.paco_digits_lt50"'
    assert message.startswith(f'{tuned.path}: licence "mit" in the place of "seer-license": {start}, and')
    assert changed.config == {
        **tuned.config, "pretrained_cfg": {**tuned.config["pretrained_cfg"], "license": "mit"}
    }  # fmt: skip
    assert "started from `shipped:cifar_resnet20.paco_digits_lt50`, whose licence also" in changed.card
    check_card(changed.path, changed.config)
    changed.verify()
    changed.with_license("mit")
    assert not [each for each in recwarn if each.category is ZooWarning], "said once"


def test_a_slip_for_a_licence_that_the_hub_lists_is_warned_of(release):
    with pytest.warns(ZooWarning, match=r'licence "apache" is none .* Did you mean "apache-2.0"\?'):
        release.with_license("apache")


def test_a_push_that_cannot_be_changes_no_licence(release, hub):
    before = (release.path / "README.md").read_text()
    for repo, message in ((REPO, "a push needs a token"), ("one--two", 'expected "org/name"')):
        with pytest.raises(ReleaseError, match=message):
            CliRunner().invoke(
                cli.app, ["push", str(release.path), repo, "--license", "mit"], catch_exceptions=False
            )
    assert (release.path / "README.md").read_text() == before


def test_a_release_changed_through_two_objects_has_both_changes(release, hub):
    early = zoo.open(release.path)
    release.with_license("cc-by-4.0")
    early.without_images()  # opened before
    early.add_evaluation({"protocol": "knn", "data": "mine", "split": "test", "metrics": {"accuracy": 50.0}})
    now = zoo.open(release.path)
    assert now.config["pretrained_cfg"]["license"] == "cc-by-4.0" and not now.images
    check_card(now.path, now.config)
    assert zoo.push(early, REPO, token=hub.token)
    assert json.loads(hub.files(REPO)["config.json"]) == now.config


def test_a_shipped_release_does_not_change(release, monkeypatch):
    monkeypatch.setattr("zoo.catalog.is_shipped", lambda folder: True)
    before = {file.name: file.read_bytes() for file in release.path.iterdir() if file.is_file()}
    changes = (lambda: release.with_license("mit"), release.without_images, release.render_card)
    for change in changes:
        with pytest.raises(ReleaseError, match=r"a shipped release does not change\. Copy it, then open"):
            change()
    assert {file.name: file.read_bytes() for file in release.path.iterdir() if file.is_file()} == before


@pytest.mark.parametrize("license", ["", "  ", "!", "mit\nlicense: x", "x" * 201, 4])
def test_what_is_no_name_of_a_licence_is_refused_and_nothing_changes(release, license):
    before = (release.path / "config.json").read_bytes()
    with pytest.raises(ReleaseError, match=r"licence: found .*, expected an identifier of the Hub's such"):
        release.with_license(license)
    assert (release.path / "config.json").read_bytes() == before


def test_a_start_gets_no_name_of_other_weights(release, hub, tmp_path):
    tuned = started_from(release.path, tmp_path / "tuned")
    before = {file.name: file.read_bytes() for file in tuned.path.iterdir()}
    for name, message in (
        ("cifar_resnet20.paco_digits_lt50", "with weights of sha256 .*, those of .* have"),
        (str(release.path), "found the folder .*, expected what others can read"),
    ):
        with pytest.raises(ReleaseError, match=message):
            tuned.with_start(name)
    assert {file.name: file.read_bytes() for file in tuned.path.iterdir()} == before | {".lock": b""}
    unknown = started_from(release.path, tmp_path / "unknown", metrics={"training": {}})
    with pytest.raises(ReleaseError, match="no hash of the weights that training started from"):
        unknown.with_start("cifar_resnet20.paco_digits_lt50")
    with pytest.raises(ReleaseError, match="started from random weights"):
        release.with_start("cifar_resnet20.paco_digits_lt50")


@pytest.mark.parametrize(
    ("start", "is_refused"),
    [
        ("shipped:cifar_resnet20.paco_digits_lt50", False),
        ("timm:resnet18.a1_in1k", False),
        ("hf-hub:alice/start@v1", False),
        ("alice/start", False),
        ("../start", True),
        ("~/start", True),
        ("here/start", True),
    ],
)
def test_a_start_is_public_unless_it_is_a_folder(start, is_refused, release, tmp_path, monkeypatch):
    (tmp_path / "here" / "start").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    (release.path / "recipe.yaml").write_text(dump_yaml({"init": {"release": start}}))
    if is_refused:
        with pytest.raises(ReleaseError, match=re.escape(f'init.release is the folder "{start}"')):
            check_public(release.path)
    else:
        check_public(release.path)


def test_a_changed_release_is_the_next_version_and_takes_its_old_files_away(release, hub, tmp_path):
    zoo.push(release, REPO, token=hub.token)
    files = hub.files(REPO) | {"LICENSE": b"theirs", "folder/curves.png": b"theirs"}
    hub.create(REPO, files)
    (release.path / "curves.png").unlink()
    release.add_evaluation(EVALUATION)
    published = publish(release, REPO, token=hub.token)
    assert published.changed == ("README.md", "curves.png", "metrics.json")
    assert published.url.endswith("/tree/v2")
    there = hub.files(REPO)
    assert "curves.png" not in there
    assert (there["LICENSE"], there["folder/curves.png"]) == (b"theirs", b"theirs")
    assert hub.tags(REPO)["v2"] == hub.commits(REPO)[0]
    assert "curves.png" in hub.files(REPO, "v1")
    uploads = [path for method, path in hub.requests if method == "PUT"]
    assert len(uploads) == len(set(uploads)), "weights that are there are not sent again"


def test_other_files_committed_since_are_no_new_version(release, hub):
    first = zoo.push(release, REPO, token=hub.token)
    hub.create(REPO, hub.files(REPO) | {"LICENSE": b"theirs"})
    assert zoo.push(release, REPO, token=hub.token) == first
    assert list(hub.tags(REPO)) == ["v1"]


def test_tags_of_others_are_no_versions(release, hub):
    zoo.push(release, REPO, token=hub.token)
    api = HfApi(token=hub.token)
    for tag in ("v10.1", "version3", "v02", "release"):
        api.create_tag(REPO, tag=tag)
    release.add_evaluation(EVALUATION)
    assert zoo.push(release, REPO, token=hub.token).endswith("/tree/v2")


def test_private_on_request_and_never_public_by_mistake(release, hub):
    zoo.push(release, REPO, private=True, token=hub.token)
    assert HfApi(token=hub.token).model_info(REPO).private
    zoo.push(release, REPO, token=hub.token)  # stays private
    with pytest.raises(ReleaseError, match="does not exist, or is private"):
        zoo.open(REPO)
    HfApi(token=hub.token).create_repo("alice/public", private=False)
    since = len(hub.requests)
    with pytest.raises(ReleaseError, match="found a public one, expected private"):
        zoo.push(release, "alice/public", private=True, token=hub.token)
    assert asked(hub, since) == []


def test_a_branch_is_made_from_main_and_pushed_to(release, hub):
    zoo.push(release, REPO, token=hub.token)
    release.add_evaluation(EVALUATION)
    main = hub.commits(REPO)
    assert zoo.push(release, REPO, revision="trial", token=hub.token).endswith("/tree/v2")
    assert hub.commits(REPO) == main
    assert hub.commits(REPO, "trial")[1:] == main
    fresh = publish(release, "alice/fresh", revision="trial", token=hub.token)
    assert fresh.version == "v1"
    assert "config.json" not in hub.files("alice/fresh")
    for revision, message in [
        ("v3", "expected a branch"),
        ("a" * 40, "expected a branch"),
        ("..", "expected"),
    ]:
        with pytest.raises(ReleaseError, match=message):
            zoo.push(release, REPO, revision=revision, token=hub.token)


@pytest.mark.parametrize("file", ["metrics.json", "LICENSE"])
def test_a_push_that_somebody_overtakes_is_reported_and_overwrites_nothing(release, hub, file):
    zoo.push(release, REPO, token=hub.token)
    release.add_evaluation(EVALUATION)
    hub.fault(f"POST /api/models/{REPO}/preupload", delay=3)  # while this push waits, another commits
    with ThreadPoolExecutor(1) as pool:
        pushing = pool.submit(zoo.push, release, REPO, token=hub.token)
        wait_for(hub, "POST .*/preupload", times=2)
        theirs = hub.create(REPO, hub.files(REPO) | {file: b"theirs"})
        with pytest.raises(
            ReleaseError, match=r"changed by somebody else at the same time \(412\)"
        ) as caught:
            pushing.result()
    assert "run the same command again" in str(caught.value)
    assert hub.commits(REPO)[0] == theirs
    assert list(hub.tags(REPO)) == ["v1"]
    assert zoo.push(release, REPO, token=hub.token).endswith("/tree/v2"), "again, after looking"
    assert hub.commits(REPO)[1] == theirs


def wait_for(hub, match, times=1):
    deadline = time.monotonic() + 60
    while sum(bool(re.search(match, f"{method} {path}")) for method, path in hub.requests) < times:
        time.sleep(0.01)
        assert time.monotonic() < deadline


FAILING_AT = {
    "the first look": ("GET /api/models/.*/revision/main", 0),
    "creating the repository": ("POST /api/repos/create", 0),
    "looking at the new repository": ("GET /api/models/.*/revision/main", 1),
    "the check of the card": ("POST /api/validate-yaml", 0),
    "the client's check of the card": ("POST /api/validate-yaml", 1),
    "what to upload": ("POST /api/models/.*/preupload/", 0),
    "where to upload": (r"POST /.*/info/lfs/objects/batch", 0),
    "the upload": ("PUT /storage", 1),
    "the commit": ("POST /api/models/.*/commit/", 0),
    "the check of the commit": ("GET /api/models/.*/revision/[0-9a-f]{40}", 0),
    "the list of versions": ("GET /api/models/.*/refs", 0),
    "the tag": ("POST /api/models/.*/tag/", 0),
}


REFUSED, CUT, ANSWER_LOST = {"status": 403}, {"cut_after": 0}, {"cut_after": 1 << 30}
CHANGING = ("creating the repository", "the commit", "the tag")


@pytest.mark.parametrize(
    ("where", "how"),
    [
        *(pytest.param(where, REFUSED, id=f"{where} refused") for where in FAILING_AT),
        *(pytest.param(where, CUT, id=f"{where} cut") for where in FAILING_AT),
        *(pytest.param(where, ANSWER_LOST, id=f"{where} done, its answer lost") for where in CHANGING),
    ],
)
def test_failing_anywhere_it_leaves_all_or_nothing_and_the_same_push_finishes(
    made, hub, impatient, where, how
):
    match, skip = FAILING_AT[where]
    hub.fault(match, skip=skip, times=30, **how)  # however often the client tries
    with pytest.raises(ReleaseError, match=f'Hub repository "{REPO}"'):
        zoo.push(made, REPO, token=hub.token)
    if REPO in hub.store.repos:
        assert hub.tags(REPO) in ({}, {"v1": hub.commits(REPO)[0]})
        assert len(set(hub.files(REPO)) - {".gitattributes"}) in (0, len(list(made.path.iterdir())))
    hub.mend()
    assert zoo.push(made, REPO, token=hub.token).endswith("/tree/v1")
    assert hub.tags(REPO) == {"v1": hub.commits(REPO)[0]}
    assert len(hub.commits(REPO)) == 2
    assert zoo.open(f"{REPO}@v1").config == made.config


def test_killed_in_the_upload_the_same_command_finishes(made, hub):
    hub.fault("PUT /storage", delay=30.0)
    command = [sys.executable, "-m", "zoo", "push", str(made.path), REPO]
    environment = {**os.environ, "HF_TOKEN": hub.token}
    pushing = subprocess.Popen(command, env=environment)
    wait_for(hub, "PUT /storage")
    os.kill(pushing.pid, signal.SIGKILL)
    pushing.wait()
    assert hub.tags(REPO) == {}
    assert set(hub.files(REPO)) == {".gitattributes"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f'zoo.load("{REPO}@v1")' in done.stdout
    assert hub.tags(REPO) == {"v1": hub.commits(REPO)[0]}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"config.json": b'{"architecture": "resnet18"}'}, "holds a model that is no release"),
        ({"config.json": b'{"zoo": {"name": "resnet18.other"}}'}, 'holds the release "resnet18.other", not'),
        ({"config.json": b'{"zoo": '}, "holds a model that is no release"),
        ({"config.json": b"[" * 100_000}, "holds a model that is no release"),
        ({"model.safetensors": b"theirs"}, "holds model.safetensors of no release"),
    ],
)
def test_a_repository_that_holds_something_else_is_refused(release, hub, files, message):
    hub.create(REPO, files)
    with pytest.raises(ReleaseError, match=message):
        zoo.push(release, REPO, token=hub.token)
    assert asked(hub) == []
    assert hub.files(REPO) == files
    assert hub.tags(REPO) == {}


def damaged_number(folder):
    card = (folder / "README.md").read_text()
    (folder / "README.md").write_text(card.replace("## Limits", "## Results\n\n| knn | 99.9 |\n\n## Limits"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "recipe.yaml").write_text("seed: 4\n"), "recipe.yaml: sha256"),
        (lambda f: (f / "README.md").write_text("no metadata"), "README.md: .*no metadata"),
        (damaged_number, "99.9"),
        (lambda f: (f / "README.md").unlink(), "README.md is missing"),
        (lambda f: (f / "model.safetensors").write_bytes(b"half"), "model.safetensors"),
        (lambda f: (f / "config.json").write_text("{}"), "config.json"),
        (lambda f: (f / "metrics.json").write_text("[]"), "metrics.json"),
    ],
)
def test_nothing_is_sent_of_a_release_that_is_not_sound(release, hub, damage, message):
    damage(release.path)
    with pytest.raises(ReleaseError, match=message):
        zoo.push(release.path, REPO, token=hub.token)
    assert hub.requests == []


@pytest.mark.parametrize(
    ("repo_id", "near"),
    [
        ("alice/my model", "alice/my-model"),
        ("model", "alice/model"),
        ("https://huggingface.co/alice/model", "alice/model"),
        ("alice/model@v1", "alice/model"),
        ("alice/mo..del--x", "alice/mo.del-x"),
        (f"alice/{'x' * 97}", f"alice/{'x' * 96}"),
        ("alice/model.git", "alice/model"),
        ("", None),
        ("alice/", None),
    ],
)
def test_an_invalid_repository_name_gets_the_nearest_valid_spelling(release, hub, monkeypatch, repo_id, near):
    monkeypatch.setenv("ZOO_NAMESPACE", "alice")
    with pytest.raises(ReleaseError, match='expected "org/name"') as caught:
        zoo.push(release, repo_id, token=hub.token)
    assert (f'Did you mean "{near}"?' in str(caught.value)) == (near is not None)
    assert hub.requests == []


def test_a_gitignore_that_swallows_files_is_noticed(release, hub):
    hub.create(REPO, {"README.md": b""})
    hub.fault(
        "POST /api/models/.*/preupload",
        body=json.dumps(
            {"files": [{"path": n, "uploadMode": "lfs", "shouldIgnore": n == "model.safetensors"} for n in (
                "README.md", "centers.safetensors", "config.json", "curves.png", "metrics.json",
                "model.safetensors", "recipe.yaml")]}
        ).encode(),
    )  # fmt: skip
    with pytest.raises(ReleaseError, match=r"model\.safetensors are not what was pushed.*\.gitignore"):
        zoo.push(release, REPO, token=hub.token)
    assert hub.tags(REPO) == {}
    assert zoo.push(release, REPO, token=hub.token).endswith("v1")


def test_the_command_prints_the_address_and_the_line_that_loads_it(made, hub):
    command = [sys.executable, "-m", "zoo", "push", str(made.path), REPO, "--private"]
    environment = {**os.environ, "HF_TOKEN": hub.token}
    del environment["HF_HUB_DISABLE_PROGRESS_BARS"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == f'load it:  zoo.load("{REPO}@v1")'
    assert f"{hub.url}/{REPO}/tree/v1" in lines
    assert done.stderr == f"uploading 7 files, 1.1 MB, to {REPO}\n", (
        "off a terminal plain lines are the progress"
    )
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert again.stdout.splitlines()[1:] == lines[1:]
    assert again.stdout.startswith("nothing to push")
    loads = lines[-1].partition("  ")[2].replace(")", f', token="{hub.token}")')
    assert eval(loads, {"zoo": zoo}).num_features == 64


def test_a_dry_run_checks_all_it_can_without_the_hub_and_says_what_would_go_where(release, hub, monkeypatch):
    def said(*arguments):
        done = CliRunner().invoke(cli.app, ["push", str(release.path), *arguments, "--dry-run"])
        return done.exception or done.output

    monkeypatch.setenv("HF_TOKEN", hub.token)
    lines = said(REPO, "--private", "--revision", "trial").splitlines()
    assert lines[0] == f"{NAME}  {release.path}"
    facts = dict(line.split(maxsplit=1) for line in lines[2:])
    assert facts["to"] == f"{hub.url}/{REPO}, branch trial"
    assert facts["made"].startswith("private, if there is no such repository")
    assert (facts["licence"], facts["token"]) == (release.config["pretrained_cfg"]["license"], "found")
    sent = {name: int(text.split()[0].replace(",", "")) for name, text in facts.items() if "bytes" in text}
    zoo.push(release, REPO, token=hub.token)
    there = {name: len(content) for name, content in hub.files(REPO).items() if name != ".gitattributes"}
    assert sent == there, "the card counts as it is rendered for this repository"
    since = len(hub.requests)
    monkeypatch.delenv("HF_TOKEN")
    assert "none found, the push needs one" in said(REPO)
    assert lines[-1] == "nothing was sent, and the Hub was not asked what it holds already"
    assert "--dry-run: found with --license" in str(said(REPO, "--license", "mit"))
    assert "version tags are made by the push itself" in str(said(REPO, "--revision", "v1"))
    (release.path / "model.safetensors").write_bytes(b"")
    assert "model.safetensors" in str(said(REPO))
    assert len(hub.requests) == since


@pytest.mark.parametrize("endpoint", ["POST /api/models/.*/tag/", "GET /api/models/.*/refs"])
def test_a_server_that_knows_no_tags_gets_the_release_and_names_its_commit(made, hub, endpoint):
    hub.fault(endpoint, times=100, status=404)
    with pytest.warns(ZooWarning, match="The release is there as commit .*, and gets no version"):
        url = zoo.push(made, REPO, token=hub.token)
    commit = hub.commits(REPO)[0]
    assert url.endswith(f"/tree/{commit}")
    assert zoo.open(f"{REPO}@{commit}").name == made.name
    with pytest.warns(ZooWarning, match="gets no version"):  # the same again changes nothing
        assert zoo.push(made, REPO, token=hub.token) == url


def test_a_server_that_lists_no_sizes_is_asked_for_its_tree(made, hub):
    hub.store.tells_sizes = False
    url = zoo.push(made, REPO, token=hub.token)
    assert url.endswith("/tree/v1") and zoo.push(made, REPO, token=hub.token) == url
    assert zoo.open(REPO).config == made.config
    assert any("/tree/" in path for _, path in hub.requests)
