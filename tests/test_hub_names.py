"""What a name means: the order of readings, what is refused as ambiguous, and when the network is asked."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import zoo
from tests import warm
from tests.release_helpers import release_of, some_centers, trained_encoder
from zoo import settings
from zoo.errors import RecipeError, ReleaseError
from zoo.release import names

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
    """An empty working folder and configuration, and no shipped release."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    monkeypatch.setenv("PYTHONPATH", str(Path(zoo.__file__).parent.parent))
    monkeypatch.delenv("ZOO_NAMESPACE", raising=False)
    monkeypatch.setattr("zoo.catalog._shared", lambda folder: tmp_path / "share" / folder)
    return tmp_path


def ship(release: Path, here: Path) -> None:
    shutil.copytree(release, here / "share" / "model_cards" / NAME)


def ship_recipe(name: str, here: Path) -> None:
    (here / "share" / "recipes").mkdir(parents=True)
    (here / "share" / "recipes" / f"{name}.yaml").touch()


def publish(release: Path, hub, repo_id: str) -> str:
    return hub.create(repo_id, {file.name: file.read_bytes() for file in release.iterdir()})


def test_the_order_is_folder_repository_shipped_namespace(releases, hub, here, monkeypatch):
    monkeypatch.setenv("ZOO_NAMESPACE", "alice")
    publish(releases[0], hub, f"alice/{NAME}")
    assert names.resolve(NAME) == names.Reading("hub", f"alice/{NAME}", others=names.resolve(NAME).others)
    assert zoo.open(NAME).name == NAME
    shutil.rmtree(hub.home)
    hub.home.mkdir()
    ship(releases[0], here)
    assert names.resolve(NAME).kind == "shipped"
    shutil.copytree(releases[0], here / NAME)
    assert names.resolve(NAME).kind == "folder"
    assert names.resolve(f"alice/{NAME}").kind == "hub"
    shutil.copytree(releases[0], here / "alice" / NAME)
    assert names.resolve(f"alice/{NAME}").kind == "folder"


def test_a_local_reading_never_asks_the_network(releases, hub, here, monkeypatch):
    monkeypatch.setenv("ZOO_NAMESPACE", "alice")
    shutil.copytree(releases[0], here / "alice" / NAME)
    ship(releases[0], here)
    for name in (f"alice/{NAME}", f"./alice/{NAME}", NAME, f"shipped:{NAME}", here / "alice" / NAME):
        assert zoo.open(name).name == NAME
    with pytest.raises(ReleaseError):
        zoo.open(f"alice/{NAME}", revision="v1")
    with pytest.raises(ReleaseError):
        zoo.open("alice")  # a folder that holds no release
    assert hub.requests == []


@pytest.mark.parametrize("kind", ["folder and shipped", "folder and hub", "shipped and namespace"])
def test_two_different_readings_are_refused_with_both_spellings(releases, hub, here, monkeypatch, kind):
    one, other = releases
    name, spellings = NAME, []
    if "hub" in kind or "namespace" in kind:
        publish(other, hub, f"alice/{NAME}")
        zoo.open(f"hf-hub:alice/{NAME}")
        spellings.append(f"hf-hub:alice/{NAME}")
    if "shipped" in kind:
        ship(other if "folder" in kind else one, here)
        spellings.append(f"shipped:{NAME}")
    if kind == "folder and hub":
        name = f"alice/{NAME}"
    if "folder" in kind:
        shutil.copytree(one, here / name)
        spellings.append(f"./{name}")
    monkeypatch.setenv("ZOO_NAMESPACE", "alice")
    asked = len(hub.requests)
    with pytest.raises(ReleaseError, match="can mean") as caught:
        zoo.load(name)
    assert len(spellings) == 2
    hashes = set()
    for spelling in spellings:
        assert f'("{spelling}")' in str(caught.value)
        hashes.add(zoo.open(spelling).config["zoo"]["weights_sha256"])
    assert len(hashes) == 2
    assert len(hub.requests) - asked <= 1, "only the spelling that means the Hub asks it"


