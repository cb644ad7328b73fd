"""`zoo.push`: one commit over real HTTP, repeated, merged with others' work, refused."""

import json
import shutil

import numpy as np
import pytest
from huggingface_hub import ModelCard, constants

import zoo
from tests.hub_helpers import EVALUATION, NAME, REPO
from tests.release_helpers import release_of, some_centers, trained_encoder
from zoo.config import dump_yaml
from zoo.errors import ReleaseError
from zoo.release.provenance import license_of
from zoo.release.tensors import ImageList

BEGIN = "<!-- Notes of your own go below this line: they stay when zoo writes this card again. -->\n"


@pytest.fixture
def release(made, tmp_path):
    """A copy of that release, to be changed."""
    return zoo.open(shutil.copytree(made.path, tmp_path / NAME))


@pytest.fixture
def pushed(release, hub):
    """The release, pushed."""
    zoo.push(release, REPO, token=hub.token)
    return release


def push(release, hub, **options):
    return zoo.push(release.path, REPO, token=hub.token, **options)


def card_of(hub):
    return ModelCard(hub.files(REPO)["README.md"].decode())


def edit_card(hub, change):
    """Change the card on the Hub, as the web editor does."""
    card = card_of(hub)
    change(card)
    return hub.edit(REPO, "README.md", str(card).encode())


def note(text, after=BEGIN):
    """Return a change that writes between the marks of the notes."""
    return lambda card: setattr(card, "text", card.text.replace(after, f"{after}{text}\n"))


def metadata(**values):
    return lambda card: [card.data.__setitem__(key, value) for key, value in values.items()]


def test_everything_goes_up_in_one_commit_and_the_same_push_changes_nothing(made, release, hub):
    (release.path / "notes.txt").write_text("mine")
    address = push(release, hub)
    commit = hub.commits(REPO)[0]
    assert address == f"{hub.url}/{REPO}/tree/{commit}"
    assert len(hub.commits(REPO)) == 2, "creating a repository is a commit, and the push is one"
    there = hub.files(REPO)
    assert there.keys() == {".gitattributes"} | {file.name for file in made.path.iterdir()}
    assert all(there[file.name] == file.read_bytes() for file in made.path.glob("*.[jsy]*"))
    assert f'"{REPO}"' in there["README.md"].decode() and "ORG/" not in there["README.md"].decode()
    assert push(release, hub) == address and len(hub.commits(REPO)) == 2


def test_a_changed_release_takes_its_old_files_away_and_leaves_others(pushed, hub):
    edited = hub.edit(REPO, "LICENSE", b"theirs")
    assert push(pushed, hub).endswith(edited), "another file needs no commit"
    (pushed.path / "curves.png").unlink()
    pushed.add_evaluation(EVALUATION)
    before = hub.files(REPO)
    push(pushed, hub)
    changed = {name for name, _ in before.items() ^ hub.files(REPO).items()}
    assert changed == {"README.md", "curves.png", "metrics.json"}
    assert hub.files(REPO)["LICENSE"] == b"theirs"
    uploads = [path for method, path in hub.requests if method == "PUT"]
    assert len(uploads) == len(set(uploads)), "weights that are there are not sent again"


def test_notes_licence_gate_tags_and_evaluations_of_others_are_kept(pushed, hub, tmp_path):
    theirs = zoo.pull(REPO, out=tmp_path / "theirs")
    theirs.add_evaluation({**EVALUATION, "protocol": "linear"})
    push(theirs, hub)
    tags = [*card_of(hub).data.tags, "own-tag"]
    edit_card(hub, metadata(license="cc-by-nc-4.0", extra_gated_prompt="Ask first.", tags=tags))
    edit_card(hub, note("A colleague's note."))
    pushed.add_evaluation(EVALUATION)
    push(pushed, hub)
    card = card_of(hub)
    assert (card.data.license, card.data.extra_gated_prompt) == ("cc-by-nc-4.0", "Ask first.")
    assert "own-tag" in card.data.tags and "contrastive-zoo" in card.data.tags
    assert "A colleague's note." in card.text
    assert {result.dataset_config for result in card.data.eval_results} == {"knn", "linear"}
    there = hub.files(REPO)
    assert json.loads(there["config.json"])["pretrained_cfg"]["license"] == "cc-by-nc-4.0"
    assert len(json.loads(there["metrics.json"])["evaluations"]) == 2
    # the folder has them now, also after zoo writes its card anew
    pushed.add_evaluation({**EVALUATION, "protocol": "few_shot"})
    assert "A colleague's note." in pushed.card and "Ask first." in pushed.card
    address = push(pushed, hub)
    assert card_of(hub).data.extra_gated_prompt == "Ask first."
    assert push(pushed, hub) == address
    # what is removed on the Hub stays removed
    edit_card(hub, lambda card: card.data.pop("extra_gated_prompt"))
    pushed.add_evaluation({**EVALUATION, "data": "more"})
    push(pushed, hub)
    assert "extra_gated_prompt" not in card_of(hub).data.to_dict()


