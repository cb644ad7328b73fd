"""Recipes of published settings: their figures against the sources, and what a family may differ in."""

from __future__ import annotations

import fnmatch
from typing import Any

import pytest
import timm
import torch

from zoo import catalog
from zoo.recipe import Recipe

IMBALANCES = (100, 50, 10)
LONG_TAILED = ("paco", "gpaco", "balanced_softmax", "bcl", "ce", "sup_con", "ldam_drw")
# Figures of the authors' repositories, written down a second time.
FACTS: dict[str, dict[str, Any]] = {
    "cifar_resnet32.paco_cifar100_lt100": {
        "data.long_tail": {"profile": "exponential", "imbalance": 100.0, "seed": 0, "max_per_class": None},
        "objective.alpha": 0.01,
        "objective.beta": 1.0,
        "objective.gamma": 1.0,
        "objective.center_tau": 1.0,
        "objective.rebalance": True,
        "objective.reduction": "mean",
        "objective.label_smoothing": 0.0,
        "objective.tau": 0.05,
        "objective.queue_size": 1024,
        "objective.dim": 32,
        "objective.head_layers": 2,
        "objective.head_batchnorm": True,
        "objective.momentum": 0.999,
        "objective.key_groups": 1,
        "optimizer.name": "momentum",
        "optimizer.lr": 0.05,
        "optimizer.momentum": 0.9,
        "optimizer.weight_decay": 5e-4,
        "training.batch_size": 128,
        "training.epochs": 400,
        "training.drop_last": True,
        "schedule.name": "multistep",
        "schedule.warmup_epochs": 10,
        "schedule.milestones": [320, 360],
        "schedule.decay_rate": 0.1,
    },
    "cifar_resnet32.gpaco_cifar100_lt100": {
        "objective.head_layers": 3,
        "objective.head_batchnorm": False,
        "objective.tau": 0.05,
        "optimizer.lr": 0.1,
    },
    "cifar_resnet32.bcl_cifar100_lt100": {
        "objective.classification_weight": 2.0,
        "objective.contrast_weight": 0.6,
        "objective.tau": 0.1,
        "objective.dim": 128,
        "objective.head_hidden": 512,
        "objective.head_batchnorm": True,
        "optimizer.lr": 0.15,
        "optimizer.weight_decay": 5e-4,
        "training.batch_size": 256,
        "training.epochs": 200,
        "schedule.warmup_epochs": 5,
        "schedule.milestones": [160, 180],
        "schedule.decay_rate": 0.1,
    },
    "resnet50.bcl_imagenet_lt": {
        "objective.classification_weight": 1.0,
        "objective.contrast_weight": 0.35,
        "objective.tau": 0.07,
        "objective.dim": 1024,
        "objective.head": "cosine",
        "objective.scale": 30.0,
        "optimizer.lr": 0.1,
        "optimizer.weight_decay": 5e-4,
        "schedule.name": "cosine",
        "training.batch_size": 256,
        "training.epochs": 90,
    },
    "cifar_resnet32.ce_cifar100_lt100": {
        "objective.loss": "cross_entropy",
        "optimizer.lr": 0.1,
        "optimizer.weight_decay": 2e-4,
        "training.epochs": 200,
        "schedule.milestones": [160, 180],
        "schedule.decay_rate": 0.01,
    },
    "cifar_resnet32.ldam_drw_cifar100_lt100": {
        "method": {
            "name": "ldam_drw",
            "max_margin": 0.5,
            "scale": 30.0,
            "reweight_from": 160 / 200,
            "beta": 0.9999,
        },
    },
    "resnet50_cifar.gpaco_cifar100": {
        "objective.alpha": 0.01,
        "objective.tau": 0.07,
        "objective.queue_size": 1024,
        "optimizer.lr": 0.05,
        "optimizer.weight_decay": 5e-4,
        "training.batch_size": 128,
        "training.epochs": 400,
    },
    "resnet50.paco_imagenet_lt": {
        "objective.alpha": 0.05,
        "objective.tau": 0.2,
        "objective.queue_size": 8192,
        "objective.key_groups": 4,
        "optimizer.lr": 0.02,
        "optimizer.weight_decay": 5e-4,
        "training.batch_size": 128,
        "training.epochs": 400,
    },
    "resnext50_32x4d.paco_imagenet_lt": {"objective.tau": 0.07},
    "resnet50.paco_inat18": {"optimizer.weight_decay": 1e-4, "data.mean": [0.466, 0.471, 0.38]},
    "resnet152.paco_places_lt": {
        "init.release": "timm:resnet152.tv_in1k",
        "init.freeze": [
            "conv1.weight",
            "layer[123].*.conv?.weight",
            "layer4.[01].conv?.weight",
            "layer?.0.downsample.0.weight",
        ],
        "training.epochs": 30,
        "schedule.warmup_epochs": 5,
    },
    "resnet50.moco_v1_in1k": {
        "objective.head_layers": 1,
        "objective.tau": 0.07,
        "objective.momentum": 0.999,
        "objective.queue_size": 65536,
        "objective.key_groups": 8,
        "optimizer.lr": 0.03,
        "optimizer.weight_decay": 1e-4,
        "schedule.milestones": [120, 160],
        "training.epochs": 200,
        "training.batch_size": 256,
    },
    "resnet50.moco_v2_in1k": {"objective.head_layers": 2, "objective.tau": 0.2, "schedule.name": "cosine"},
    "resnet50.moco_v1_ft_in100": {"objective.tau": 0.07, "objective.momentum": 0.99},
    "resnet50.moco_v2_in100": {"objective.tau": 0.2, "objective.momentum": 0.99},
    "resnet50.moco_v2_ft_in100": {"objective.tau": 0.2, "objective.momentum": 0.99},
    "resnet50.moco_v3_in1k": {
        "objective.tau": 1.0,
        "objective.momentum": {"kind": "cosine", "start": 0.99, "end": 1.0},
        "objective.projector_layers": 2,
        "objective.predictor_batchnorm": False,
        "optimizer.name": "lars",
        "optimizer.lr": 0.3 * 4096 / 256,
        "optimizer.weight_decay": 1e-6,
        "training.batch_size": 4096,
    },
    "vit_small_patch16_224.moco_v3_in1k": {
        "backbone.args.num_heads": 12,
        "objective.tau": 0.2,
        "objective.projector_layers": 3,
        "objective.predictor_batchnorm": True,
        "objective.freeze_patch_embedding": True,
        "optimizer.name": "adamw",
        "optimizer.lr": 1.5e-4 * 4096 / 256,
        "optimizer.weight_decay": 0.1,
        "schedule.warmup_epochs": 40,
        "schedule.warmup_prefix": True,
        "training.epochs": 300,
    },
    "resnet18_cifar.moco_v2_cifar10": {
        "objective.queue_size": 32768,
        "objective.tau": 0.2,
        "optimizer.lr": 0.3,
        "training.batch_size": 256,
        "training.epochs": 1000,
    },
    "resnet18_cifar.pico_cifar10_q05": {
        "data.partial_labels": {"kind": "uniform", "rate": 0.5, "seed": 0},
        "objective.queue_size": 8192,
        "objective.prototype_momentum": 0.99,
        "objective.contrast_weight": 0.5,
        "objective.target_momentum": {"kind": "linear", "start": 0.95, "end": 0.8},
        "objective.prototype_start": 1,
        "optimizer.lr": 0.01,
        "optimizer.weight_decay": 1e-3,
        "training.epochs": 800,
    },
}


