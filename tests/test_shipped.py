"""The shipped releases are whole, load by name, and can be trained again from their own recipe."""

from pathlib import Path

import pytest
import torch

import zoo
from tests.release_helpers import plain_timm
from zoo.recipe import Recipe
from zoo.release import card, format

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
DIGITS = [name for name in zoo.list_models() if "_digits" in name]
CIFAR100 = [name for name in zoo.list_models() if name not in DIGITS]


@pytest.mark.parametrize("name", zoo.list_models())
def test_shipped_release(name: str) -> None:
    release = zoo.open(name)
    release.verify()
    card.check_card(release.path, release.config)
    assert release.card == card.render(release.path, release.config)
    written = (release.path / "metrics.json").read_text()
    assert written == format.to_json(release.metrics)  # as it is written today: nothing is added in reading
    for entry in release.metrics["evaluations"]:
        assert (entry["metric"], entry["value"]) == ("accuracy", entry["metrics"]["accuracy"])
        assert entry["split"] == "test" and "seed" in entry and entry["date"].startswith("2026-11-")
    recipe = Recipe.from_yaml((release.path / "recipe.yaml").read_text(), name)
    assert release.name == release.path.name == recipe.name == name
    images = torch.randn(2, 3, recipe.views.eval.size, recipe.views.eval.size)
    theirs = plain_timm(release.path, num_classes=0)(images)
    assert torch.equal(zoo.load(name).eval()(images), theirs)


@pytest.mark.parametrize("name", DIGITS)
def test_recorded_accuracies_come_out_again_and_evaluating_changes_no_shipped_file(name: str) -> None:
    release = zoo.open(name)
    before = (release.path / "metrics.json").read_bytes()
    for entry in release.metrics["evaluations"]:
        # with one validation image in a class rounding decides which strength wins: the recorded one is given
        asked = {"l2_grid": [entry["chosen"]["l2"]]} if entry["protocol"] == "linear" else {}
        again = zoo.evaluate(name, entry["protocol"], **asked)
        assert (again["settings"], again["seed"]) == (entry["settings"] | asked, entry["seed"])
        # another machine may round a borderline image to the other side
        assert again["value"] == pytest.approx(entry["value"], abs=0.4)
    assert (release.path / "metrics.json").read_bytes() == before


@pytest.mark.shared
@pytest.mark.parametrize(
    "name",  # at 160 pixels it takes minutes
    [pytest.param(name, marks=pytest.mark.slow) if name.startswith("tf_") else name for name in CIFAR100],
)
def test_recorded_accuracies_on_cifar100_come_out_again(name: str) -> None:
    root = SHARED / "cifar100"
    if not root.is_dir():
        pytest.skip("no data beside the project")
    release = zoo.open(name)
    entries = release.metrics["evaluations"]
    protocol = "classifier" if release.centers is not None else "knn"
    measured = [entry for entry in entries if entry["protocol"] == protocol]
    assert measured
    for recorded in measured:  # a classifier as it stands, and with the prior taken off
        again = zoo.evaluate(name, protocol, root, save=False, **recorded["settings"])
        assert again["test_set"]["sha256"] == recorded["test_set"]["sha256"]
        for group in ("accuracy", "many", "medium", "few"):
            expected = recorded["metrics"][group]  # None where all classes have many images
            expected = expected and pytest.approx(expected, abs=0.2)  # a borderline image may round otherwise
            assert again["metrics"][group] == expected
