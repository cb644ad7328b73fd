"""Long tails and few labels: the counts, the very images of the literature, and what records say of them."""

import random

import numpy as np
import pytest

from zoo.data import LongTail, open_dataset, parse_data_spec
from zoo.data.config import Subset
from zoo.data.long_tail import select_long_tail, select_subset
from zoo.errors import DataError


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


@pytest.mark.parametrize(
    ("n_max", "num_classes", "imbalance", "total"),
    [(500, 100, 100, 10_847), (5000, 10, 100, 12_406), (500, 100, 10, 19_573), (5000, 10, 50, 13_996)],
)
def test_published_sizes(n_max, num_classes, imbalance, total):
    labels = np.repeat(np.arange(num_classes), n_max)
    assert len(select_long_tail(LongTail(imbalance=float(imbalance)), labels, num_classes)) == total


def test_impossible_profiles_name_the_class():
    labels = np.repeat([0, 1], [10, 4])
    with pytest.raises(DataError, match=r"class 1 has 4 images and would keep 5"):
        select_long_tail(LongTail(imbalance=2.0, max_per_class=10), labels, 2)
    with pytest.raises(DataError, match=r"class 1 has 4 images and would keep 0"):
        select_long_tail(LongTail(imbalance=5.0), labels, 2)


# --- few labels ------------------------------------------------------------------------------------------

LABELS = np.repeat(np.arange(4), [100, 30, 5, 1])


def counts(**subset: float) -> list[int]:
    kept = select_subset(Subset(**subset), LABELS, 4)  # type: ignore[arg-type]
    assert (np.diff(kept) > 0).all(), "each once, in the order of the data"
    return np.bincount(LABELS[kept], minlength=4).tolist()


def test_a_fraction_is_rounded_in_each_class_and_leaves_one_image_at_least() -> None:
    assert counts(fraction=0.01) == [1, 1, 1, 1]
    assert counts(fraction=0.05) == [5, 2, 1, 1]  # 1.5 rounds to 2
    assert counts(fraction=0.5) == [50, 15, 2, 1]  # 2.5 rounds to 2: to even
    assert counts(fraction=1.0) == [100, 30, 5, 1]


def test_so_many_of_each_class_or_a_clear_error() -> None:
    assert counts(per_class=1) == [1, 1, 1, 1]
    with pytest.raises(DataError, match=r"subset: class 2 has 5 images, expected at least per_class \(6\)"):
        counts(per_class=6)


def test_the_draw_is_that_of_numpys_random_state_class_by_class() -> None:
    random = np.random.RandomState(5)
    expected = [random.permutation((c == LABELS).nonzero()[0])[:1] for c in range(4)]
    found = select_subset(Subset(per_class=1, seed=5), LABELS, 4)
    assert found.tolist() == sorted(np.concatenate(expected).tolist())


def test_a_subset_is_drawn_after_the_long_tail_from_training_images_alone() -> None:
    config, _ = parse_data_spec("digits?imbalance=50&per_class=2")
    tail, _ = parse_data_spec("digits?imbalance=50")
    few, many = open_dataset(config, "train", None), open_dataset(tail, "train", None)
    assert few.class_counts.tolist() == [2] * 10
    assert many.class_counts.tolist() == [int(125 * 0.02 ** (c / 9)) for c in range(10)]
    names = [many.name_of(i) for i in range(len(many))]
    positions = [names.index(few.name_of(i)) for i in range(len(few))]
    assert positions == sorted(positions)
    test, whole = open_dataset(config, "test", None), open_dataset(tail, "test", None)
    assert test.describe()["sha256"] == whole.describe()["sha256"]
    assert len(test) == 547 and test.describe()["long_tail"] is None and "subset" not in test.describe()
    assert few.describe()["subset"] == {"fraction": None, "per_class": 2, "seed": 0}
    assert many.describe()["long_tail"]["imbalance"] == 50 and "subset" not in many.describe()
