"""Neighbours that are looked at while an encoder learns without labels."""

from __future__ import annotations

import json
import math
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests import test_training
from tests.objective_helpers import eval_batches
from tests.programs.tiny import VIT
from tests.test_training import StopAfter, assert_same_state
from tests.warm import run_ranks
from zoo.data import ImageDataset, open_dataset
from zoo.data.stores import ArrayStore
from zoo.errors import DataError, Interrupted, RecipeError, ZooWarning
from zoo.objectives import Objective
from zoo.recipe import Recipe
from zoo.training import RunFolder, build_objective, train
from zoo.training.looks import Looked
from zoo.training.neighbors import IMAGES, TAU, Halves, K, halves

EVERY = "training.knn_every=1"
SAID = re.compile(r"^rank (\d) (\d+) (.+)$", re.MULTILINE)


def recipe(*overrides: str) -> Recipe:
    return test_training.recipe("moco", "training.threads=1", *overrides)


def go(r: Recipe, folder: Path, dataset: ImageDataset | None = None, *, resume: bool = False) -> Objective:
    dataset = dataset or open_dataset(r.data, "train", None)
    return train(build_objective(r, dataset), dataset, r, RunFolder(folder), resume=resume).objective


def looks(folder: Path) -> list[dict[str, float]]:
    return [row for row in RunFolder(folder).rows() if "knn_accuracy" in row]


def trained(folder: Path) -> list[dict[str, float]]:
    """Return the other rows, without what is measured in seconds."""
    rows = [row for row in RunFolder(folder).rows() if "knn_accuracy" not in row]
    return [{k: v for k, v in row.items() if k != "images_per_second"} for row in rows]


def made(labels: list[int], classes: int) -> ImageDataset:
    pixels = np.random.default_rng(0).integers(0, 256, (len(labels), 8, 8), dtype=np.uint8)
    return ImageDataset(ArrayStore(pixels, "made"), np.array(labels), [f"class {c}" for c in range(classes)])


def both(dataset: ImageDataset, r: Recipe) -> Halves:
    found = halves(dataset, r)
    assert found is not None
    return found


def encoded(objective: Objective, dataset: ImageDataset, r: Recipe) -> tuple[Any, Any]:
    """Return unit features in float64 and labels, one image at a time."""
    features, labels = [], []
    objective.encoder.eval()
    with torch.no_grad():
        for images, targets in eval_batches(dataset, r, 1):
            features.append(objective.encoder(images)[0].double().numpy())
            labels.append(int(targets))
    rows = np.stack(features)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), labels


def slowly(objective: Objective, dataset: ImageDataset, r: Recipe) -> tuple[float, float]:
    """Return accuracy and balanced accuracy in percent of each image's neighbours, image by image."""
    images = both(dataset, r)
    voters, classes = encoded(objective, images.voters, r)
    asked, labels = encoded(objective, images.asked, r)
    right: dict[int, list[bool]] = {}
    for row, label in zip(asked, labels, strict=True):
        cosines = voters @ row
        votes = np.zeros(dataset.num_classes)
        for i in np.argsort(-cosines)[:K]:
            votes[classes[i]] += math.exp(cosines[i] / TAU)
        right.setdefault(label, []).append(int(votes.argmax()) == label)
    every = [hit for hits in right.values() for hit in hits]
    return 100 * float(np.mean(every)), 100 * float(np.mean([np.mean(hits) for hits in right.values()]))


def test_half_of_each_class_votes_on_the_other_half_and_its_only_image_votes() -> None:
    dataset = made([0] * 40 + [1] * 10 + [2] * 3 + [3] + [-1] * 30, 4)
    images = both(dataset, recipe(EVERY))
    assert images.voters.class_counts.tolist() == [20, 5, 1, 1]
    assert images.asked.class_counts.tolist() == [20, 5, 2, 0]
    names = [[part.name_of(i) for i in range(len(part))] for part in images]
    assert not set(names[0]) & set(names[1])
    assert names == [[part.name_of(i) for i in range(len(part))] for part in both(dataset, recipe(EVERY))]
    other = both(dataset, recipe(EVERY, "training.seed=1"))
    assert names[0] != [other.voters.name_of(i) for i in range(len(other.voters))]
    assert halves(dataset, recipe()) is None


def test_of_many_images_so_many_are_drawn() -> None:
    images = both(made([i % 7 for i in range(IMAGES + 5000)], 7), recipe(EVERY))
    assert len(images.voters) + len(images.asked) == IMAGES
    assert int(images.asked.class_counts.min()) > IMAGES // 16


@pytest.mark.parametrize(("labels", "found"), [([-1] * 9, "no class"), ([0, 1, 2], "no two of one class")])
def test_images_that_cannot_be_asked_about_are_refused(labels: list[int], found: str) -> None:
    with pytest.raises(DataError, match=rf"^training\.knn_every: .*of which {found} is known; expected null"):
        halves(made(labels, 3), recipe(EVERY))