def test_two_readings_of_the_same_release_are_none_too_many(releases, hub, here):
    publish(releases[0], hub, f"alice/{NAME}")
    zoo.open(f"alice/{NAME}")
    shutil.copytree(releases[0], here / "alice" / NAME)
    reading = names.resolve(f"alice/{NAME}")
    assert reading.kind == "folder"
    assert reading.others == (f"the Hub repository alice/{NAME} is the same release",)


def test_a_folder_without_a_release_is_not_looked_for_on_the_hub(releases, hub, here):
    publish(releases[0], hub, "runs/unfinished")
    (here / "runs" / "unfinished").mkdir(parents=True)
    with pytest.raises(ReleaseError, match=r'config\.json is missing.*"hf-hub:runs/unfinished"'):
        zoo.load("runs/unfinished")
    assert hub.requests == []
    assert zoo.open("hf-hub:runs/unfinished").name == NAME


def test_revisions_are_part_of_a_repositorys_name_alone(releases, hub, here, monkeypatch):
    reading = names.resolve("org/name@v1")
    assert (reading.target, reading.revision, reading.spelling) == ("org/name", "v1", "hf-hub:org/name@v1")
    assert names.resolve("hf-hub:org/name", "feature/x").revision == "feature/x"
    page = "https://huggingface.co/org/name"
    assert {names.resolve(each).spelling for each in (page, f"{page}/", "org/name")} == {"hf-hub:org/name"}
    assert names.resolve(f"{page}/tree/v1").spelling == "hf-hub:org/name@v1"
    monkeypatch.setenv("ZOO_NAMESPACE", "alice")
    assert names.resolve("name@v2").spelling == "hf-hub:alice/name@v2"
    for name, revision, message in [
        ("org/name@v1", "v2", "name two revisions"),
        ("org/name@../v1", None, "expected a branch, a tag or a commit"),
        ("org/name", "a..b", "expected a branch, a tag or a commit"),
        ("./somewhere", "v1", "has no revisions"),
    ]:
        with pytest.raises(ReleaseError, match=message):
            names.resolve(name, revision)
    shutil.copytree(releases[0], here / "org" / "name")
    with pytest.raises(
        ReleaseError, match='has no revisions; for the one on the Hub write "hf-hub:org/name"'
    ):
        names.resolve("org/name", "v1")
    assert names.resolve("org/name@v1").kind == "hub"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("org/my model", r'Did you mean "org/my-model"\?'),
        ("hf-hub:org/name.git", r'Did you mean "org/name"\?'),
        ("hf-hub:name", r'expected "org/name".*Did you mean "alice/name"\?'),
        ("org/a--b", r'Did you mean "org/a-b"\?'),
        ("hf-hub:../../etc/passwd", 'expected "org/name"'),
        ("shipped:nothing", 'no shipped release "nothing"'),
        ("a/b/c", 'no folder "a/b/c", no Hub repository'),
        ("not a name", 'no folder "not a name", no shipped release'),
        ("", 'no release ""'),
        ("./relaese", r'no folder "relaese"\. Did you mean "release"\?'),
    ],
)
def test_a_name_that_means_nothing_is_refused_without_a_request(name, message, hub, here, monkeypatch):
    monkeypatch.setenv("ZOO_NAMESPACE", "alice")
    (here / "release").mkdir()
    with pytest.raises(ReleaseError, match=message):
        zoo.open(name)
    assert hub.requests == []


def test_a_recipe_without_shipped_weights_is_said_to_be_one(hub, here):
    file = here / "share" / "recipes" / f"{NAME}.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("name: x\n")
    said = f'a recipe of that name is shipped, its weights are not: "zoo pretrain {NAME}" makes them'
    for name, start in (
        (NAME, f'no release "{NAME}": '),
        (f"shipped:{NAME}", f'no shipped release "{NAME}": '),
    ):
        with pytest.raises(ReleaseError) as caught:
            zoo.open(name)
        assert str(caught.value).startswith(start + said)
        assert "Did you mean" not in str(caught.value)


def test_a_name_of_timm_without_its_prefix_is_told_the_prefix(hub, here):
    for name in ("resnet50.a1_in1k", "resnet50"):
        with pytest.raises(ReleaseError, match=r'"timm:resnet50\.a1_in1k"'):
            zoo.open(name)


