"""Long-tailed selection: the counts and the very images of the literature."""

import random
from pathlib import Path

import numpy as np
import pytest

from zoo.data import DataConfig, LongTail, open_dataset
from zoo.data.config import Digits, Parquet
from zoo.data.long_tail import class_sizes, select_long_tail
from zoo.errors import DataError

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def reference(labels, imbalance, seed, n_max):
    """LDAM's gen_imbalanced_data, restated with Python's lists and the global legacy generator."""
    state = np.random.get_state()  # noqa: NPY002
    np.random.seed(seed)  # noqa: NPY002
    num_classes = max(labels) + 1
    kept = []
    for c in range(num_classes):
        members = np.array([i for i, label in enumerate(labels) if label == c])
        np.random.shuffle(members)  # noqa: NPY002
        kept += members[: int(n_max * (1 / imbalance) ** (c / (num_classes - 1.0)))].tolist()
    np.random.set_state(state)  # noqa: NPY002
    return kept


@pytest.mark.parametrize("seed", [0, 7])
def test_selects_the_images_of_the_literature_in_their_order(seed):
    labels = [c for c in range(5) for _ in range(40)]
    random.Random(1).shuffle(labels)
    config = LongTail(imbalance=20.0, seed=seed)
    kept = select_long_tail(config, np.array(labels), 5)
    assert kept.tolist() == reference(labels, 20, seed, 40)


def test_exact_indices_of_a_small_case_are_pinned():
    labels = np.array([2, 0, 1] * 8)
    kept = select_long_tail(LongTail(imbalance=4.0), labels, 3)
    expected = [19, 7, 4, 22, 10, 1, 16, 13, 5, 20, 11, 23, 15, 6]  # printed by `reference`
    assert kept.tolist() == expected


@pytest.mark.parametrize(
    ("n_max", "num_classes", "imbalance", "total"),
    [(500, 100, 100, 10_847), (5000, 10, 100, 12_406), (500, 100, 10, 19_573), (5000, 10, 50, 13_996)],
)
def test_published_sizes(n_max, num_classes, imbalance, total):
    assert sum(class_sizes(LongTail(imbalance=float(imbalance)), n_max, num_classes)) == total


def test_step_profile_keeps_the_first_half_whole():
    labels = np.repeat(np.arange(5), 30)
    kept = select_long_tail(LongTail(profile="step", imbalance=10.0), labels, 5)
    assert np.bincount(labels[kept]).tolist() == [30, 30, 3, 3, 3]


def test_unbalanced_source_starts_from_its_smallest_class():
    labels = np.repeat([0, 1], [10, 6])
    kept = select_long_tail(LongTail(imbalance=2.0), labels, 2)
    assert np.bincount(labels[kept]).tolist() == [6, 3]


def test_impossible_profiles_name_the_class():
    labels = np.repeat([0, 1], [10, 4])
    with pytest.raises(DataError, match=r"class 1 has 4 images.*keeps 5"):
        select_long_tail(LongTail(imbalance=2.0, max_per_class=10), labels, 2)
    with pytest.raises(DataError, match=r"class 1 would keep no image.*at most 4"):
        select_long_tail(LongTail(imbalance=5.0), labels, 2)


def test_data_that_are_long_tailed_already_are_told_what_to_do_by_the_names_of_their_classes():
    labels, names = np.repeat([0, 1, 2], [40, 4, 6]), ("apple", "bird", "zebra")
    already = "of data that are long-tailed already: --set data.long_tail=null"
    for changes, expected in (
        ({}, 'class "bird" would keep no image with imbalance 50 and at most 4 images of a class (all of c'),
        (
            {"max_per_class": 8},
            "with imbalance 50 and at most 8 images of a class (max_per_class); expect",
        ),
        ({"max_per_class": 100}, 'class "apple" has 40 images, the exponential profile'),
    ):
        with pytest.raises(DataError) as error:
            select_long_tail(LongTail(imbalance=50.0, **changes), labels, 3, names)
        assert expected in str(error.value) and str(error.value).endswith(already)
        assert "largest" not in str(error.value)


def test_applies_to_training_only_and_is_described():
    config = DataConfig(source=Digits(), long_tail=LongTail(imbalance=50.0))
    train, test = (open_dataset(config, split, None) for split in ("train", "test"))
    assert train.class_counts.tolist() == [int(125 * 0.02 ** (c / 9)) for c in range(10)]
    assert len(test) == 547
    assert train.describe()["long_tail"] == {
        "profile": "exponential",
        "imbalance": 50.0,
        "seed": 0,
        "max_per_class": None,
    }
    assert test.describe()["long_tail"] is None


@pytest.mark.shared
@pytest.mark.parametrize(
    ("folder", "label", "total", "classes"),
    [("cifar100", "fine_label", 10_847, 100), ("cifar10-jpeg", "label", 12_406, 10)],
)
def test_real_files_give_the_published_sizes(folder, label, total, classes):
    root = SHARED / folder
    if not root.is_dir():
        pytest.skip(f"no {root}")
    data = open_dataset(
        DataConfig(source=Parquet(label=label), long_tail=LongTail(imbalance=100.0)), "train", root
    )
    assert (len(data), data.num_classes) == (total, classes)
    assert data.class_counts.max() == 100 * data.class_counts.min()
    assert data.image(0).size == (32, 32)
    assert data.class_names[0] in {"apple", "airplane"}
