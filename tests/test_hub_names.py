"""What a name means, what is refused as ambiguous, and that no request is needed to tell."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import zoo
from tests.release_helpers import release_of, some_centers, trained_encoder
from zoo.errors import ReleaseError
from zoo.hub import resolve

NAME = "cifar_resnet20.paco_test"


@pytest.fixture(scope="module")
def releases(tmp_path_factory):
    """Two releases of one name with different weights."""
    made = []
    for seed in (0, 1):
        folder = tmp_path_factory.mktemp("made") / NAME
        made.append(release_of(folder, trained_encoder(seed=seed), centers=some_centers(64)).path)
    return made


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty working folder, and no shipped release."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(zoo.__file__).parent.parent))
    monkeypatch.setattr("zoo.catalog._shared", lambda folder: tmp_path / "share" / folder)
    return tmp_path


def publish(release: Path, hub, repo_id: str) -> str:
    return hub.create(repo_id, {file.name: file.read_bytes() for file in release.iterdir()})


def ship(release: Path, here: Path) -> None:
    shutil.copytree(release, here / "share" / "model_cards" / NAME)


def test_what_lies_here_is_found_without_a_request(releases, hub, here):
    shutil.copytree(releases[0], here / "alice" / NAME)
    shutil.copytree(releases[0], here / "my runs" / "paco--2")  # as no repository can be called
    ship(releases[0], here)
    for name, kind in (
        *((f"alice/{NAME}", "folder"), (f"./alice/{NAME}", "folder"), (here / "alice" / NAME, "folder")),
        *((NAME, "shipped"), (f"shipped:{NAME}", "shipped"), ("my runs/paco--2", "folder")),
    ):
        assert resolve(name).kind == kind
        assert zoo.open(name).name == NAME
    with pytest.raises(ReleaseError, match=r"config\.json is missing"):
        zoo.open("alice")  # a folder that holds no release
    assert hub.requests == []


@pytest.mark.parametrize("kind", ["folder and shipped", "folder and hub"])
def test_two_different_readings_are_refused_with_both_spellings(releases, hub, here, kind):
    one, other = releases
    name = f"alice/{NAME}" if "hub" in kind else NAME
    if "hub" in kind:
        publish(other, hub, name)
        zoo.open(f"hf-hub:{name}")
    else:
        ship(other, here)
    shutil.copytree(one, here / name)
    with pytest.raises(ReleaseError, match="can mean") as caught:
        zoo.load(name)
    spellings = [f"./{name}", f"hf-hub:{name}" if "hub" in kind else f"shipped:{name}"]
    assert all(f'("{spelling}")' in str(caught.value) for spelling in spellings)
    assert len({zoo.open(spelling).config["zoo"]["weights_sha256"] for spelling in spellings}) == 2
    shutil.copytree(other, here / name, dirs_exist_ok=True)
    assert resolve(name).kind == "folder", "the same release"


@pytest.mark.parametrize(
    ("name", "revision", "spelling"),
    [
        ("org/name@v1", None, "hf-hub:org/name@v1"),
        ("hf-hub:org/name", "feature/x", "hf-hub:org/name@feature/x"),
        ("https://huggingface.co/org/name", None, "hf-hub:org/name"),
        ("https://hf.co/org/name/", None, "hf-hub:org/name"),
        ("https://huggingface.co/org/name/tree/v1", None, "hf-hub:org/name@v1"),
        ("timm:resnet50", None, "timm:resnet50.a1_in1k"),
        ("hf-hub:timm/resnet50.a1_in1k", None, "timm:resnet50.a1_in1k"),
    ],
)
def test_repositories_have_one_spelling(name, revision, spelling, hub):
    assert resolve(name, revision).spelling == spelling
    assert resolve(spelling).spelling == spelling
    assert hub.requests == []


@pytest.mark.parametrize(
    ("name", "revision", "message"),
    [
        *(("org/name@v1", "v2", "expected one branch"), ("org/name@../v1", None, "expected one branch")),
        ("./release", "v1", "has no revisions"),
        ("org/my model", None, r'Did you mean "org/my-model"\?'),
        ("hf-hub:org/name.git", None, r'Did you mean "org/name"\?'),
        ("org/a--b", None, r'Did you mean "org/a-b"\?'),
        ("hf-hub:../../etc/passwd", None, 'expected "org/name"'),
        *(("shipped:nothing", None, 'no release "shipped:nothing"'), ("", None, 'no release ""')),
        ("./relaese", None, r'no folder "relaese"\. Did you mean "release"\?'),
        ("cifar_resnet20.recipe", None, '"zoo pretrain cifar_resnet20.recipe" makes them'),
        ("resnet50", None, '"timm:resnet50"'),
        ("timm:resnet18.tv_in2k", None, r'"resnet18\.tv_in2k".*"resnet18\.tv_in1k"'),
        *((name, None, "") for name in ("a/" + "x" * 5000, "~nobody-here/x", "a\0b")),
    ],
)
def test_a_name_that_means_nothing_is_refused_without_a_request(name, revision, message, hub, here):
    (here / "release").mkdir()
    recipes = here / "share" / "recipes"
    recipes.mkdir(parents=True)
    (recipes / "cifar_resnet20.recipe.yaml").touch()
    with pytest.raises(ReleaseError, match=message) as caught:
        zoo.open(name, revision=revision)
    assert "\n" not in str(caught.value)
    assert hub.requests == []


def test_names_are_read_and_the_hub_is_listed_without_torch(hub):
    code = (
        "import sys, zoo; from zoo.hub import resolve\n"
        "print(resolve('org/name@v1').kind, zoo.list_hub('alice'))\n"
        "assert not {'torch', 'timm'} & set(sys.modules), 'torch was imported'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "hub []\n"), done.stderr
