"""Recipes of published settings: what a family may differ in; `golden/recipes.json` has every value."""

from __future__ import annotations

import fnmatch
from typing import Any

import pytest
import timm
import torch

from zoo import catalog
from zoo.data import open_dataset
from zoo.data.long_tail import class_sizes
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


def test_paco_has_its_authors_views() -> None:
    first, second = plain("cifar_resnet32.paco_cifar100_lt100")["views"]["train"]
    assert [op["op"] for op in first] == ["pad_crop", "horizontal_flip", "auto_augment", "cutout"]
    assert (first[0]["padding"], first[2]["policy"], first[3]["size"]) == (4, "cifar10", 16)
    assert first[2]["variant"] == "paco"
    crop, _, jitter, gray, blur = second
    assert (crop["op"], crop["size"], crop["scale"]) == ("random_resized_crop", 32, [0.2, 1.0])
    strengths = [jitter[key] for key in ("brightness", "contrast", "saturation", "hue", "p")]
    assert strengths == [0.4, 0.4, 0.4, 0.1, 0.8]
    assert (gray["p"], blur["p"]) == (0.2, 0.5)


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


@pytest.mark.parametrize(
    ("arch", "source"),
    [
        ("resnet18_cifar", "cifar10"),
        ("resnet18_cifar", "cifar100"),
        ("cifar_resnet32", "cifar100"),
        ("convnext_atto", "cifar100"),
    ],
)
def test_ft_is_all_that_the_ft_recipe_adds(arch: str, source: str) -> None:
    base, ft = (without_identity(f"{arch}.moco_v2{tag}_{source}") for tag in ("", "_ft"))
    assert base["objective"].pop("feature_transform") is None
    found = ft["objective"].pop("feature_transform")
    assert (found["positives"]["alpha"], found["negatives"]["alpha"], found["start_epoch"]) == (2.0, 1.6, 0)
    assert base == ft


@pytest.mark.parametrize("name", [n for n in catalog.list_recipes() if not n.startswith("cifar_resnet20.")])
def test_header_says_where_the_target_was_read(name: str) -> None:
    target = catalog.recipe_header(catalog.recipe_path(name).read_text())["Target"]
    figure, _, rest = target.partition(";")
    if figure != "none":
        assert 30 < float(figure.removesuffix(" top-1")) < 100
        assert "[V" in rest or "[M" in rest  # read in a repository, or from memory


PER_CLASS = {"cifar10": (5_000, 10), "cifar100": (500, 100)}  # of the originals


def images(recipe: Recipe) -> int | None:
    """Return how many images are trained on; None where they are not at hand and not known."""
    data = recipe.data
    if data.source.kind == "digits":
        return len(open_dataset(data, "train", None))
    known = PER_CLASS.get("cifar100" if "cifar100" in recipe.name else data.source.kind)
    if known is None or data.subset is not None:
        return None
    of_each, classes = known
    if data.long_tail is None:
        return of_each * classes
    return sum(class_sizes(data.long_tail, data.long_tail.max_per_class or of_each, classes))


KNOWN = {name: count for name in catalog.list_recipes() if (count := images(Recipe.load(name))) is not None}


@pytest.mark.parametrize("name", KNOWN)
def test_the_last_batch_of_an_epoch_is_large_enough(name: str) -> None:
    section = Recipe.load(name).training
    last = 0 if section.drop_last else KNOWN[name] % section.batch_size
    assert last == 0 or last >= 8, f"{KNOWN[name]} images in batches of {section.batch_size}"