CONFLICTS = {
    "notes": (note("theirs"), "notes differs"),
    "licence": (metadata(license="mit"), "config.json differs"),
    "text": (note("By hand.", "\n## Features\n"), "outside the notes"),
    "results": (metadata(library_name="x"), "library_name"),
}


@pytest.mark.parametrize("what", CONFLICTS)
def test_what_both_sides_changed_is_refused_with_both_versions_until_one_is_chosen(pushed, hub, what):
    change, named = CONFLICTS[what]
    base, theirs = hub.commits(REPO)[0], edit_card(hub, change)
    pushed.with_license("cc-by-4.0")
    card = pushed.path / "README.md"
    card.write_text(card.read_text().replace(BEGIN, f"{BEGIN}ours\n"))
    before = {file: file.read_bytes() for file in pushed.path.iterdir()}
    with pytest.raises(ReleaseError, match=named) as refused:
        push(pushed, hub)
    assert theirs in str(refused.value) and base[:7] in str(refused.value)
    assert hub.commits(REPO)[0] == theirs
    assert {file: file.read_bytes() for file in pushed.path.iterdir()} == before
    push(pushed, hub, base=theirs)
    assert card_of(hub).data.license == "cc-by-4.0" and "\nours\n" in card_of(hub).text


def test_another_machines_copy_replaces_nothing_that_it_does_not_know(made, pushed, hub, tmp_path):
    copy = zoo.open(shutil.copytree(made.path, tmp_path / "elsewhere"))
    first, noted = hub.commits(REPO)[0], edit_card(hub, note("note"))
    assert push(copy, hub).endswith(noted), "the note is taken over"
    assert "note" in copy.card
    retrained = release_of(tmp_path / "retrained", trained_encoder(seed=1), centers=some_centers(64))
    with pytest.raises(ReleaseError, match=r"model\.safetensors differs .*no common version"):
        push(retrained, hub)
    with pytest.raises(ReleaseError, match='revision "v9": there is no such'):
        push(retrained, hub, base="v9")
    push(retrained, hub, base=first)
    assert "note" in card_of(hub).text


def test_new_weights_replace_old_ones_and_figures_stay_with_their_weights(pushed, hub, tmp_path):
    theirs = zoo.pull(REPO, out=tmp_path / "theirs")
    late = zoo.pull(REPO, out=tmp_path / "late")
    theirs.add_evaluation(EVALUATION)
    push(theirs, hub)
    release_of(pushed.path, trained_encoder(seed=1), centers=some_centers(64))
    address = push(pushed, hub)
    assert json.loads(hub.files(REPO)["metrics.json"])["evaluations"] == []
    assert push(theirs, hub) == address, "a colleague without changes gets the new weights"
    assert zoo.open(theirs.path).config == zoo.open(pushed.path).config
    zoo.open(theirs.path).verify()
    late.add_evaluation(EVALUATION)  # of the old weights
    with pytest.raises(ReleaseError, match=r"model\.safetensors differs"):
        push(late, hub)


def test_a_push_that_somebody_overtakes_is_reported_and_overwrites_nothing(pushed, hub):
    pushed.add_evaluation(EVALUATION)
    hub.fault("/commit/", do=lambda: hub.edit(REPO, "LICENSE", b"theirs"))
    with pytest.raises(ReleaseError, match="changed at the same time"):
        push(pushed, hub)
    push(pushed, hub)
    assert hub.files(REPO)["LICENSE"] == b"theirs" and b"91.5" in hub.files(REPO)["metrics.json"]


