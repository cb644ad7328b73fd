"""What a reviewer broke by hand: each of these failed, or ended in a traceback, before."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time

import pytest
from huggingface_hub import HfApi
from zoo.release.push import publish

import zoo
from tests import warm
from tests.hub_helpers import NAME, REPO
from zoo.errors import ReleaseError
from zoo.release import names

KILLED = """
import os, pathlib, shutil, signal, sys
kind, count, repo, out, token = sys.argv[1:]
owner, name = {"copy": (shutil, "copyfile"), "replace": (pathlib.Path, "replace")}[kind]
import zoo.release.pull
original, calls = getattr(owner, name), 0
def deadly(source, *rest):
    global calls
    calls += kind == "copy" or pathlib.Path(out) in pathlib.Path(source).parents
    if calls > int(count):
        os.kill(os.getpid(), signal.SIGKILL)
    return original(source, *rest)
setattr(owner, name, deadly)
zoo.release.pull.pull(repo, out=out, token=token)
"""


@pytest.fixture
def release(made, tmp_path):
    return zoo.open(shutil.copytree(made.path, tmp_path / NAME))


def command(*arguments):
    run = warm.zoo(*arguments)
    assert "Traceback" not in run.stderr, run.stderr
    return run


@pytest.mark.parametrize("folder", ["my runs/paco", "runs/paco--2", "läufe/paco", "runs/" + "x" * 120])
def test_a_folder_may_have_a_name_that_no_repository_can_have(made, tmp_path, monkeypatch, folder):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made.path, folder)
    assert zoo.open(folder).name == NAME
    assert names.resolve(folder).others == (f'no Hub repository can be called "{folder}"',)
    with pytest.raises(ReleaseError, match="expected"):
        names.resolve(folder + " x")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("hardware", "\x1b]0;owned\x07", "control characters"),
        ("seconds", "long", '"training.seconds": found .long., expected a number'),
        ("versions", "3", "versions"),
    ],
)
def test_what_a_hostile_repository_says_of_its_training_is_not_printed(made, hub, key, value, message):
    files = {file.name: file.read_bytes() for file in made.path.iterdir()}
    metrics = json.loads(files["metrics.json"])
    run = {"epochs": 1, "seconds": 1.0, "hardware": "x", "seed": 0}
    metrics["training"] = {**run, key: value}
    hub.create(REPO, files | {"metrics.json": json.dumps(metrics).encode()})
    with pytest.raises(ReleaseError, match=message):
        _ = zoo.open(REPO).metrics
    shown = command("show", REPO)
    assert shown.returncode == 1
    assert "\x1b" not in shown.stdout + shown.stderr


def test_brackets_in_what_is_shown_are_no_markup(release):
    metrics = release.metrics
    metrics["training"] = {"epochs": 1, "seconds": 1.0, "hardware": "[/bold] [red]GPU[/red]", "seed": 0}
    entry = {"protocol": "k[/b]", "data": "d[/c]", "split": "test", "metrics": {"accuracy": 1.0}}
    metrics["evaluations"] = [entry, {**entry, "seed": 1}]
    (release.path / "metrics.json").write_text(json.dumps(metrics))
    shown = command("show", release.path)
    assert shown.returncode == 0
    assert all(said in shown.stdout for said in ("[/bold] [red]GPU[/red]", "k[/b]", "k[/b] #2", "d[/c]"))


def test_an_accuracy_that_is_no_number_and_counts_that_are_none_are_refused(release):
    metrics = release.metrics
    entry = {"protocol": "p", "data": "d", "split": "test", "metrics": {"accuracy": "99"}}
    (release.path / "metrics.json").write_text(json.dumps({**metrics, "evaluations": [entry]}))
    with pytest.raises(ReleaseError, match=r'evaluation 0: "accuracy": found .99., expected a number'):
        _ = release.metrics
    config = json.loads((release.path / "config.json").read_text())
    config["zoo"]["dataset"]["class_counts"] = 5
    (release.path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ReleaseError, match="class_counts"):
        zoo.open(release.path)


@pytest.mark.parametrize(("kind", "count"), [("copy", 2), ("replace", 2)])
def test_a_pull_killed_in_an_empty_folder_can_be_repeated(made, hub, tmp_path, kind, count):
    zoo.push(made, REPO, token=hub.token)
    out = tmp_path / "out"
    out.mkdir()
    run = subprocess.run(
        [sys.executable, "-c", KILLED, kind, str(count), REPO, str(out), hub.token], check=False
    )
    assert run.returncode == -9
    assert any(out.iterdir())
    assert zoo.pull(REPO, out=out).name == NAME
    zoo.open(out).verify()


def test_two_pushes_of_the_same_content_are_one_version(made, hub):
    zoo.push(made, REPO, token=hub.token)
    client = HfApi(token=hub.token)
    client.delete_tag(REPO, tag="v1")  # as right after another push's commit
    hub.fault("GET .*/refs", delay=3.0, skip=1)
    since, published = len(hub.requests), []
    late = threading.Thread(target=lambda: published.append(publish(made, REPO, token=hub.token)))
    late.start()
    while sum(path.endswith("/refs") for _, path in hub.requests[since:]) < 2:
        time.sleep(0.01)
    client.create_tag(REPO, tag="v1")
    late.join()
    assert [found.version for found in published] == ["v1"]
    assert list(hub.tags(REPO)) == ["v1"]


@pytest.mark.parametrize("case", ["many", "large"])
def test_what_pull_would_refuse_is_not_pushed(release, hub, case):
    png = b"\x89PNG\r\n\x1a\n"
    if case == "many":
        for index in range(101):
            (release.path / f"{index}.png").write_bytes(png)
    else:
        with (release.path / "large.png").open("wb") as stream:
            stream.truncate((32 << 20) + 1)
    release.render_card()
    with pytest.raises(ReleaseError, match=r"10[12] pictures|large.png has 33,554,433 bytes"):
        zoo.push(release, REPO, token=hub.token)
    assert REPO not in hub.store.repos


def test_the_card_shows_no_picture_that_a_push_leaves_behind(release, hub):
    for name in ("my plot.png", "übersicht.png", "curves.png"):
        (release.path / name).write_bytes(b"\x89PNG\r\n\x1a\n")
    assert "](curves.png)" in release.render_card()
    assert "plot" not in release.card
    zoo.push(release, REPO, token=hub.token)
    assert [name for name in hub.files(REPO) if name.endswith(".png")] == ["curves.png"]


@pytest.mark.parametrize("name", ["pytorch_model.bin", "weights/other.safetensors", "model.onnx"])
def test_a_repository_with_another_models_weights_keeps_its_card(made, hub, name):
    hub.create(REPO, {name: b"theirs", "README.md": b"theirs"})
    with pytest.raises(ReleaseError, match=f"holds {name} of no release"):
        zoo.push(made, REPO, token=hub.token)
    assert hub.files(REPO)["README.md"] == b"theirs"


def test_a_state_that_may_be_old_is_not_taken_silently(made, hub, impatient, caplog):
    zoo.push(made, REPO, token=hub.token)
    zoo.load(REPO)
    hub.fault(f"GET /api/models/{REPO}", 503, times=9)
    zoo.pull(REPO)
    assert "taking what the local cache has" in caplog.text


def test_weights_far_larger_than_their_architecture_are_not_fetched(hub, made):
    files = {file.name: file.read_bytes() for file in made.path.iterdir() if file.is_file()}
    hub.create("evil/fat", {**files, "model.safetensors": files["model.safetensors"] + bytes(9 << 20)})
    with pytest.raises(
        ReleaseError, match=r"model\.safetensors has .* bytes, expected at most .* nothing of it"
    ):
        zoo.load("evil/fat")
    assert not [path for _, path in hub.requests if path.startswith("/storage")]


def test_a_damaged_cache_says_how_it_is_mended(hub, made):
    zoo.push(made, REPO, token=hub.token)
    weights = zoo.pull(REPO).path / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.resolve().write_bytes(data)
    with pytest.raises(ReleaseError, match=r'"zoo pull" of the repository mends the cache'):
        zoo.load(REPO)
    assert zoo.pull(REPO).load() is not None


def test_showing_a_release_fetches_no_weights_and_changes_nothing_for_offline_use(hub, made):
    zoo.push(made, REPO, token=hub.token)
    shown = command("show", f"{REPO}@v1")
    assert shown.returncode == 0, shown.stderr
    assert NAME in shown.stdout
    assert not [
        path for _, path in hub.requests if path.startswith("/storage") and "model.safetensors" in path
    ]
    offline = subprocess.run(
        [sys.executable, "-m", "zoo", "show", f"{REPO}@v1"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert "it is not in the local cache" in offline.stderr
    assert zoo.load(f"{REPO}@v1") is not None


def test_a_model_whose_card_data_are_no_mapping_is_listed_without_results() -> None:
    from huggingface_hub import ModelInfo
    from zoo.release.hub.browse import _described

    found = _described(ModelInfo(id="org/name", cardData=True, tags=[], private=False))
    assert (found.repo_id, found.accuracy) == ("org/name", "")
