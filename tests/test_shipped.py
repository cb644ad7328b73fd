"""The shipped releases are whole, load by name, and can be trained again from their own recipe."""

from __future__ import annotations

import pytest
import torch

import zoo
from tests.release_helpers import plain_timm
from zoo.release import card
from zoo.training import Recipe


@pytest.mark.parametrize("name", zoo.list_models())
def test_shipped_release(name: str) -> None:
    release = zoo.open(name)
    release.verify()
    card.check_card(release.path, release.config)
    assert release.card == card.render(release.path, release.config)
    assert release.name == name
    assert release.path.name == name
    recipe = Recipe.from_yaml((release.path / "recipe.yaml").read_text(), name)
    assert recipe == Recipe.load(name)  # the checkout's recipe is the one it was trained with
    assert not (release.path / "run").exists()
    images = torch.randn(2, 3, recipe.views.eval.size, recipe.views.eval.size)
    ours = zoo.load(name).eval()(images)
    theirs = plain_timm(release.path, num_classes=0)(images)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", zoo.list_models())
def test_recorded_accuracies_come_out_again_and_evaluating_changes_no_shipped_file(name: str) -> None:
    release = zoo.open(name)
    if release.recipe["data"]["source"]["kind"] != "digits":
        pytest.skip("its data are not embedded")
    before = (release.path / "metrics.json").read_bytes()
    for entry in release.metrics["evaluations"]:
        asked = {"k": entry["settings"]["k"]} if entry["protocol"] == "knn" else {}
        again = zoo.evaluate(name, entry["protocol"], **asked)
        # another machine may round a borderline image to the other side
        assert again["metrics"]["accuracy"] == pytest.approx(entry["metrics"]["accuracy"], abs=0.4)
    assert (release.path / "metrics.json").read_bytes() == before
