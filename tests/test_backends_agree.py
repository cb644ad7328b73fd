"""Training on the device's batched views and on PIL views from workers ends alike: `pytest -m slow`."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

import zoo

SEEDS = (0, 1, 2)


# what is measured, and what an encoder reaches that has learned (a random one's probe: 66)
RECIPES = {
    "cifar_resnet20.paco_digits_lt50": ("classifier", 85.0),
    "cifar_resnet20.moco_v2_ft_digits_lt50": ("linear", 70.0),
}


def accuracies(recipe: str, backend: str, protocol: str, folder: Path) -> list[float]:
    found = []
    for seed in SEEDS:
        changes = [f"views.backend={backend}", "views.workers=0", f"training.seed={seed}"]
        release = zoo.pretrain(recipe, out=folder / f"{backend}{seed}", overrides=changes)
        entry = next(e for e in release.metrics["evaluations"] if e["protocol"] == protocol)
        found.append(entry["metrics"]["balanced_accuracy"])
    return found


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("recipe", RECIPES)
def test_both_backends_reach_the_same_accuracy_within_the_spread_of_seeds(
    recipe: str, tmp_path: Path
) -> None:
    protocol, floor = RECIPES[recipe]
    found = {
        backend: accuracies(recipe, backend, protocol, tmp_path) for backend in ("tensor", "torchvision")
    }
    print(recipe, protocol, found)
    means = {backend: statistics.mean(values) for backend, values in found.items()}
    assert min(means.values()) > floor
    spread = max(max(values) - min(values) for values in found.values())
    assert abs(means["tensor"] - means["torchvision"]) <= spread
