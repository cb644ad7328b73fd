"""What a name means, and that no request is needed to tell."""

import shutil
from pathlib import Path

import pytest

import zoo
from tests.hub_helpers import NAME
from zoo.errors import ReleaseError
from zoo.hub import resolve


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A working folder with a release, a folder and a recipe, and one shipped release."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("zoo.catalog.shared_folder", lambda folder: tmp_path / "share" / folder)
    (tmp_path / "share" / "recipes").mkdir(parents=True)
    (tmp_path / "share" / "recipes" / "cifar_resnet20.recipe.yaml").touch()
    (tmp_path / "release").mkdir()
    return tmp_path


def test_what_lies_here_is_found_without_a_request(made, hub, here):
    for folder in (f"alice/{NAME}", "my runs/paco--2", f"share/model_cards/{NAME}"):
        shutil.copytree(made.path, here / folder)
    for name, kind in (
        *((f"alice/{NAME}", "folder"), (f"./alice/{NAME}", "folder"), (here / "alice" / NAME, "folder")),
        *((NAME, "shipped"), (f"shipped:{NAME}", "shipped"), ("my runs/paco--2", "folder")),
    ):
        assert resolve(name).kind == kind
        assert zoo.open(name).name == NAME
    shutil.copytree(made.path, here / NAME)
    assert (resolve(NAME).kind, resolve(f"shipped:{NAME}").kind) == ("folder", "shipped")
    assert hub.requests == []


@pytest.mark.parametrize(
    ("name", "revision", "spelling"),
    [
        ("org/name@v1", None, "hf-hub:org/name@v1"),
        ("hf-hub:org/name", "feature/x", "hf-hub:org/name@feature/x"),
        ("https://hf.co/org/name/", None, "hf-hub:org/name"),
        ("https://huggingface.co/org/name/tree/v1", None, "hf-hub:org/name@v1"),
        ("hf-hub:timm/resnet50.a1_in1k", None, "timm:resnet50.a1_in1k"),
        (Path("models--org--name", "snapshots", "a" * 40), None, f"hf-hub:org/name@{'a' * 40}"),
    ],
)
def test_repositories_have_one_spelling(name, revision, spelling, hub):
    assert resolve(name, revision).spelling == spelling
    assert resolve(spelling).spelling == spelling
    assert hub.requests == []


@pytest.mark.parametrize(
    ("name", "revision", "message"),
    [
        *(("org/name@v1", "v2", "org/name@v1@v2"), ("org/name@../v1", None, "expected")),
        *(("./release", "v1", "no revisions"), ("hf-hub:../../etc/passwd", None, "etc/passwd")),
        *(("org/my model", None, "org/my model"), ("shipped:nothing", None, "shipped:nothing")),
        *(("", None, "no release"), ("a\0b", None, "a.x00b")),
        ("./relaese", None, r'Did you mean "release"\?'),
        ("cifar_resnet20.recipe", None, "zoo pretrain cifar_resnet20.recipe"),
        ("~nobody-here/x", None, "nobody-here"),
    ],
)
def test_a_name_that_means_nothing_is_refused_without_a_request(name, revision, message, hub):
    with pytest.raises(ReleaseError, match=message) as caught:
        zoo.open(name, revision=revision)
    assert "\n" not in str(caught.value)
    assert hub.requests == []
