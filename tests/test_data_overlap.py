"""Test images that are training images are noticed."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard
from PIL import Image

import zoo
from tests.test_data_sources import shard
from zoo.data import open_dataset, parse_data_spec
from zoo.data.image_ids import shared_images
from zoo.release.card import check_card


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.RandomState(0)
    for split in ("train", "val"):
        for name in "ab":
            (tmp_path / split / name).mkdir(parents=True)
            for number in range(4):
                pixels = random.randint(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / split / name / f"{number}.png")
    lines = [f"train/{name}/{number}.png {label}" for label, name in enumerate("ab") for number in range(4)]
    (tmp_path / "train.txt").write_text("\n".join(lines))
    others = [line.replace("train", "val") for line in lines]
    (tmp_path / "others.txt").write_text("\n".join(others))
    (tmp_path / "some.txt").write_text("\n".join([*others[:3], *lines[5:7]]))
    return tmp_path


def shared(spec: str) -> int:
    config, root = parse_data_spec(spec)
    return shared_images(*(open_dataset(config, split, root) for split in ("train", "test")))


def test_files_in_both_splits_are_counted_and_equal_names_in_two_folders_are_not(folder: Path) -> None:
    assert shared(f"list:{folder}?train=train.txt&test=some.txt") == 2
    assert shared(f"list:{folder}?train=train.txt&test=train.txt") == 8
    assert shared(f"folder:{folder}") == 0  # train/a/0.png and val/a/0.png are two images
    assert shared(f"folder:{folder}?test=train") == 8
    assert shared("digits") == 0


def test_rows_of_one_parquet_file_in_both_splits_are_counted(tmp_path: Path) -> None:
    shard(tmp_path / "all.parquet", [0, 0, 1, 1])
    assert shared(f"parquet:{tmp_path}?train=all.parquet&test=all.parquet") == 4


def test_evaluating_on_training_images_says_so(folder: Path) -> None:
    name = "cifar_resnet20.moco_v2_ft_digits_lt50"
    with pytest.warns(UserWarning, match="8 of 8 test images are training images too"):
        entry = zoo.evaluate(name, "knn", f"list:{folder}?train=train.txt&test=train.txt", k=1)
    assert entry["shared_images"] == 8
    entry = zoo.evaluate(name, "knn", f"list:{folder}?train=train.txt&test=others.txt", k=1)
    assert "shared_images" not in entry


def test_a_card_says_which_figures_are_of_training_images(folder: Path, tmp_path: Path) -> None:
    shipped = zoo.open("cifar_resnet20.moco_v2_ft_digits_lt50")
    mine = zoo.open(Path(shutil.copytree(shipped.path, tmp_path / "mine")))
    with pytest.warns(UserWarning, match="2 of 5 test images"):
        zoo.evaluate(mine, "knn", f"list:{folder}?train=train.txt&test=some.txt", k=1)
    mine = zoo.open(mine.path)
    check_card(mine.path, mine.config)
    card = ModelCard.load(mine.path / "README.md")
    said = "test, 2 of 5 images from training"
    (row,) = (line for line in card.text.splitlines() if said in line)
    assert row.startswith("| knn |")
    assert "Images from training: what is measured on them says nothing of new images." in card.text
    assert {result.dataset_split for result in card.data.eval_results} == {"test", said}
