"""How a training went lies in the release: thinned, checked, and absent where nothing was recorded."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.release_helpers import release_of, trained_encoder
from zoo.errors import ReleaseError
from zoo.release import history
from zoo.release.write import check_release
from zoo.report.subject import class_means

CLASSES = {
    "step": 20,
    "epoch": 2.0,
    "looks": 10,
    "images": [30, 0],
    "feature_gradient": [0.5, None],
    "class_gradient": [0.25, 0.0],
    "center_gradient": None,
}


def rows(count: int) -> list[dict[str, Any]]:
    return [{"step": 10 * i, "epoch": i / 4, "loss": float(i), "lr": 0.1} for i in range(1, count + 1)]


def gathered(*args: Any) -> history.History:
    made = history.gather(*args)
    assert made is not None
    return made


def test_few_rows_stay_as_they_are_and_what_is_not_finite_is_left_out() -> None:
    given = [*rows(3), {"step": 30, "epoch": 0.75, "validation_loss": 0.5, "score": None}]
    given[1]["lr"] = float("nan")
    made = gathered(given, [CLASSES])
    assert made["columns"] == {
        "step": [10, 20, 30],
        "epoch": [0.25, 0.5, 0.75],
        "loss": [1.0, 2.0, 3.0],
        "lr": [0.1, None, 0.1],
        "validation_loss": [None, None, 0.5],
    }
    assert made["rows"] == [1, 1, 1]
    assert made["classes"] == [CLASSES]
    assert history.rows_of(made)[0] == rows(1)[0]  # without what was not recorded
    assert history.gather([], [CLASSES]) is None


@pytest.mark.parametrize("count", [400, 401, 402, 12_345])
def test_many_rows_become_means_that_keep_ends_sum_and_order(count: int) -> None:
    given = rows(count)
    for row in given[::3]:
        row["observed"] = 2.0
    made = gathered(given)
    columns, sizes = made["columns"], made["rows"]
    assert len(columns["step"]) == min(count, 400) == len(sizes)
    assert sum(sizes) == count
    assert max(sizes) - min(sizes[1:-1]) <= 1
    assert (columns["step"][0], columns["loss"][0]) == (10, 1.0)
    assert (columns["step"][-1], columns["loss"][-1]) == (10 * count, float(count))
    mean = sum(n * loss for n, loss in zip(sizes, columns["loss"], strict=True)) / count
    assert mean == pytest.approx((count + 1) / 2, rel=1e-5)
    assert columns["step"] == [10 * sum(sizes[: i + 1]) for i in range(len(sizes))]  # of a block its last
    assert set(columns["observed"]) <= {2.0, None}  # the mean of those that there are, not over all


@pytest.mark.parametrize("count", [8, 9, 203])
def test_means_over_the_training_are_the_same_with_the_run_and_without(count: int) -> None:
    """Of classes rows with few looks, as interruptions leave them, and without an image of a class."""
    draw = random.Random(0)
    given: list[dict[str, Any]] = []
    for i in range(count):
        images = [draw.randrange(1, 40), draw.randrange(2)]
        row = {"step": i + 1, "epoch": (i + 1) / 4, "looks": draw.choice([1, 10]), "images": images}
        row["feature_gradient"] = [draw.random() + 100 / (i + 1) if n else None for n in images]
        row["class_gradient"] = [draw.random() + 100 / (i + 1) for _ in images]
        row["center_gradient"] = None
        given.append(row)
    kept = gathered(rows(3), given)["classes"]
    assert len(kept) == 8 and kept[-1]["step"] == count and kept[0]["step"] == round(count / 8)
    for name in ("images", "looks"):
        assert np.sum([row[name] for row in kept], axis=0).tolist() == (
            np.sum([row[name] for row in given], axis=0).tolist()
        )
    for name in ("feature_gradient", "class_gradient"):
        expected = class_means(given, name, 2)
        found = class_means(kept, name, 2)
        assert expected is not None and found is not None
        assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-4, nan_ok=True)
    assert class_means(kept, "center_gradient", 2) is None


def test_a_release_keeps_it_one_without_has_none_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    encoder = trained_encoder()
    made = gathered(rows(1000), [CLASSES])
    release = release_of(tmp_path / "r", encoder, history=made)
    assert release.history == made
    file = release.path / "history.json"
    assert file.stat().st_size < 40_000
    made = gathered(rows(3), [CLASSES])
    for changes, message in (
        ({"format": 2}, '"format": found 2'),
        ({"columns": {"step": [10, 20, 30]}}, "expected step, epoch and others, 3 values in each"),
        ({"rows": [1]}, "1 values in each"),
        ({"columns": {"step": [1, 2, 3], "epoch": ["low", 2, 3]}}, "\"columns.epoch.0\": found 'low'"),
        ({"columns": {"\x1b[2J": []}}, "control characters"),
        ({"colums": {}}, 'unknown key "colums". Did you mean "columns"'),
    ):
        file.write_text(json.dumps({**made, **changes}))
        with pytest.raises(ReleaseError, match=r"history\.json") as error:
            _ = release.history
        assert message in str(error.value)
    release.load()
    with pytest.raises(ReleaseError, match=r"history\.json"):  # it is not published
        check_release(release)
    # written again without, nothing of the old one is left
    assert release_of(tmp_path / "r", encoder).history is None
    assert not file.exists()
