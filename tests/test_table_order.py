"""In which order a table of results has data sets and rows, and how a long one is written."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

import zoo
from zoo.evaluation.figures.results import labels
from zoo.evaluation.results.order import in_order
from zoo.evaluation.results.rows import Evaluated, Row, RunResult, in_rows
from zoo.evaluation.results.table import lines, markdown

CIFAR = {"classes": 100, "largest": 500}
TEN = {"classes": 10, "largest": 5000}


@pytest.fixture(scope="module")
def shipped() -> RunResult:
    return zoo.table("cifar_resnet20.paco_digits_lt50", published=[]).runs[0]


def sha(*of: Any) -> str:
    return hashlib.sha256(repr(of).encode()).hexdigest()


def row(shipped: RunResult, data: str, method: str, accuracy: float, **changes: Any) -> Row:
    """A row of one run, on the images that its data's words and profile say."""
    tail = data.partition("long tail ")[2]
    known = {
        **{"name": f"cifar_resnet32.{method}", "method": method, "data": data, "epochs": 100},
        **{"imbalance": float(tail) if tail else None, "profile": "exponential" if tail else None},
        **{"architecture": "cifar_resnet32", "changed": {}, **CIFAR, **changes},
    }
    known["smallest"] = int(known["largest"] / (known["imbalance"] or 1))
    entry = Evaluated(protocol="classifier", settings={}, test_sha256=None, metrics={"accuracy": accuracy})
    of = {
        "train_sha256": sha(data, known["profile"]),
        "group": sha(data, known),
        "weights_sha256": sha(data, known, accuracy),
        "evaluations": [entry],
    }
    (found,) = in_rows([shipped.model_copy(update={**known, **of})]).rows
    return found


def shown(rows: list[Row]) -> list[tuple[str, str, int]]:
    return [(each.first.data, each.first.method, each.first.epochs) for each in in_order(rows)]


def test_larger_data_come_first_and_of_each_the_most_imbalanced(shipped: RunResult) -> None:
    found = [
        row(shipped, "cifar10", "PaCo", 90.0, **TEN),
        row(shipped, "cifar100", "PaCo", 80.0),
        row(shipped, "cifar10, long tail 100", "PaCo", 95.0, **TEN),
        row(shipped, "cifar100, long tail 10", "PaCo", 99.0),
        row(shipped, "cifar100, long tail 100", "PaCo", 50.0, profile="step"),
        row(shipped, "cifar100, long tail 50", "PaCo", 60.0),
        row(shipped, "digits, long tail 50", "PaCo", 90.0, classes=10, largest=125),
        row(shipped, "cifar100, long tail 100", "PaCo", 40.0),
    ]
    told = [line.data for line in lines(in_order(found), {})]
    assert told == [
        "cifar100, long tail 100 (exponential profile)",
        "cifar100, long tail 50",
        "cifar100, long tail 10",
        "cifar100, long tail 100 (step profile)",
        "cifar100",
        "cifar10, long tail 100",
        "cifar10",
        "digits, long tail 50",
    ]


def test_methods_have_one_order_in_all_data_sets_and_lengths_of_one_stand_together(
    shipped: RunResult,
) -> None:
    first, second = "cifar100, long tail 100", "cifar100, long tail 10"
    found = [
        row(shipped, second, "CE", 70.0),
        row(shipped, second, "SupCon", 72.0),  # not in the first data set
        row(shipped, second, "PaCo", 60.0),
        row(shipped, first, "CE", 48.0, epochs=400),
        row(shipped, first, "PaCo", 45.0),
        row(shipped, first, "PaCo", 52.0, epochs=400),
        row(shipped, first, "CE", 38.0),
        row(shipped, first, "CE", 60.0, architecture="resnet18_cifar", name="resnet18_cifar.CE"),
    ]
    expected = [
        *((first, "CE", 100), (first, "CE", 400), (first, "CE", 100), (first, "PaCo", 400)),
        *((first, "PaCo", 100), (second, "CE", 100), (second, "PaCo", 100), (second, "SupCon", 100)),
    ]
    for given in (found, found[::-1]):
        assert shown(given) == expected
    assert in_order(found)[0].first.architecture == "resnet18_cifar"  # it has the best row


