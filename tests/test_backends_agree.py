"""Training on the device's batched views and on PIL views from workers ends alike: `pytest -m slow`."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

import zoo

SEEDS = (0, 1, 2)


def accuracies(recipe: str, backend: str, folder: Path) -> list[float]:
    found = []
    for seed in SEEDS:
        changes = [f"views.backend={backend}", "views.workers=0", f"training.seed={seed}"]
        release = zoo.pretrain(recipe, out=folder / f"{backend}{seed}", overrides=changes)
        linear = next(e for e in release.metrics["evaluations"] if e["protocol"] == "linear")
        found.append(linear["metrics"]["balanced_accuracy"])
    return found


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "recipe", ["cifar_resnet20.paco_digits_lt50", "cifar_resnet20.moco_v2_ft_digits_lt50"]
)
def test_both_backends_reach_the_same_accuracy_within_the_spread_of_seeds(
    recipe: str, tmp_path: Path
) -> None:
    found = {backend: accuracies(recipe, backend, tmp_path) for backend in ("tensor", "torchvision")}
    print(recipe, found)
    spread = max(max(values) - min(values) for values in found.values())
    apart = abs(statistics.mean(found["tensor"]) - statistics.mean(found["torchvision"]))
    assert spread < 8  # else nothing could be told
    assert apart <= spread