def test_downloads_and_shipped_releases_are_pushed_without_being_changed(pushed, hub):
    cached = zoo.open(REPO)
    address = zoo.push(cached, "alice/copy", token=hub.token)
    assert zoo.push(cached, "alice/copy", token=hub.token) == address
    edit_card(hub, note("theirs"))
    with pytest.raises(ReleaseError, match="push a copy"):
        push(cached, hub)
    assert not (cached.path / ".hub.json").exists() and "theirs" not in cached.card


@pytest.mark.parametrize(("source", "sent"), [("cifar10", True), ("folder", False)])
def test_hashes_of_own_images_are_not_sent(hub, tmp_path, source, sent):
    images = {"train": ImageList(np.arange(1347), "a" * 64)}
    facts = {"name": "x", "sha256": "a" * 64, "num_images": 1347, "source": source, "hub_id": "alice/private"}
    release = release_of(tmp_path / "own", trained_encoder(), images=images, dataset=facts)
    address = push(release, hub)
    assert ("images.safetensors" in hub.files(REPO)) == bool(zoo.pull(REPO).images) == sent
    assert push(release, hub) == address and zoo.open(release.path).images


def test_no_path_of_a_start_is_published_and_nothing_that_is_not_sound(release, hub, tmp_path):
    text = dump_yaml({"init": {"release": str(release.path)}, "seed": 3})
    tuned = release_of(tmp_path / "tuned", trained_encoder(seed=1), recipe_text=text)
    with pytest.raises(ReleaseError, match=r"init\.release: found the folder"):
        push(tuned, hub)
    for what in ("README.md", "model.safetensors", "recipe.yaml", "config.json"):  # and nothing unsound
        whole = (release.path / what).read_bytes()
        (release.path / what).write_text("{}")
        with pytest.raises(ReleaseError, match=what):
            push(release, hub)
        (release.path / what).write_bytes(whole)
    assert hub.requests == []


def test_a_repository_that_holds_something_else_is_refused(release, hub, tmp_path):
    renamed = {"name": "cifar_resnet20.o", "centers": some_centers(64)}  # the same weights
    push(release_of(tmp_path / "other", trained_encoder(), **renamed), hub)
    for files, message in (
        (hub.files(REPO), r"config\.json differs"),
        ({"config.json": b'{"zoo": '}, "not valid JSON"),
        ({"pytorch_model.bin": b"theirs"}, r"holds pytorch_model\.bin"),
    ):
        hub.create(REPO, files)
        with pytest.raises(ReleaseError, match=message):
            push(release, hub)
        assert hub.files(REPO) == files


def test_private_on_request_and_never_public_by_mistake(release, hub):
    push(release, hub, private=True)
    assert hub.repos[REPO].private
    hub.create("alice/public", {})
    with pytest.raises(ReleaseError, match="found a public one, expected private"):
        zoo.push(release, "alice/public", private=True, token=hub.token)
    assert hub.files("alice/public") == {}


def test_a_branch_is_made_from_main_and_pushed_to(pushed, hub):
    pushed.add_evaluation(EVALUATION)
    main = hub.commits(REPO)
    push(pushed, hub, revision="trial")
    assert (hub.commits(REPO), hub.commits(REPO, "trial")[1:]) == (main, main)
    push(pushed, hub)
    assert hub.files(REPO)["metrics.json"] == hub.files(REPO, "trial")["metrics.json"]


def test_tokens_that_are_missing_wrong_or_read_only_are_told_apart(release, hub, monkeypatch):
    for token, repo, message in (
        *((False, REPO, r"log in.*401"), ("hf_wrong", REPO, r"needs another token.*401")),
        *((hub.read_token, REPO, "no right to this"), (hub.token, "foreign/name", "no right to this")),
    ):
        with pytest.raises(ReleaseError, match=message):
            zoo.push(release, repo, token=token)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ReleaseError, match="HF_HUB_OFFLINE is set"):
        push(release, hub)
    assert hub.repos == {}