@pytest.mark.parametrize("ema", [False, True])
def test_the_last_look_is_at_the_released_encoder(ema: bool, tmp_path: Path) -> None:
    average = ["training.ema={decay: 0.9, warmup: true}"] if ema else []
    r = recipe("training.knn_every=2", "training.epochs=3", *average)
    dataset = open_dataset(r.data, "train", None)
    objective = go(r, tmp_path, dataset)
    rows = looks(tmp_path)
    assert [row["epoch"] for row in rows] == [2, 3], "every second epoch, and at the end"
    found = (rows[-1]["knn_accuracy"], rows[-1]["knn_balanced_accuracy"])
    expected = slowly(objective, dataset, r)
    # float32 and batches round: an image whose votes are almost equal may fall to the other side
    assert found[0] == pytest.approx(expected[0], abs=100 / len(both(dataset, r).asked) + 1e-6)
    assert found[1] == pytest.approx(expected[1], abs=10 + 1e-6 if found[0] != expected[0] else 1e-6)
    assert found[0] != pytest.approx(found[1], abs=5), "a long tail: the two differ"


def test_looking_changes_neither_weights_nor_what_else_is_recorded(tmp_path: Path) -> None:
    plain, looked = go(recipe(), tmp_path / "plain"), go(recipe(EVERY), tmp_path / "looked")
    assert_same_state(plain, looked)
    rows = [
        [
            {k: v for k, v in row.items() if k != "images_per_second"}
            for row in found
            if "knn_accuracy" not in row
        ]
        for found in (RunFolder(tmp_path / "plain").rows(), RunFolder(tmp_path / "looked").rows())
    ]
    assert rows[0] == rows[1]
    assert len(looks(tmp_path / "looked")) == recipe().training.epochs
    assert all(part.training for part in looked.encoder.modules())


def test_a_stopped_run_goes_on_to_the_same_looks_and_may_then_look_more_often(tmp_path: Path) -> None:
    length = ("training.epochs=8", "training.log_every=2")
    whole = recipe(EVERY, *length)
    go(whole, tmp_path / "whole")
    StopAfter(tmp_path / "parts", 4, signal.SIGTERM)
    with pytest.raises(Interrupted):
        go(recipe("training.knn_every=8", *length), tmp_path / "parts")
    begun = RunFolder(tmp_path / "parts").rows()[-1]["epoch"]
    with pytest.warns(ZooWarning, match=r"training\.knn_every was 8, is 1"):
        go(whole, tmp_path / "parts", resume=True)
    expected = [row for row in looks(tmp_path / "whole") if row["epoch"] > begun]
    assert 0 < len(expected) < 8 and looks(tmp_path / "parts") == expected


def test_features_that_are_not_finite_are_recorded_as_none_and_end_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = Looked.batches
    monkeypatch.setattr(
        Looked, "batches", lambda self: [(images * torch.nan, labels) for images, labels in batches(self)]
    )
    go(recipe(EVERY, "training.epochs=2"), tmp_path)
    (*_, row) = looks(tmp_path)
    assert row["knn_accuracy"] is None and row["knn_balanced_accuracy"] is None


@pytest.mark.parametrize(
    ("kind", "instead"),
    [("paco", "early_stopping"), ("sup_con", ""), ("pico", ""), ("classify", "early_stopping")],
)
def test_objectives_that_learn_from_the_labels_are_refused(kind: str, instead: str) -> None:
    with pytest.raises(RecipeError, match=r"training\.knn_every: .*learns from.*; expected null") as error:
        test_training.recipe(kind, EVERY)
    assert ("early_stopping" in str(error.value)) == bool(instead)


def test_the_line_of_progress_says_what_was_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    go(recipe(EVERY, "training.epochs=2"), tmp_path)
    (*_, row) = looks(tmp_path)
    assert f"  kNN {row['knn_accuracy']:.1f} %  " in capsys.readouterr().err.splitlines()[-1]


def test_two_ranks_find_the_same_and_what_one_finds(tmp_path: Path) -> None:
    short = [
        *(
            "training.epochs=2",
            "objective.feature_transform=null",
            "optimizer.lr=0.0",
            "objective.momentum=1.0",
        ),
        *("schedule.warmup_epochs=0", "training.device=cpu", EVERY),
        *(*VIT, "objective.head_batchnorm=false", "training.log_every=4"),
    ]
    done = run_ranks("tests/programs/neighbors.py", str(tmp_path / "two"), *short, ranks=2)
    assert done.returncode == 0, done.stderr
    said = SAID.findall(done.stdout)
    assert sorted(rank for rank, *_ in said) == ["0", "0", "1", "1"]
    assert len({tuple(rest) for _, *rest in said}) == 2, said
    first = looks(tmp_path / "two")[0]
    assert first["knn_accuracy"] == json.loads(said[0][2])["knn_accuracy"]
    r = Recipe.load("cifar_resnet20.moco_v2_ft_digits_lt50", short)
    go(r, tmp_path / "one")
    alone = looks(tmp_path / "one")[0]
    assert first["knn_accuracy"] == pytest.approx(alone["knn_accuracy"], abs=1)