def test_runs_of_an_earlier_file_stand_with_those_of_the_same_images(shipped: RunResult) -> None:
    data = "cifar100, long tail 100"
    new, step = row(shipped, data, "PaCo", 50.0), row(shipped, data, "PaCo", 49.0, profile="step")
    known = row(shipped, data, "CE", 48.0).first
    (old,) = in_rows([known.model_copy(update={"profile": None, "imbalance": None})]).rows
    found = lines(in_order([step, old, new]), {})
    assert [(line.method, line.data) for line in found] == [
        ("PaCo", f"{data} (exponential profile)"),
        ("CE", f"{data} (exponential profile)"),
        ("PaCo", f"{data} (step profile)"),
    ]


def test_the_same_images_have_one_name_however_they_were_read(shipped: RunResult) -> None:
    names = ("cifar100 fine_label, long tail 100", "cifar100, long tail 100")
    own = [row(shipped, name, "PaCo", 50.0 + n) for n, name in enumerate(names)]
    for shas, expected in ((("a" * 64, "a" * 64), names[1:] * 2), (("a" * 64, "b" * 64), names)):
        runs = [
            each.first.model_copy(update={"train_sha256": sha256})
            for each, sha256 in zip(own, shas, strict=True)
        ]
        found = in_rows(runs)
        assert tuple(each.first.data for each in found.rows) == expected
        assert tuple(run.data for run in found.runs) == names  # the record keeps what the release says


def test_a_long_table_is_one_for_each_data_set_and_says_once_what_many_rows_share(
    shipped: RunResult,
) -> None:
    changed = {"training.precision": ["fp32", "bf16"]}
    found = [
        row(shipped, data, f"method {i}", 50.0 + i, changed=changed)
        for data in ("cifar100, long tail 100", "cifar100")
        for i in range(7)
    ]
    text = markdown(lines(in_order(found), {}), [], [])
    head, *parts = text.split("**")
    assert head == "" and [parts[0], parts[2]] == ["cifar100, long tail 100", "cifar100"]
    first = parts[1].strip().splitlines()
    assert "| data |" not in text and first[0].startswith("| method | recipe | epochs |")
    assert len(first) == 9 and first[2].startswith("| method 6 |")
    assert text.count("here with training.precision bf16.") == 1
    short = markdown(lines(in_order(found[:3] + found[7:10]), {}), [], [])
    assert "**" not in short and "| data |" in short


def test_the_picture_tells_rows_apart_by_the_words_that_differ(shipped: RunResult) -> None:
    data = "cifar100, long tail 100"
    tags = ("cifar_resnet32.ce_lt100", "cifar_resnet32.ce_autoaugment_lt100")
    of_tags = [row(shipped, data, "CE", 50.0 - i, name=name) for i, name in enumerate(tags)]
    architectures = [
        row(shipped, data, "MoCo", 30.0 - i, name=f"{name}.moco_lt100", architecture=name)
        for i, name in enumerate(("cifar_resnet32", "resnet18_cifar"))
    ]
    found = labels(lines(in_order([*of_tags, *architectures]), {}))
    assert sorted(found) == [
        *("CE, ce", "CE, ce_autoaugment", "MoCo, cifar_resnet32", "MoCo, resnet18_cifar")
    ]


def test_the_picture_says_of_each_row_how_long_it_was_trained_where_that_differs(shipped: RunResult) -> None:
    rows = [
        row(shipped, "cifar100, long tail 100", "PaCo", 52.0, epochs=400),
        row(shipped, "cifar100, long tail 100", "PaCo", 45.0),
        row(shipped, "cifar100, long tail 100", "CE", 39.0),
    ]
    assert labels(lines(in_order(rows), {})) == ["PaCo, 400 epochs", "PaCo, 100 epochs", "CE, 100 epochs"]
    assert labels(lines(in_order(rows[1:]), {})) == ["PaCo", "CE"]


def test_a_row_that_replaces_a_section_is_not_given_values_of_the_shipped_one(shipped: RunResult) -> None:
    given = {"start_epoch": 8}
    without = {"objective.feature_transform": [given, None]}
    later = {"objective.feature_transform.start_epoch": [8, 10]}
    rows = [
        row(shipped, "cifar100", method, 50.0, name="x.y", changed=changed)
        for method, changed in (("MoCo v2", without), ("MoCo v2 + FT", later))
    ]
    found = {each.row.first.method: each.recipe for each in lines(rows, {})}
    assert found == {"MoCo v2": "x.y", "MoCo v2 + FT": "x.y, start epoch 10"}
