"""Classes that cannot be learned, or hardly: without images, or one alone."""

from __future__ import annotations

from pathlib import Path

import pytest

import zoo
from tests.data_fixtures import photo
from tests.test_data_sources import opened, shard
from zoo.data import ImageDataset
from zoo.data.dataset import ImageStore
from zoo.errors import DataError, TrainingError
from zoo.recipe import Recipe
from zoo.training import build_objective

CE = "cifar_resnet20.ce_digits_lt50"
BRIEF = ["training.epochs=2", "schedule.warmup_epochs=0", "training.device=cpu", "data.long_tail=null"]


def recipe(*changes: str) -> Recipe:
    return Recipe.load(CE, [*BRIEF, *changes])


def test_a_class_without_training_images_is_refused_by_name_where_classes_are_learned(tmp_path: Path) -> None:
    shard(tmp_path / "train.parquet", [0, 1, 3, 3], names="wxyz")
    train = opened({"kind": "parquet"}, tmp_path)
    assert train.class_counts.tolist() == [1, 1, 0, 2]
    message = r'found 4 classes .* no image of y; objective "classify"'
    for loss in ("cross_entropy", "balanced_softmax"):
        with pytest.raises(DataError, match=message):
            build_objective(recipe(f"objective.loss={loss}"), train)
    with pytest.raises(DataError, match=r'no image of y; objective "paco"'):
        build_objective(Recipe.load("cifar_resnet20.paco_digits_lt50"), train)
    build_objective(Recipe.load("cifar_resnet20.moco_v2_ft_digits_lt50"), train)  # which learns none


def test_an_image_without_label_is_refused_where_classes_are_learned() -> None:
    train = ImageDataset(ImageStore([photo(8, 8, 0)] * 4), [0, 1, -1, 1], "wx")
    assert train.class_counts.tolist() == [1, 2]
    with pytest.raises(DataError, match=r"found 2 classes .* 1 images without a label"):
        build_objective(recipe(), train)
    build_objective(Recipe.load("cifar_resnet20.sup_con_digits_lt50"), train)  # which leaves it out


def test_one_class_is_refused() -> None:
    with pytest.raises(DataError, match=r"found 1 classes \(dog\).* expects two or more"):
        build_objective(recipe(), ImageDataset(ImageStore([photo(8, 8, 0)] * 2), [0, 0], ["dog"]))


def test_probes_of_a_class_without_training_images_never_predict_it(tmp_path: Path) -> None:
    """A documented behaviour: test images of such a class count as wrong."""
    shard(tmp_path / "train.parquet", [0, 1, 3, 3, 0, 1] * 2, names="wxyz")
    shard(tmp_path / "test.parquet", [2, 2, 2], names="wxyz")
    for protocol, settings in (("knn", {"k": 3}), ("linear", {"l2_grid": [0.1], "folds": 3})):
        entry = zoo.evaluate(
            "shipped:cifar_resnet20.moco_v2_ft_digits_lt50",
            protocol,
            f"parquet:{tmp_path}",
            save=False,
            **settings,
        )
        assert entry["metrics"]["accuracy"] == 0, protocol


def test_a_head_of_centers_is_refused_for_other_classes() -> None:
    start = 'init={release: "shipped:cifar_resnet20.paco_digits_lt50", head: centers}'
    data = ImageDataset(ImageStore([photo(8, 8, 0)] * 3), [0, 1, 2], ["ant", "cat", "dog"])
    with pytest.raises(TrainingError, match=r"found centers of .*, expected .* ant, cat, dog"):
        build_objective(recipe(start), data)
