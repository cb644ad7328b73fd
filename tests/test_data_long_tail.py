"""Which images and labels are kept: long tails, few labels, partial labels."""

import random

import numpy as np
import pytest

from tests.data_fixtures import photo
from zoo.data import DataConfig, ImageDataset, LongTail, open_dataset, parse_data_spec
from zoo.data.config import Digits, GroupedCandidates, Subset, UniformCandidates
from zoo.data.dataset import ImageStore
from zoo.data.long_tail import draw_candidates, select_long_tail, select_subset
from zoo.errors import DataError, TrainingError
from zoo.recipe import Recipe
from zoo.training import build_objective


@pytest.mark.parametrize("seed", [0, 7])
def test_selects_the_images_of_the_literature_in_their_order(seed):
    labels = [c for c in range(5) for _ in range(40)]
    random.Random(1).shuffle(labels)
    legacy = np.random.RandomState(seed)  # as NumPy's global generator, which the authors' code seeds
    expected = []  # LDAM's gen_imbalanced_data, restated with Python's lists
    for c in range(5):
        members = np.array([i for i, label in enumerate(labels) if label == c])
        legacy.shuffle(members)
        expected += members[: int(40 * (1 / 20) ** (c / 4.0))].tolist()
    assert select_long_tail(LongTail(imbalance=20.0, seed=seed), np.array(labels), 5).tolist() == expected


def test_impossible_profiles_name_the_class():
    labels = np.repeat([0, 1], [10, 4])
    with pytest.raises(DataError, match=r"class 1 has 4 images and would keep 5"):
        select_long_tail(LongTail(imbalance=2.0, max_per_class=10), labels, 2)
    with pytest.raises(DataError, match=r"class 1 has 4 images and would keep 0"):
        select_long_tail(LongTail(imbalance=5.0), labels, 2)


LABELS = np.repeat(np.arange(4), [100, 30, 5, 1])


@pytest.mark.parametrize(
    ("subset", "sizes"),
    [
        ({"fraction": 0.01}, [1, 1, 1, 1]),
        ({"fraction": 0.05, "seed": 5}, [5, 2, 1, 1]),  # 1.5 rounds to 2
        ({"fraction": 0.5}, [50, 15, 2, 1]),  # 2.5 rounds to 2: to even
        ({"per_class": 1, "seed": 5}, [1, 1, 1, 1]),
    ],
)
def test_few_labels_are_the_first_of_a_seeds_permutation_of_each_class(subset, sizes):
    numpy = np.random.RandomState(subset.get("seed", 0))
    expected = [numpy.permutation((c == LABELS).nonzero()[0])[:size] for c, size in enumerate(sizes)]
    found = select_subset(Subset(**subset), LABELS, 4)
    assert found.tolist() == sorted(np.concatenate(expected).tolist())
    with pytest.raises(DataError, match=r"subset: class 2 has 5 images, expected at least per_class \(6\)"):
        select_subset(Subset(per_class=6), LABELS, 4)


def test_a_subset_is_drawn_after_the_long_tail_from_training_images_alone():
    (config, _), (tail, _) = map(parse_data_spec, ("digits?imbalance=50&per_class=2", "digits?imbalance=50"))
    few, many = open_dataset(config, "train", None), open_dataset(tail, "train", None)
    assert few.class_counts.tolist() == [2] * 10
    assert many.class_counts.tolist() == [int(125 * 0.02 ** (c / 9)) for c in range(10)]
    assert {few.name_of(i) for i in range(len(few))} < {many.name_of(i) for i in range(len(many))}
    test = open_dataset(config, "test", None)
    assert len(test) == 547 and test.describe()["long_tail"] is None and "subset" not in test.describe()
    assert few.describe()["subset"] == {"fraction": None, "per_class": 2, "seed": 0}
    assert many.describe()["long_tail"]["imbalance"] == 50 and "subset" not in many.describe()


# --- partial labels ---------------------------------------------------------------------------------------

NAMES = [str(c) for c in range(10)]
GROUPS = [["0", "6", "8", "9"], ["1", "7", "4"], ["2", "3", "5"]]


def digits(config=None, long_tail=None, split="train"):
    return open_dataset(DataConfig(source=Digits(), long_tail=long_tail, partial_labels=config), split, None)


