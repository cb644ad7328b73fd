"""Recipes of published settings: what a family may differ in; `golden/recipes.json` has every value."""

from __future__ import annotations

import fnmatch
from typing import Any

import pytest
import timm
import torch

from zoo.recipe import Recipe

IMBALANCES = (100, 50, 10)
LONG_TAILED = ("paco", "gpaco", "balanced_softmax", "bcl", "ce", "sup_con", "ldam_drw")


def plain(name: str) -> dict[str, Any]:
    return Recipe.load(name).model_dump(mode="json")


def test_places_lt_trains_the_last_block_norms_and_nothing_else_of_the_encoder() -> None:
    """The authors freeze every convolution, then release those of `layer4[-1]`."""
    with torch.device("meta"):
        encoder = timm.create_model("resnet152", num_classes=0)
    convolutions = {f"{n}.weight" for n, m in encoder.named_modules() if isinstance(m, torch.nn.Conv2d)}
    patterns = plain("resnet152.paco_places_lt")["init"]["freeze"]
    names = [name for name, _ in encoder.named_parameters()]
    frozen = {name for pattern in patterns for name in fnmatch.filter(names, pattern)}
    assert frozen == {name for name in convolutions if not name.startswith("layer4.2.")}


def without_identity(name: str) -> dict[str, Any]:
    """The recipe without its name, description, data set and imbalance."""
    data = plain(name)
    del data["name"], data["description"], data["data"]["source"]["kind"]
    if data["data"]["long_tail"]:
        del data["data"]["long_tail"]["imbalance"]
    return data


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
@pytest.mark.parametrize("method", LONG_TAILED)
def test_a_long_tailed_family_differs_in_the_imbalance_alone(method: str, dataset: str) -> None:
    names = [f"cifar_resnet32.{method}_{dataset}_lt{imbalance}" for imbalance in IMBALANCES]
    assert [plain(name)["data"]["long_tail"]["imbalance"] for name in names] == list(IMBALANCES)
    assert {plain(name)["data"]["source"]["kind"] for name in names} == {dataset}
    recipes = [without_identity(name) for name in names]
    if (method, dataset) == ("gpaco", "cifar100"):  # its authors' scripts have a rate for each imbalance
        rates = [(each["optimizer"].pop("lr"), each["schedule"].pop("warmup_lr")) for each in recipes]
        assert dict(zip(IMBALANCES, rates, strict=True)) == {
            100: (0.1, 0.01),
            50: (0.05, 0.005),
            10: (0.05, 0.005),
        }
    assert all(each == recipes[0] for each in recipes)


@pytest.mark.parametrize("method", LONG_TAILED)
def test_a_long_tailed_family_is_the_same_on_both_data_sets(method: str) -> None:
    ten, hundred = (without_identity(f"cifar_resnet32.{method}_{d}_lt100") for d in ("cifar10", "cifar100"))
    assert ten == hundred


@pytest.mark.parametrize(
    ("base", "other", "keys"),
    [
        # and so in the second view, which a classifier has no use for
        ("paco_cifar100_lt100", "balanced_softmax_cifar100_lt100", "objective views"),
        ("ce_cifar100_lt100", "ldam_drw_cifar100_lt100", "method"),
        ("bcl_cifar100_lt100", "bcl_cifar100_lt100_e400", "training schedule"),
        *((f"paco_cifar100_lt{i}", f"paco_ft_cifar100_lt{i}", "objective") for i in IMBALANCES),
        *(
            (f"balanced_softmax_cifar100_lt{i}", f"ce_autoaugment_cifar100_lt{i}", "objective")
            for i in (100, 10)
        ),
    ],
)
def test_recipes_that_are_compared_differ_in_what_is_compared_alone(base: str, other: str, keys: str) -> None:
    ours, theirs = (without_identity(f"cifar_resnet32.{name}") for name in (base, other))
    assert {key for key in ours if ours[key] != theirs[key]} == {*keys.split()}
