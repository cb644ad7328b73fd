"""The tables of a report: means and intervals over seeds, figures as people write them, what differs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from zoo.evaluation.diagnosis.subject import Subject, summary
from zoo.evaluation.diagnosis.tables import (
    accuracy_tables,
    differences_table,
    estimates,
    numbers_tables,
    plain_numbers,
    record_of,
)
from zoo.evaluation.results.comparison import in_figures


def subject(
    label: str,
    group: str,
    numbers: dict[str, float],
    recipe: dict[str, Any] | None = None,
    data: str = "digits",
) -> Subject:
    return Subject(
        label=label,
        name="x",
        objective="moco",
        data=data,
        seed=0,
        group=group,
        recipe=recipe or {},
        rows=[],
        class_rows=[],
        class_names=["a"],
        class_counts=torch.tensor([1]),
        numbers=numbers,
    )


SEEDS = [
    subject(f"s{i}", "g", {"features/uniformity": float(value), "accuracy/knn": 90.0})
    for i, value in enumerate((1, 2, 3))
]


def test_over_seeds_there_is_the_mean_with_its_interval() -> None:
    found = estimates(SEEDS)["g"]
    half = stats.t.ppf(0.975, 2) / math.sqrt(3)  # the deviation of 1, 2, 3 is 1
    assert found["features/uniformity"].mean == 2
    assert found["features/uniformity"].half_width == pytest.approx(half)
    assert found["accuracy/knn"].half_width is None
    (table,) = numbers_tables(SEEDS)
    assert "95 % interval" in table.caption
    assert table.head == ["", "g (3 seeds)"] and table.rows[0][1] == "2.0 ± 2.5"
    (accuracies,) = accuracy_tables(SEEDS)
    assert accuracies.head == ["protocol", "accuracy", "test images"]
    assert accuracies.rows == [["knn", "90.0", "-"]]


def test_a_single_one_has_no_interval_and_what_it_lacks_is_a_dash() -> None:
    alone = subject("a", "a", {"recorded/loss": 0.5, "balance/class_gradient": 4.0})
    (first, second) = numbers_tables([alone])
    assert first.head == ["", "value"] and "interval" not in first.caption
    assert first.rows == [["loss", "0.500"]] and second.rows == [["class gradient", "4.00"]]
    other = subject("b", "b", {"recorded/p_sup": 0.25})
    table = numbers_tables([alone, other])[0]
    assert table.rows == [["loss", "0.500", "-"], ["P_sup", "-", "0.250"]]


def test_groups_of_classes_and_optima_stand_in_order() -> None:
    names = [
        "p_sup_few",
        "p_sup_many",
        "p_sup_optimum",
        "p_sup",
        "p_sup_optimum_few",
        "loss_ft",
        "p_sup_medium",
    ]
    (table,) = numbers_tables([subject("a", "a", {f"recorded/{name}": 1.0 for name in names})])
    assert [row[0] for row in table.rows] == [
        "loss after FT",
        "P_sup",
        "P_sup, many",
        "P_sup, medium",
        "P_sup, few",
        "P_sup, optimum",
        "P_sup, optimum, few",
    ]


def test_a_number_that_some_seeds_lack_says_of_how_many_it_is() -> None:
    some = [*SEEDS, subject("s3", "g", {})]
    assert numbers_tables(some)[0].rows[0][1] == "2.0 ± 2.5 (of 3)"
    assert record_of(some)["g"]["features/uniformity"]["seeds"] == 3


def test_accuracies_are_a_table_for_each_protocol_with_a_row_for_each_group() -> None:
    rows = [
        subject("a", "a", {"accuracy/knn": 50.0, "accuracy/knn/few": 10.0, "accuracy/knn/test_images": 547}),
        subject("b", "b", {"accuracy/knn": 60.0, "accuracy/linear": 70.0}),
    ]
    knn, linear = accuracy_tables(rows)
    assert knn.caption == "Protocol knn. Percent, test split of digits, as the release records it."
    assert knn.head == ["", "accuracy", "few", "test images"]
    assert knn.rows == [["a", "50.0", "10.0", "547"], ["b", "60.0", "-", "-"]]
    assert linear.rows == [["a", "-", "-"], ["b", "70.0", "-"]]
    assert accuracy_tables([subject("a", "a", {})]) == []


def evaluated(protocol: str, data: str, images: int, **metrics: float) -> dict[str, Any]:
    test_set = {"num_images": images, "sha256": f"of {images}"}
    return {"protocol": protocol, "data": data, "test_set": test_set, "metrics": metrics}


def test_accuracies_of_other_data_stand_apart_with_their_number_of_images() -> None:
    """As after `zoo evaluate few_shot RELEASE --data folder:three`."""
    entries = [
        evaluated("knn", "digits, long tail 50", 547, accuracy=80.0),
        evaluated("few_shot", "three", 6, accuracy=33.3),
        evaluated("retrieval", "three", 6, map=40.0, queries=6, gallery_images=5),
        evaluated("knn", "user/cars, long tail 9", 9, accuracy=20.0),
        evaluated("linear", "digits, long tail 50", 12, accuracy=10.0),  # another of the same words
    ]
    bare = subject("a", "a", {}, data="digits, long tail 50")
    numbers = summary(bare, entries)
    assert {name for name in numbers if name.count("/") == 1} == {
        "accuracy/knn",
        "accuracy/few_shot on three",
        "accuracy/knn on user_cars long tail 9",
        "accuracy/linear (other images)",
    }
    a = subject("a", "a", numbers, data=bare.data)
    (table,) = accuracy_tables([a])
    assert table.head == ["protocol", "accuracy", "map", "test images"]
    assert table.rows[:3] == [
        ["knn", "80.0", "-", "547"],
        ["few_shot on three", "33.3", "-", "6"],
        ["retrieval on three", "-", "40.0", "6"],
    ]
    assert "Where it says no other: digits, long tail 50." in table.caption
    b = subject("b", "b", {"accuracy/knn": 70.0, "accuracy/knn/test_images": 10_000}, data="cifar10")
    knn, few_shot, *_ = accuracy_tables([a, b])
    assert "test split of each one's own data" in knn.caption
    assert knn.rows == [["a", "digits, long tail 50", "80.0", "547"], ["b", "cifar10", "70.0", "10,000"]]
    assert few_shot.caption.startswith("Protocol few_shot on three. Percent, test split, as")
    assert few_shot.rows == [["a", "33.3", "6"], ["b", "-", "-"]]


def recorded(values: list[float]) -> dict[str, float]:
    rows = [{"step": step, "negative_variance": value} for step, value in enumerate(values)]
    return summary(replace(subject("a", "a", {}), rows=rows))


def test_steadiness_is_of_neighbouring_records_whatever_the_level_and_drift() -> None:
    """Small noise on a large drift: the plain deviation sees the drift alone."""
    steps, noise = np.arange(2000), np.random.default_rng(0).normal(size=2000)
    drifting = recorded([*(1 + steps / 1000 + 0.01 * noise)])
    noisy = recorded([*(2.8 + 0.1 * noise)])
    name = "negative_variance"
    assert drifting[f"deviation/{name}"] > noisy[f"deviation/{name}"]
    assert drifting[f"unsteadiness/{name}"] == pytest.approx(0.01 / 2.8, rel=0.1)
    assert noisy[f"unsteadiness/{name}"] == pytest.approx(0.1 / 2.8, rel=0.1)
    assert noisy[f"relative_deviation/{name}"] == pytest.approx(0.1 / 2.8, rel=0.1)
    tenfold = recorded([*(28 + noise)])
    assert tenfold[f"unsteadiness/{name}"] == pytest.approx(noisy[f"unsteadiness/{name}"])
    assert recorded([3.0, 1.0, 1.0])[f"beginning/{name}"] == 3.0
    assert recorded([1.0] * 20)[f"unsteadiness/{name}"] == 0.0
    assert "unsteadiness/negative_variance" not in recorded([0.0] * 20)  # of no size


def test_tables_show_each_scalar_once_for_level_movement_and_noise() -> None:
    tables = numbers_tables([subject("a", "a", recorded([1.0, 2.0, 3.0, 2.0] * 5))])
    assert [table.caption.partition(":")[0] for table in tables] == [
        "Recorded while training",
        "How much it still moves",
        "How steady from record to record",
    ]
    assert all([row[0] for row in table.rows] == ["negative variance"] for table in tables)


def test_what_recipes_differ_in_has_a_row_for_each_key_or_each_training() -> None:
    recipes = [{"objective": {"tau": tau, "a": 1}, "description": str(tau)} for tau in (0.1, 0.2, 0.2)]
    few = [subject(str(i), "g", {}, recipe) for i, recipe in enumerate(recipes)]
    table = differences_table(few)
    assert table is not None and table.head == ["", "objective.tau"]
    assert table.rows == [["0", "0.1"], ["1", "0.2"], ["2", "0.2"]]
    two = [subject("0", "0", {}, {"a": 1, "b": 2, "c": 3}), subject("1", "1", {}, {"a": 2, "b": 3, "c": 4})]
    table = differences_table(two)
    assert table is not None and table.rows == [["a", "1", "2"], ["b", "2", "3"], ["c", "3", "4"]]
    assert differences_table(few[1:]) is None and differences_table(few[:1]) is None


@pytest.mark.parametrize(
    ("value", "half", "expected"),
    [
        (92.14, None, "92.1"),
        (-1.4142, None, "−1.41"),
        (0.0018743, None, "0.00187"),
        (1234.5, None, "1234"),
        (2.5e-7, None, "2.50e−07"),
        (0.0, None, "0"),
        (2.0, 2.484, "2.0 ± 2.5"),
        (71.2, 27.3, "71 ± 27"),
        (0.05, 0.14, "0.05 ± 0.14"),
        (1206.0, 2314.0, "1206 ± 2314"),
        (100.0, None, "100"),
        (-3407918.0, None, "−3.41e+06"),
    ],
)
def test_numbers_have_as_many_figures_as_they_mean(value: float, half: float | None, expected: str) -> None:
    assert in_figures(value, half) == expected


def test_json_gets_no_number_that_it_cannot_have() -> None:
    assert plain_numbers({"a": math.nan, "b": 1.0}) == {"a": None, "b": 1.0}