@pytest.mark.parametrize("rate", [0.0, 0.7])
def test_uniform_draws_are_the_authors_for_the_images_that_the_long_tail_keeps(rate):
    data = digits(UniformCandidates(rate=rate, seed=5), LongTail(imbalance=50.0))
    assert data.labels.tolist() == digits(None, LongTail(imbalance=50.0)).labels.tolist()
    transition = np.full((10, 10), rate)  # PiCO's generate_uniform_cv_candidate_labels
    np.fill_diagonal(transition, 1.0)
    drawn = np.random.RandomState(5).uniform(0, 1, size=(len(data), 10))
    assert np.array_equal(data.candidates, drawn < transition[data.labels])
    assert digits(UniformCandidates(rate=0.3), split="test").candidates is None


def test_grouped_candidates_stay_in_the_true_labels_group_and_are_the_uniform_ones_there():
    labels = np.arange(200) % 10
    found = draw_candidates(GroupedCandidates(rate=0.5, seed=4, groups=GROUPS), labels, NAMES)
    uniform = draw_candidates(UniformCandidates(rate=0.5, seed=4), labels, NAMES)
    members = {name: [n in group for n in NAMES] for group in GROUPS for name in group}
    assert np.array_equal(found, uniform & np.array([members[str(label)] for label in labels]))


def test_groups_that_do_not_fit_the_classes_name_the_class():
    for groups, message in (
        ([["0", "1"], ["2", "33"]], "groups: found 3, 33, expected each class once"),
        ([["0", "1"], ["2", "3", "1"]], "found one that is there twice"),
    ):
        with pytest.raises(DataError, match=message):
            draw_candidates(GroupedCandidates(rate=0.5, groups=groups), np.arange(4), NAMES[:4])


def test_partial_labels_are_described_and_identify_the_data():
    settings, hashes = {"rate": 0.25, "seed": 1}, [digits().describe()["sha256"]]
    for config in (UniformCandidates(**settings), GroupedCandidates(**settings, groups=GROUPS)):
        found = digits(config).describe()
        assert settings.items() <= found["partial_labels"].items()
        hashes.append(found["sha256"])
    assert len({*hashes}) == 3


def test_a_matrix_can_be_given():  # batches have the candidates of their images: test_data_loader.py
    data = digits().subset(range(0, 1250, 25))
    matrix = np.eye(10)[data.labels]
    matrix[::2, 0] = 1
    given = data.with_candidates(matrix)
    assert given.describe()["partial_labels"]["kind"] == "given" and data.candidates is None
    for wrong in (matrix[:-1], np.zeros((50, 10))):
        with pytest.raises(DataError, match="partial_labels"):
            data.with_candidates(wrong)
    assert given.candidates.dtype == bool and np.array_equal(given.candidates, matrix)


CE, MOCO = "cifar_resnet20.ce_digits_lt50", "cifar_resnet20.moco_v2_ft_digits_lt50"
PACO, SUP_CON = "cifar_resnet20.paco_digits_lt50", "cifar_resnet20.sup_con_digits_lt50"


def in_memory(labels, names):
    return ImageDataset(
        ImageStore([photo(8, 8, 0)] * len(labels), [*map(str, range(len(labels)))]), labels, names
    )


@pytest.mark.parametrize(
    ("labels", "names", "message", "fits"),
    [
        ([0, 1, 3, 3], "wxyz", 'found 4 classes .* no image of y; objective "classify"', MOCO),
        ([0, 1, -1, 1], "wx", "found 2 classes .* 1 images without a label", SUP_CON),
        ([0, 0], ["dog"], r"found 1 classes \(dog\).* expects two or more", MOCO),
    ],
)
def test_classes_that_cannot_be_learned_are_refused_by_name(labels, names, message, fits):
    data = in_memory(labels, names)
    assert data.class_counts.tolist() == [labels.count(c) for c in range(len(names))]
    with pytest.raises(DataError, match=message):
        build_objective(Recipe.load(CE, ["data.long_tail=null"]), data)
    build_objective(Recipe.load(fits), data)  # which learns none, or leaves the image out
    with pytest.raises(DataError):
        build_objective(Recipe.load(PACO), data)


def test_a_head_of_centers_is_refused_for_other_classes():
    start = 'init={release: "shipped:cifar_resnet20.paco_digits_lt50", head: centers}'
    with pytest.raises(TrainingError, match=r"found centers of .*, expected .* ant, cat, dog"):
        build_objective(Recipe.load(CE, [start]), in_memory([0, 1, 2], ["ant", "cat", "dog"]))
