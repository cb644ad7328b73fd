"""Few labels: which images are kept, and that every record of them says so."""

from __future__ import annotations

import numpy as np
import pytest

from zoo.data import open_dataset, parse_data_spec
from zoo.data.config import Subset
from zoo.data.subset import select_subset
from zoo.data.words import selection_words
from zoo.errors import DataError, RecipeError, ZooError
from zoo.recipe import Recipe

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


def test_a_class_with_too_few_images_is_named() -> None:
    with pytest.raises(DataError, match='subset: class "rare" has 1 images, expected at least per_class'):
        select_subset(Subset(per_class=2), LABELS, 4, ["a", "b", "c", "rare"])


def test_a_smaller_subset_of_one_seed_lies_in_the_larger_and_seeds_differ() -> None:
    one, ten, other = (
        set(select_subset(Subset(fraction=fraction, seed=seed), LABELS, 4).tolist())
        for fraction, seed in ((0.1, 3), (0.4, 3), (0.1, 4))
    )
    assert one < ten
    assert one != other


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
    names = [many.name_of(i) for i in range(len(many))]
    positions = [names.index(few.name_of(i)) for i in range(len(few))]
    assert positions == sorted(positions)
    test, whole = open_dataset(config, "test", None), open_dataset(tail, "test", None)
    assert test.describe()["sha256"] == whole.describe()["sha256"]
    assert "subset" not in test.describe()


def test_descriptions_tell_the_selection_and_those_without_one_stay_as_they_were() -> None:
    datasets = {
        spec: open_dataset(parse_data_spec(spec)[0], "train", None).describe()
        for spec in ("digits", "digits?fraction=0.01", "digits?fraction=0.01&seed=1", "digits?fraction=1.0")
    }
    few = datasets["digits?fraction=0.01"]
    assert few["subset"] == {"fraction": 0.01, "per_class": None, "seed": 0}
    assert few["num_images"] == 10
    assert "subset" not in datasets["digits"]
    digests = {facts["sha256"] for facts in datasets.values()}
    assert len(digests) == 3
    assert datasets["digits?fraction=1.0"]["sha256"] == datasets["digits"]["sha256"]


def test_words_for_tables() -> None:
    assert selection_words({"imbalance": 50.0}, {"fraction": 0.01, "per_class": None}) == [
        "long tail 50",
        "1 % of labels",
    ]
    assert selection_words(None, {"fraction": None, "per_class": 5}) == ["5 labels a class"]
    assert selection_words(None, None) == []


def test_a_spec_gives_its_seed_to_what_is_asked_for() -> None:
    both = parse_data_spec("digits?imbalance=10&fraction=0.1&seed=3")[0]
    assert both.long_tail is not None
    assert both.subset is not None
    assert (both.long_tail.seed, both.subset.seed) == (3, 3)
    few = parse_data_spec("digits?per_class=5&seed=3")[0]
    assert few.long_tail is None
    assert few.subset == Subset(per_class=5, seed=3)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("digits?fraction=0.1&per_class=5", "subset: found both of fraction and per_class"),
        ("digits?fraction=2.0", "fraction.*less than or equal to 1"),
        ("digits?per_class=0", "per_class.*greater than 0"),
        ("digits?fractoin=0.1", 'unknown key "fractoin".*Did you mean "fraction"'),
        ("digits?seed=3", "imbalance"),
    ],
)
def test_specs_that_make_no_sense_are_refused(spec: str, message: str) -> None:
    with pytest.raises(ZooError, match=message):
        parse_data_spec(spec)


def test_recipes_take_a_subset_with_any_objective() -> None:
    moco = Recipe.load("cifar_resnet20.moco_v2_ft_digits_lt50", ["data.subset={fraction: 0.5}"])
    assert len(open_dataset(moco.data, "train", None)) == pytest.approx(344 / 2, abs=5)
    with pytest.raises(RecipeError, match="found neither of fraction and per_class"):
        Recipe.load("cifar_resnet20.moco_v2_ft_digits_lt50", ["data.subset={seed: 0}"])