def plain(name: str) -> dict[str, Any]:
    return Recipe.load(name).model_dump(mode="json")


def at(data: Any, path: str) -> Any:
    for key in path.split("."):
        data = data[key]
    return data


@pytest.mark.parametrize("name", FACTS)
def test_figures_of_the_sources(name: str) -> None:
    data = plain(name)
    assert {path: at(data, path) for path in FACTS[name]} == FACTS[name]


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


def test_bcl_has_pacos_first_view_and_its_second_twice() -> None:
    first, second = plain("cifar_resnet32.paco_cifar100_lt100")["views"]["train"]
    assert plain("cifar_resnet32.bcl_cifar100_lt100")["views"]["train"] == [first, second, second]


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


def test_balanced_softmax_and_paco_differ_in_the_objective_alone() -> None:
    """And so in the second view, which a classifier has no use for."""
    methods = ("paco", "balanced_softmax")
    ours, theirs = (without_identity(f"cifar_resnet32.{method}_cifar100_lt100") for method in methods)
    assert ours.pop("objective") != theirs.pop("objective")
    assert ours["views"].pop("train")[:1] == theirs["views"].pop("train")
    assert ours == theirs


@pytest.mark.parametrize("name", catalog.list_recipes())
def test_every_recipe_with_auto_augment_has_the_operations_of_pacos_authors(name: str) -> None:
    operations = [op for view in plain(name)["views"]["train"] for op in view]
    assert {op["variant"] for op in operations if op["op"] == "auto_augment"} <= {"paco"}


