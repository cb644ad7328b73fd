"""Every objective learns on real data: trained for some seconds, measured on the balanced test digits.

Each threshold lies between what the objective reached over seeds and what it gets when its learning is cut
(the starting encoder, or a classifier at chance), so that a broken gradient or a wrong label fails.
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import pytest

import zoo
from zoo import demo
from zoo.training import Recipe


def metrics(release: zoo.Release, protocol: str) -> dict[str, Any]:
    return next(e["metrics"] for e in release.metrics["evaluations"] if e["protocol"] == protocol)


@pytest.mark.parametrize("name", [demo.PACO, demo.BALANCED_SOFTMAX, demo.CROSS_ENTROPY])
def test_supervised_objectives_learn_the_digits(name: str, tmp_path: Path) -> None:
    release = zoo.pretrain(name, out=tmp_path / "r", overrides=["training.epochs=30", "training.seed=0"])
    assert metrics(release, "classifier")["balanced_accuracy"] > 70  # chance is 10
    rows = [r for r in zoo.training.RunFolder(release.path / "run").rows() if r["epoch"] > 25]
    assert mean(r["train_accuracy"] for r in rows) > 85


def test_moco_with_ft_learns_features_without_labels(tmp_path: Path) -> None:
    """On 8 x 8 digits, long tail 50: the linear probe gains at least 5 points on the starting encoder."""
    changes = ["training.epochs=60", "objective.feature_transform.start_epoch=20"]
    release = zoo.pretrain(demo.MOCO, out=tmp_path / "r", overrides=changes)
    recipe = Recipe.load(demo.MOCO)
    start = demo._probe(demo._random_encoder(recipe), recipe)
    gain = metrics(release, "linear")["balanced_accuracy"] - start["balanced_accuracy"]
    assert gain > 5, gain


@pytest.mark.slow
def test_the_table_of_the_demo_over_three_seeds(tmp_path: Path) -> None:
    """The claims of the README: PaCo is no worse than Balanced Softmax and well above cross-entropy."""
    tables = [demo.run(tmp_path / str(seed), seed) for seed in range(3)]

    def over_seeds(method: str, metric: str) -> float:
        return mean(table[method][metric] for table in tables)

    paco = over_seeds("PaCo", "balanced_accuracy")
    assert paco >= over_seeds("Balanced Softmax", "balanced_accuracy") - 1
    assert paco >= over_seeds("cross-entropy", "balanced_accuracy") + 3
    assert over_seeds("PaCo", "few") >= over_seeds("cross-entropy", "few") + 6
    gain = over_seeds("MoCo v2 + FT", "balanced_accuracy") - over_seeds("random encoder", "balanced_accuracy")
    assert gain >= 5
