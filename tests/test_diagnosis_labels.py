"""What trainings are called side by side, which are of one group, and what their recipes differ in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zoo.evaluation.diagnosis.labels import differences, groups, labels
from zoo.training import Recipe

MOCO, PACO = "cifar_resnet20.moco_v2_ft_digits_lt50", "cifar_resnet20.paco_digits_lt50"
START = "objective.feature_transform.start_epoch=1"


def recipe(name: str, *changes: str) -> dict[str, Any]:
    return Recipe.load(name, changes).model_dump(mode="json")


def called(recipes: list[dict[str, Any]], folders: list[str] | None = None) -> tuple[list[str], list[str]]:
    names = [each["name"] for each in recipes]
    paths = [Path(each) for each in folders or map(str, range(len(recipes)))]
    return labels(names, recipes, paths), groups(names, recipes, paths)


def test_one_training_has_its_name() -> None:
    assert called([recipe(PACO)]) == ([PACO], [PACO])


def test_trainings_of_one_recipe_are_called_by_what_differs_and_grouped_over_seeds() -> None:
    recipes = [
        recipe(MOCO, f"objective.tau={tau}", f"training.seed={seed}")
        for tau in (0.05, 0.2)
        for seed in (0, 1)
    ]
    found, of_groups = called(recipes)
    assert found == ["tau 0.05, seed 0", "tau 0.05, seed 1", "tau 0.2, seed 0", "tau 0.2, seed 1"]
    assert of_groups == ["tau 0.05", "tau 0.05", "tau 0.2", "tau 0.2"]


def test_seeds_alone_are_one_group_with_the_name() -> None:
    found, of_groups = called([recipe(PACO, f"training.seed={seed}") for seed in (3, 5)])
    assert found == ["seed 3", "seed 5"] and of_groups == [PACO, PACO]


def test_a_section_that_is_there_or_not_is_on_or_off() -> None:
    found, _ = called([recipe(MOCO), recipe(MOCO, "objective.feature_transform=null")])
    assert found == ["feature transform on", "feature transform off"]


def test_other_weights_are_called_by_their_short_names() -> None:
    found, of_groups = called([recipe(PACO), recipe(MOCO), recipe(MOCO, "training.seed=1")])
    assert found == ["paco_digits_lt50", "moco_v2_ft_digits_lt50, seed 0", "moco_v2_ft_digits_lt50, seed 1"]
    assert of_groups == ["paco_digits_lt50", *["moco_v2_ft_digits_lt50"] * 2]


def test_equal_and_very_different_recipes_are_told_apart_by_the_folder() -> None:
    same, _ = called([recipe(PACO), recipe(PACO)], ["/runs/a/out", "/runs/b/out"])
    assert same == [f"{PACO}, a", f"{PACO}, b"]
    changes = ["optimizer.lr=0.1", "objective.tau=0.3", "objective.dim=32", "optimizer.weight_decay=0.1"]
    recipes = [recipe(MOCO, "training.seed=1"), recipe(MOCO), recipe(MOCO, *changes)]
    found, of_groups = called(recipes, ["/runs/small/s1/out", "/runs/small/s0/out", "/runs/large/s0/out"])
    assert found == ["small, seed 1", "small, seed 0", "large/s0/out, seed 0"]
    assert of_groups == ["small", "small", "large/s0/out"]


def test_long_values_are_numbered_and_equal_ends_of_keys_written_out() -> None:
    views = "views.train.0.0={op: random_affine, degrees: 1.0, translate: [0.1, 0.1], scale: [0.8, 1.2]}"
    found, _ = called([recipe(MOCO), recipe(MOCO, views)])
    assert found == ["train #1", "train #2"]
    both, _ = called([recipe(PACO), recipe(PACO, "objective.momentum=0.5", "optimizer.momentum=0.4")])
    assert "objective.momentum 0.5" in both[1] and "optimizer.momentum 0.4" in both[1]


def test_how_it_is_computed_makes_no_difference() -> None:
    recipes = [recipe(PACO), recipe(PACO, "training.device=cpu", "training.log_every=1", "evaluation=[]")]
    assert differences(recipes) == []
    _, of_groups = called(recipes, ["/runs/a", "/runs/b"])
    assert len(set(of_groups)) == 1


def test_a_key_that_only_one_recipe_has_is_absent_in_the_other() -> None:
    older = recipe(PACO)
    del older["objective"]["alpha"]
    (found,) = differences([recipe(PACO), older])
    assert found.key == "objective.alpha" and found.texts()[1] == "absent"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a.x", "a.y", "b"]),
            st.dictionaries(
                st.sampled_from("pqrst"), st.sampled_from([None, 0, 0.5, "t", {"u": 1}, [1] * 20])
            ),
            st.integers(0, 2),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_no_two_labels_are_alike_and_groups_differ_in_the_seed_alone(rows: list[Any]) -> None:
    recipes = [{"name": name, "objective": keys, "training": {"seed": seed}} for name, keys, seed in rows]
    found, of_groups = called(recipes)
    assert len(set(found)) == len(found) and all(found)
    for i, (name, keys, _) in enumerate(rows):
        for j, (other, others, _) in enumerate(rows):
            assert (of_groups[i] == of_groups[j]) == (name == other and keys == others), (i, j)


@pytest.mark.parametrize("count", [1, 3])
def test_recipes_may_be_empty_as_of_converted_releases(count: int) -> None:
    found = labels(["x"] * count, [{}] * count, [Path(f"/r/{i}") for i in range(count)])
    assert len(set(found)) == count


def test_trainings_that_differ_in_their_start_are_named_by_what_differs_in_its_name(tmp_path: Path) -> None:
    starts = ["cifar_resnet20.paco_digits_lt50", "cifar_resnet20.moco_v2_ft_digits_lt50"]
    recipes = [{"init": {"release": start}, "training": {"seed": 0}} for start in starts]
    found = labels(["a.b", "a.b"], recipes, [tmp_path / "x", tmp_path / "y"])
    assert found == ["from paco", "from moco_v2_ft"]