def test_timms_names_mean_its_repositories_and_wrong_ones_are_answered_with_the_nearest():
    for name in ("timm:resnet50.a1_in1k", "timm:resnet50", "hf-hub:timm/resnet50.a1_in1k"):
        reading = names.resolve(name)
        assert (reading.target, reading.spelling) == ("timm/resnet50.a1_in1k", "timm:resnet50.a1_in1k")
    with pytest.raises(ReleaseError, match=r'"resnet18\.tv_in2k".*"resnet18\.tv_in1k"'):
        names.resolve("timm:resnet18.tv_in2k")
    for nothing in ("timm:", "timm:cifar_resnet20.tv_in1k"):
        with pytest.raises(ReleaseError, match="timm has no weights"):
            names.resolve(nothing)


def test_an_architecture_without_weights_is_said_to_be_one(hub, here):
    ship_recipe("cifar_resnet32.ce_cifar10", here)
    with pytest.raises(ReleaseError, match='that is an architecture, "zoo list cifar_resnet32" shows'):
        zoo.open("cifar_resnet32")
    with pytest.raises(ReleaseError) as caught:
        zoo.open("cifar_resnet32.nothing")
    assert "architecture" not in str(caught.value)
    with pytest.raises(ReleaseError, match="that is an architecture, of which no weights are known"):
        zoo.open("resnet200")


def test_the_namespace_comes_from_the_variable_or_the_file(here, monkeypatch):
    assert settings.namespace() is None
    file = settings.config_file()
    assert file == here / "configuration" / "zoo" / "config.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("namespace: from-file\n")
    assert settings.namespace() == "from-file"
    monkeypatch.setenv("ZOO_NAMESPACE", "from-variable")
    assert settings.namespace() == "from-variable"
    monkeypatch.setenv("ZOO_NAMESPACE", "")
    assert settings.namespace() is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("namespce: org\n", r'unknown key "namespce"\. Did you mean "namespace"\?'),
        ("namespace: [a]\n", '"namespace": found'),
        ("namespace: org/name\n", 'found "org/name", expected the name of a user'),
        ("namespace: ..\n", "expected the name of a user"),
        ("- 1\n", "config.yaml"),
        ("a: &b 1\nc: *b\n", "aliases are not allowed|anchors"),
    ],
)
def test_a_configuration_that_does_not_fit_is_one_clear_error(text, message, here):
    file = settings.config_file()
    file.parent.mkdir(parents=True)
    file.write_text(text)
    with pytest.raises(RecipeError, match=message):
        settings.namespace()


def test_show_says_how_the_name_was_read_and_what_else_was_tried(releases, here):
    shutil.copytree(releases[0], here / "org" / "name")
    done = warm.zoo("show", "org/name")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == (
        '"org/name" is read as the folder org/name; '
        "the Hub repository org/name was not asked for, and is not in the local cache"
    )


def test_names_are_read_and_recipes_shown_without_torch(hub, here):
    code = (
        "import sys; from zoo.release import names; print(names.resolve('org/name@v1').kind)\n"
        "sys.argv = ['zoo', 'show', 'cifar_resnet20.paco_cifar100_lt100_short']\n"
        "from zoo.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("hub\n#")
    assert hub.requests == []


def test_a_damaged_config_makes_readings_differ_and_not_fail(releases, hub, here):
    publish(releases[0], hub, f"alice/{NAME}")
    zoo.open(f"alice/{NAME}")
    folder = shutil.copytree(releases[0], here / "alice" / NAME)
    (folder / "config.json").write_text("[" * 100_000)
    with pytest.raises(ReleaseError, match="can mean"):
        zoo.open(f"alice/{NAME}")
    changed = json.loads((releases[0] / "config.json").read_text())
    changed["zoo"]["description"] = "another"
    (folder / "config.json").write_text(json.dumps(changed))
    with pytest.raises(ReleaseError, match="can mean"):
        zoo.open(f"alice/{NAME}")


@pytest.mark.parametrize("name", ["x" * 5000, "a/" + "x" * 5000, "~nobody-here/x", "./" + "x" * 5000, "a\0b"])
def test_a_name_that_no_folder_can_have_is_refused(name):
    with pytest.raises(ReleaseError):
        zoo.open(name)