STEPS = {
    "creating the repository": ("POST /api/repos/create", 0),
    "the upload": ("PUT /storage", 1),
    "the commit": ("POST /api/models/.*/commit/", 0),
}
HOW = {"refused": {"status": 400}, "cut": {"cut": "before"}, "done, its answer lost": {"cut": "after"}}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("where", STEPS)
def test_failing_leaves_all_or_nothing_and_a_repeat_ends_it(made, release, hub, impatient, where, how):
    match, skip = STEPS[where]
    hub.fault(match, skip=skip, times=30, **HOW[how])  # however often the client tries
    with pytest.raises(ReleaseError, match=f'Hub repository "{REPO}"') as failed:
        push(release, hub)
    assert "\n" not in str(failed.value)
    whole = {".gitattributes"} | {file.name for file in made.path.iterdir()}
    if REPO in hub.repos:
        assert hub.files(REPO).keys() in ({".gitattributes"}, whole)
    hub.mend()
    push(release, hub)
    assert len(hub.commits(REPO)) == 2 and hub.files(REPO).keys() == whole


def test_a_branch_has_a_history_of_its_own_and_its_commit_is_no_base_on_main(pushed, hub, tmp_path):
    for value in (80.0, 81.0):  # a second time, too
        pushed.add_evaluation({**EVALUATION, "metrics": {"accuracy": value}})
        push(pushed, hub, revision="dev")
    push(pushed, hub)
    retrained = release_of(tmp_path / NAME, trained_encoder(seed=1), centers=some_centers(64))
    push(retrained, hub, revision="dev", base=hub.commits(REPO, "dev")[0])
    at = hub.commits(REPO, "dev")[0]
    pulled = zoo.pull(f"{REPO}@{at}", out=tmp_path / "dev")
    with pytest.raises(ReleaseError, match=r"model\.safetensors differs .*no common version"):
        push(pulled, hub)
    assert zoo.open(pulled.path).config == pulled.config, "its weights stay"


def test_a_licence_edited_on_the_hub_is_that_of_every_copy_and_of_what_starts_from_it(pushed, hub, tmp_path):
    edit_card(hub, metadata(license="cc-by-nc-4.0"))
    assert license_of(zoo.open(REPO).path, zoo.open(REPO).config) == "cc-by-nc-4.0"
    edit_card(hub, metadata(widget=[{"text": "a"}], tags="one-word"))  # which zoo writes none of, and no list
    pulled = zoo.pull(REPO, out=tmp_path / "copy")
    pulled.add_evaluation(EVALUATION)
    push(pulled, hub, base=hub.commits(REPO)[0])
    assert card_of(hub).data.widget == [{"text": "a"}] and "contrastive-zoo" in card_of(hub).data.tags
    assert pulled.config["pretrained_cfg"]["license"] == "cc-by-nc-4.0"
    push(pulled, hub)
    assert card_of(hub).data.license == "cc-by-nc-4.0"


def test_weights_that_somebody_replaced_alone_are_not_overwritten(pushed, release, hub):
    theirs = hub.files(REPO)["model.safetensors"][:-4] + b"1234"
    commit = hub.edit(REPO, "model.safetensors", theirs)
    with pytest.raises(ReleaseError, match=r"model\.safetensors differs"):
        push(pushed, hub)
    assert hub.files(REPO)["model.safetensors"] == theirs
    push(pushed, hub, base=commit)
    assert hub.files(REPO)["model.safetensors"] != theirs


def test_pictures_are_published_if_the_card_shows_them_and_json_without_a_mark(release, hub):
    for name in ("patient.png", "mine.png", "impatient.png"):
        (release.path / name).write_bytes(b"\x89PNG")
    card = release.path / "README.md"
    card.write_text(card.read_text().replace(BEGIN, f"{BEGIN}![](mine.png) and ![](impatient.png)\n"))
    config = release.path / "config.json"
    config.write_bytes(b"\xef\xbb\xbf" + config.read_bytes())
    push(release, hub)
    files = hub.files(REPO)
    assert "mine.png" in files and "patient.png" not in files
    assert json.loads(files["config.json"])["architecture"] == "cifar_resnet20"
