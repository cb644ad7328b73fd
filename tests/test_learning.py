"""Every objective learns on real data: trained for some seconds, measured on the balanced test digits.

Each threshold lies between what the objective reached over seeds and what it gets when its learning is cut
(the starting encoder, or a classifier at chance), so that a broken gradient or a wrong label fails.
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch

import zoo
from tests.seeds import assert_one_gains
from zoo import demo
from zoo.recipe import Recipe

pytestmark = pytest.mark.usefixtures("no_pictures")


def metrics(release: zoo.Release, protocol: str) -> dict[str, Any]:
    return next(e["metrics"] for e in release.metrics["evaluations"] if e["protocol"] == protocol)


BCL = "cifar_resnet20.bcl_digits_lt50"


@pytest.mark.parametrize("name", [demo.PACO, demo.BALANCED_SOFTMAX, demo.CROSS_ENTROPY, BCL])
def test_supervised_objectives_learn_the_digits(name: str, tmp_path: Path) -> None:
    release = zoo.pretrain(name, out=tmp_path / "r", overrides=["training.epochs=30", "training.seed=0"])
    assert metrics(release, "classifier")["balanced_accuracy"] > 70  # chance is 10
    rows = [r for r in zoo.training.RunFolder(release.path / "run").rows() if r["epoch"] > 25]
    assert mean(r["train_accuracy"] for r in rows) > 85


def gain(name: str, release: zoo.Release, recipe: Recipe) -> float:
    """Balanced accuracy of the linear probe, above that of the encoder that the training began with."""
    start = demo._probe(demo._random_encoder(recipe), recipe)
    return float(metrics(release, "linear")["balanced_accuracy"] - start["balanced_accuracy"])


# Points gained over the starting encoder: about half of what the recipe's header reports for seed 0.
MARGINS = {
    "cifar_resnet20.margin_digits_lt50": 5,
    "cifar_resnet20.moco_hard_digits_lt50": 7,
    "cifar_resnet20.moco_hard_simple_digits_lt50": 5,
    "cifar_resnet20.moco_simple_digits_lt50": 3,
    "cifar_resnet20.moco_v3_digits_lt50": 5,
    "cifar_resnet20.simclr_digits_lt50": 5,
    "cifar_resnet20.sup_con_digits_lt50": 8,
}


# Its two halves, "hard" and "simple", learn here each.
LONGER = {"cifar_resnet20.moco_hard_simple_digits_lt50"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LONGER else []) for name in MARGINS]
)
def test_objectives_learn_features(name: str, tmp_path: Path) -> None:
    def learned(seed: int) -> float:
        changes = [f"training.seed={seed}"]
        release = zoo.pretrain(name, out=tmp_path / str(seed), overrides=changes)
        return gain(name, release, Recipe.load(name, changes))

    assert_one_gains(learned, MARGINS[name])


def test_bcl_learns_features_from_its_contrast_alone(tmp_path: Path) -> None:
    """Seeds 0, 1, 2 gain 15, 17, 19 points; without the classifier's loss to learn from instead."""

    def learned(seed: int) -> float:
        changes = [f"training.seed={seed}", "training.epochs=30", "objective.classification_weight=0.0"]
        release = zoo.pretrain(BCL, out=tmp_path / str(seed), overrides=changes)
        return gain(BCL, release, Recipe.load(BCL, changes))

    assert_one_gains(learned, 8)


def test_a_vision_transformer_learns_with_moco_v3(tmp_path: Path) -> None:
    """With frozen patch embedding and fixed positions; by neighbours, which a random ViT is bad at."""
    name = "vit_tiny_patch16_224.moco_v3_digits_lt50"
    recipe = Recipe.load(name)
    start = zoo.pretrain(name, out=tmp_path / "start", overrides=["optimizer.lr=0.0", "training.epochs=6"])
    release = zoo.pretrain(recipe, out=tmp_path / "r")
    patches = "patch_embed.proj.weight"
    assert torch.equal(*(zoo.load(r.path).get_parameter(patches) for r in (start, release)))
    assert metrics(release, "knn")["balanced_accuracy"] > metrics(start, "knn")["balanced_accuracy"] + 10


def test_moco_with_ft_learns_features_without_labels(tmp_path: Path) -> None:
    """Seeds scatter by four points here (nine had gains of 1 to 12, mean 7), so three of them count."""
    gains = []
    for seed in (0, 1, 2):
        changes = [
            *("training.epochs=60", "objective.feature_transform.start_epoch=20"),
            f"training.seed={seed}",
        ]
        release = zoo.pretrain(demo.MOCO, out=tmp_path / str(seed), overrides=changes)
        gains.append(gain(demo.MOCO, release, Recipe.load(demo.MOCO, changes)))
    assert mean(gains) > 2.5


def test_pico_finds_the_true_labels_and_comes_near_full_supervision(tmp_path: Path) -> None:
    """Each of the nine wrong digits is a candidate with probability 0.5: uniform targets are 30 % right."""
    pico = zoo.pretrain("cifar_resnet20.pico_digits_q05", out=tmp_path / "pico")
    supervised = zoo.pretrain("cifar_resnet20.ce_digits", out=tmp_path / "ce")
    rows = zoo.training.RunFolder(pico.path / "run").rows()
    assert rows[0]["disambiguation_accuracy"] < 30  # warm-up: ties count as a share
    found = pico.metrics["training"]["disambiguation_accuracy"]
    assert found > 90
    gap = metrics(supervised, "classifier")["accuracy"] - metrics(pico, "classifier")["accuracy"]
    assert gap < 5
    assert pico.centers.prototypes.shape == (10, 32)
    assert pico.config["zoo"]["dataset"]["partial_labels"]["rate"] == 0.5


def test_ft_lowers_positive_scores_and_raises_the_negatives_variance(tmp_path: Path) -> None:
    """The two curves of the FT paper, everything else equal: seed, data, order, start.

    The positives that the loss sees fall when FT begins. They do not stay below those of a run without FT:
    within an epoch the encoder answers with closer pairs. The raw negatives' variance is the higher one in
    the end, though mixing lowers it within a step.
    """
    each = ["training.log_every=1", "training.observe_every=1"]
    changes = ["training.epochs=40", *each, "evaluation=[]"]
    runs = []
    for ft in ("start_epoch=10", None):
        change = f"objective.feature_transform.{ft}" if ft else "objective.feature_transform=null"
        release = zoo.pretrain(demo.MOCO, out=tmp_path / str(ft), overrides=[*changes, change])
        runs.append(zoo.training.RunFolder(release.path / "run").rows())
    with_ft, without = runs

    def over(rows: list[dict[str, float]], key: str, first: int, last: int) -> float:
        return mean(row[key] for row in rows if first < row["epoch"] <= last)

    first = next(i for i, row in enumerate(with_ft) if "positive_score_ft" in row)
    assert with_ft[first]["positive_score"] == pytest.approx(without[first]["positive_score"], rel=1e-4)
    assert with_ft[first]["positive_score_ft"] < without[first]["positive_score"] - 0.1
    variance = over(with_ft, "negative_variance", 30, 40)
    assert variance > 1.2 * over(without, "negative_variance", 30, 40)


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
