"""When a repeated measurement counts as the recorded one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from zoo.evaluation.results import agreement
from zoo.evaluation.results.agreement import Figure, Images

IMAGES = Images(test=np.array([50, 40, 30, 0]), train=np.array([500, 100, 20, 19]))
RECORDED: dict[str, Any] = {
    "accuracy": 80.0,
    "balanced_accuracy": 78.0,
    "per_class": [90.0, 80.0, 60.0, None],
    "many": 90.0,
    "medium": 70.0,
    "few": None,
    "calibration_error": 4.0,
    "test_images": 120,
}


def verdicts(new: dict[str, Any], rule: agreement.Tolerance) -> dict[str, str]:
    figures = agreement.compare("linear", RECORDED, {**RECORDED, **new}, rule)
    return {figure.name: figure.verdict for figure in figures}


def tolerance_of(name: str, new: dict[str, Any]) -> float:
    rule = agreement.equal_models(RECORDED, IMAGES)
    figures = agreement.compare("linear", RECORDED, {**RECORDED, **new}, rule)
    (found,) = (figure.tolerance for figure in figures if figure.name == name)
    assert found is not None
    return found


def test_every_number_is_compared_and_nulls_on_both_sides_are_not() -> None:
    names = set(verdicts({}, agreement.within(0)))
    assert names == {
        *("accuracy", "balanced_accuracy", "per_class.0", "per_class.1", "per_class.2"),
        *("many", "medium", "calibration_error", "test_images"),
    }
    assert set(verdicts({}, agreement.within(0)).values()) == {"same"}


def test_the_tolerance_is_that_of_two_shares_of_the_images_behind_the_figure() -> None:
    def expected(percent: float, images: int, z: float = 1.959964) -> float:
        p = percent / 100
        return 100 * z * math.sqrt(2 * p * (1 - p) / images)

    assert tolerance_of("accuracy", {"accuracy": 84.0}) == pytest.approx(expected(82, 120))
    assert tolerance_of("balanced_accuracy", {}) == pytest.approx(expected(78, 120))
    assert tolerance_of("many", {"many": 80.0}) == pytest.approx(expected(85, 50))  # more than 100: class 0
    assert tolerance_of("medium", {}) == pytest.approx(expected(70, 70))  # 20 to 100: classes 1 and 2
    assert tolerance_of("calibration_error", {}) == pytest.approx(expected(80, 120))  # the accuracy's share
    # four classes together: z of 1 - 0.05 / 8
    assert tolerance_of("per_class.2", {}) == pytest.approx(expected(60, 30, z=2.497705))
    assert tolerance_of("test_images", {"test_images": 121}) == 0
    draws = agreement.compare(
        "few_shot",
        {"accuracy": 50.0, "accuracy_interval": 4.0, "accuracy_of_draws": [48.0, 52.0]},
        {"accuracy": 50.0, "accuracy_interval": 3.0, "accuracy_of_draws": [48.0, 52.0]},
        agreement.equal_models({"accuracy": 50.0}, IMAGES),
    )
    assert [f.tolerance for f in draws] == pytest.approx(
        [expected(50, 120), 4.0, expected(48, 120, z=2.241403), expected(52, 120, z=2.241403)]
    )


def test_a_perfect_score_still_may_differ_by_one_image() -> None:
    images = Images(test=np.array([10, 40]), train=np.array([30, 30]))
    record = {"accuracy": 100.0, "balanced_accuracy": 100.0, "per_class": [100.0, 100.0]}
    for rule in (agreement.equal_models(record, images), agreement.same_model(images)):
        found = {f.name: f.tolerance for f in agreement.compare("knn", record, record, rule)}
        assert found == pytest.approx(
            {"accuracy": 2.0, "balanced_accuracy": 5.0, "per_class.0": 10.0, "per_class.1": 2.5}
        )


def test_of_the_same_weights_one_image_may_differ_and_no_more() -> None:
    rule = agreement.same_model(IMAGES)
    assert verdicts({"accuracy": 80.0 + 100 / 120}, rule)["accuracy"] == "within"
    assert verdicts({"accuracy": 80.0 + 200 / 120}, rule)["accuracy"] == "differs"
    assert verdicts({"accuracy": 80.0 + 200 / 120}, agreement.equal_models(RECORDED, IMAGES))["accuracy"] == (
        "within"
    )


@pytest.mark.parametrize("rule", [agreement.within(100), agreement.equal_models(RECORDED, IMAGES)])
def test_what_is_missing_or_has_become_a_number_is_no_agreement(rule: agreement.Tolerance) -> None:
    assert verdicts({"many": None}, rule)["many"] == "missing"
    assert verdicts({"few": 50.0}, rule)["few"] == "missing"
    without = {key: value for key, value in RECORDED.items() if key != "accuracy"}
    figures = agreement.compare("linear", RECORDED, without, rule)
    assert [f.name for f in figures if not f.agrees] == ["accuracy"]
    shorter = agreement.compare("linear", RECORDED, {**RECORDED, "per_class": [90.0]}, rule)
    assert [f.name for f in shorter if not f.agrees] == ["per_class.1", "per_class.2"]


def test_what_was_not_recorded_is_not_compared() -> None:
    assert "new" not in verdicts({"new": 3.0}, agreement.within(0))


def test_tolerance_zero_demands_equal_numbers_and_points_are_points() -> None:
    assert verdicts({"accuracy": 80.0 + 1e-12}, agreement.within(0))["accuracy"] == "differs"
    assert verdicts({"accuracy": 83.0}, agreement.within(3))["accuracy"] == "within"
    assert verdicts({"accuracy": 83.1}, agreement.within(3))["accuracy"] == "differs"
    assert verdicts({"test_images": 121}, agreement.within(3))["test_images"] == "differs"


def test_facts_of_a_training_counts_are_equal_shares_near_and_speed_is_free() -> None:
    old = {
        "steps": 10,
        "seconds": 3.0,
        "images_per_second": 9.5,
        "ranks": 1,
        "confidence": 0.9,
        "share": 90.0,
    }
    new = {
        "steps": 11,
        "seconds": 9.0,
        "images_per_second": 1.5,
        "ranks": 2,
        "confidence": 0.8,
        "share": 80.0,
    }

    def found(**options: bool) -> dict[str, Figure]:
        rule = agreement.training_facts(100, **{"exact": False, "stopped_early": False, **options})
        return {figure.name: figure for figure in agreement.compare("training", old, new, rule)}

    assert {name: f.verdict for name, f in found().items()} == {
        "steps": "differs",
        "seconds": "not judged",
        "images_per_second": "not judged",
        "ranks": "not judged",
        "confidence": "differs",  # 0.1 of 1, above 1.96 sqrt(2 * 0.85 * 0.15 / 100) = 0.099
        "share": "differs",
    }
    assert found()["confidence"].tolerance == pytest.approx(0.09897, abs=1e-5)
    assert found()["share"].tolerance == pytest.approx(9.897, abs=1e-3)
    assert found(exact=True)["share"].tolerance == pytest.approx(1.0)
    assert found(stopped_early=True)["steps"].verdict == "not judged"
    assert found()["seconds"].agrees
    (again,) = agreement.compare("training", {"seconds": 9.0}, {"seconds": 9.0}, agreement.within(1.0))
    assert again.verdict == "not judged" and again.agrees
