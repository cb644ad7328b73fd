"""Every objective learns on real data: trained for some seconds, measured on the balanced test digits.

Each threshold lies between what the objective reached over seeds and what it gets when its learning is cut
(the starting encoder, or a classifier at chance), so that a broken gradient or a wrong label fails.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import zoo
from zoo import demo
from zoo.recipe import Recipe

pytestmark = pytest.mark.usefixtures("no_pictures")


def metrics(release: zoo.Release, protocol: str) -> dict[str, Any]:
    return next(e["metrics"] for e in release.metrics["evaluations"] if e["protocol"] == protocol)


BCL = "cifar_resnet20.bcl_digits_lt50"


@pytest.mark.parametrize("name", [demo.PACO, demo.BALANCED_SOFTMAX, BCL])
def test_supervised_objectives_learn_the_digits(name: str, tmp_path: Path) -> None:
    release = zoo.pretrain(name, out=tmp_path / "r", overrides=["training.epochs=30", "training.seed=0"])
    assert metrics(release, "classifier")["balanced_accuracy"] > 70  # chance is 10


def gain(name: str, release: zoo.Release, recipe: Recipe) -> float:
    """Balanced accuracy of the first probe, above that of the encoder that the training began with."""
    start = demo.probe(demo.random_encoder(recipe), recipe)
    protocol = next(each.protocol for each in recipe.evaluation if each.protocol != "classifier")
    return float(metrics(release, protocol)["balanced_accuracy"] - start["balanced_accuracy"])


# Points gained over the starting encoder: about half of what the recipe's header reports for seed 0.
MARGINS: dict[str, tuple[float, list[str]]] = {
    "cifar_resnet20.margin_digits_lt50": (5, []),
    "cifar_resnet20.moco_hard_digits_lt50": (7, []),
    "cifar_resnet20.moco_simple_digits_lt50": (3, []),
    "cifar_resnet20.moco_v3_digits_lt50": (5, []),
    "cifar_resnet20.simclr_digits_lt50": (5, []),
    "cifar_resnet20.sup_con_digits_lt50": (8, []),
    # three seeds had gains of 24 to 27; raw pixels are 16 above the starting encoder
    demo.MOCO: (18, []),
    # from its contrast alone, without the classifier's loss to learn from instead: 15 to 19
    BCL: (8, ["training.epochs=30", "objective.classification_weight=0.0"]),
}


@pytest.mark.parametrize("name", MARGINS)
def test_objectives_learn_features(name: str, tmp_path: Path) -> None:
    margin, overrides = MARGINS[name]

    def learned(seed: int) -> float:
        changes = [f"training.seed={seed}", *overrides]
        release = zoo.pretrain(name, out=tmp_path / str(seed), overrides=changes)
        return gain(name, release, Recipe.load(name, changes))

    assert_one_gains(learned, margin)


def test_a_vision_transformer_learns_with_moco_v3(tmp_path: Path) -> None:
    """With frozen patch embedding and fixed positions; by neighbours, which a random ViT is bad at."""
    name = "vit_tiny_patch16_224.moco_v3_digits_lt50"
    start = zoo.pretrain(name, out=tmp_path / "start", overrides=["optimizer.lr=0.0", "training.epochs=6"])
    release = zoo.pretrain(name, out=tmp_path / "r")
    before, after = (dict(zoo.load(each.path).named_parameters()) for each in (start, release))
    fixed = {"patch_embed.proj.weight", "patch_embed.proj.bias", "pos_embed"}
    assert {name for name, value in after.items() if torch.equal(value, before[name])} == fixed
    assert metrics(release, "knn")["balanced_accuracy"] > metrics(start, "knn")["balanced_accuracy"] + 10


def test_pico_finds_the_true_labels(tmp_path: Path) -> None:
    """Each of the nine wrong digits is a candidate with probability 0.5: uniform targets are 30 % right."""
    pico = zoo.pretrain("cifar_resnet20.pico_digits_q05", out=tmp_path / "pico")
    rows = zoo.training.RunFolder(pico.path / "run").rows()
    assert rows[0]["disambiguation_accuracy"] < 30  # warm-up: ties count as a share
    found = pico.metrics["training"]["disambiguation_accuracy"]
    assert found > 90
    assert pico.centers.prototypes.shape == (10, 32)


SEEDS = (0, 1, 2)


def assert_one_gains(gain: Callable[[int], float], more_than: float) -> None:
    """Make sure that `gain(seed)` is enough for one of three seeds; what learns nothing gains with none.

    Another processor rounds otherwise, which is as much as another seed. A seed is trained only where those
    before it did not do.
    """
    found: list[float] = []
    for seed in SEEDS:
        found.append(gain(seed))
        if found[-1] > more_than:
            return
    pytest.fail(f"gains of {len(SEEDS)} seeds: {found}, expected one above {more_than}")
