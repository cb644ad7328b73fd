"""The shipped releases are whole, load by name, and can be trained again from their own recipe."""

from pathlib import Path

import pytest
import torch

import zoo
from tests.release_helpers import plain_timm
from zoo.recipe import Recipe
from zoo.release import card, format

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


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


def marked(name: str) -> object:
    if "_digits" in name:
        return name
    slow = [] if name == "cifar_resnet32.paco_cifar100_lt100" else [pytest.mark.slow]  # all take half an hour
    return pytest.param(name, marks=[pytest.mark.shared, *slow])


@pytest.mark.parametrize("name", [*map(marked, zoo.list_models())])
def test_recorded_accuracies_come_out_again_and_evaluating_changes_no_shipped_file(name: str) -> None:
    release, data = zoo.open(name), None if "_digits" in name else SHARED / "cifar100"
    if data is not None and not data.is_dir():
        pytest.skip("no data beside the project")
    before = (release.path / "metrics.json").read_bytes()
    quick = "classifier" if release.centers is not None else "knn"
    recorded = [each for each in release.metrics["evaluations"] if data is None or each["protocol"] == quick]
    assert recorded
    for entry in recorded:  # a classifier as it stands, and with the prior taken off
        # with one validation image in a class rounding decides which strength wins: the recorded one is given
        asked = {"l2_grid": [entry["chosen"]["l2"]]} if entry["protocol"] == "linear" else {}
        asked = asked if data is None else entry["settings"]
        again = zoo.evaluate(name, entry["protocol"], data, save=data is None, **asked)
        assert (again["settings"], again["seed"]) == (entry["settings"] | asked, entry["seed"])
        assert again["test_set"]["sha256"] == entry["test_set"]["sha256"]
        for group in ("accuracy",) if data is None else ("accuracy", "many", "medium", "few"):
            expected = entry["metrics"][group]  # None where all classes have many images
            # another machine may round a borderline image to the other side
            assert again["metrics"][group] == (expected and pytest.approx(expected, abs=0.4)), group
    assert (release.path / "metrics.json").read_bytes() == before