def test_ldam_drw_and_cross_entropy_differ_in_the_method_alone() -> None:
    ldam, base = (
        without_identity(f"cifar_resnet32.{method}_cifar100_lt100") for method in ("ldam_drw", "ce")
    )
    assert ldam.pop("method") and base.pop("method") is None
    assert ldam == base


@pytest.mark.parametrize("imbalance", IMBALANCES)
def test_what_is_added_to_a_long_tailed_recipe_is_all_that_differs(imbalance: int) -> None:
    base, ft = (without_identity(f"cifar_resnet32.{m}_cifar100_lt{imbalance}") for m in ("paco", "paco_ft"))
    assert base["objective"].pop("feature_transform") is None
    found = ft["objective"].pop("feature_transform")
    assert (found["positives"]["alpha"], found["negatives"]["alpha"]) == (2.0, 1.6)
    assert found["start_epoch"] == base["schedule"]["warmup_epochs"]
    assert base == ft
    methods = ("balanced_softmax", "ce_autoaugment")
    balanced, plain_ce = (without_identity(f"cifar_resnet32.{m}_cifar100_lt{imbalance}") for m in methods)
    losses = (balanced["objective"].pop("loss"), plain_ce["objective"].pop("loss"))
    assert losses == ("balanced_softmax", "cross_entropy")
    assert balanced == plain_ce


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
def test_the_temperature_sweep_differs_in_the_temperature_alone(dataset: str) -> None:
    names = [f"resnet18_cifar.moco_{dataset}_{tag}" for tag in ("tau007", "tau03", "tau07", "tau10")]
    recipes = [without_identity(name) for name in names]
    assert [recipe["objective"].pop("tau") for recipe in recipes] == [0.07, 0.3, 0.7, 1.0]
    assert all(recipe == recipes[0] for recipe in recipes)


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


def test_moco_of_a_smaller_resnet_differs_in_the_encoder_alone() -> None:
    small, base = (
        without_identity(f"{arch}.moco_v2_cifar100") for arch in ("cifar_resnet32", "resnet18_cifar")
    )
    assert small.pop("backbone") != base.pop("backbone")
    assert small == base


def test_bcl_for_twice_as_long_differs_in_its_length_alone() -> None:
    twice, base = (without_identity(f"cifar_resnet32.bcl_cifar100_lt100{tag}") for tag in ("_e400", ""))
    assert (twice["training"].pop("epochs"), base["training"].pop("epochs")) == (400, 200)
    assert (twice["schedule"].pop("warmup_epochs"), base["schedule"].pop("warmup_epochs")) == (10, 5)
    assert twice["schedule"].pop("milestones") == [360, 380]
    assert base["schedule"].pop("milestones") == [160, 180]
    assert twice == base


def test_coarse_groups_partition_the_classes() -> None:
    groups = plain("resnet18_cifar.pico_cifar100_coarse_q05")["data"]["partial_labels"]["groups"]
    assert [len(group) for group in groups] == [5] * 20
    assert len({name for group in groups for name in group}) == 100


def published() -> list[str]:
    return [name for name in catalog.list_recipes() if not name.startswith("cifar_resnet20.")]


@pytest.mark.parametrize("name", published())
def test_header_says_where_the_target_was_read(name: str) -> None:
    target = catalog.recipe_header(catalog.recipe_path(name).read_text())["Target"]
    figure, _, rest = target.partition(";")
    if figure == "none":
        return
    assert 30 < float(figure.removesuffix(" top-1")) < 100
    assert "[V" in rest or "[M" in rest  # read in a repository, or from memory
