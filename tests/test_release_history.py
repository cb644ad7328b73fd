"""How a training went lies in the release: in blocks, checked, and absent where nothing was recorded."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.release_helpers import release_of, trained_encoder
from zoo.errors import ReleaseError
from zoo.release.provenance import gather_history
from zoo.release.write import check_release
from zoo.report.subject import history_rows

CLASSES = {"step": 20, "epoch": 2.0, "looks": 10, "images": [30, 0], "feature_gradient": [0.5, None]}


def rows(count: int) -> list[dict[str, Any]]:
    return [{"step": 10 * i, "epoch": i / 4, "loss": float(i), "lr": 0.1} for i in range(1, count + 1)]


def test_few_rows_stay_as_they_are_and_what_is_not_finite_is_left_out() -> None:
    given = [*rows(3), {"step": 30, "epoch": 0.75, "validation_loss": 0.5, "score": None}]
    given[1]["lr"] = float("nan")
    made = gather_history(given, [CLASSES])
    columns = made["columns"]
    assert columns.keys() == {"step", "epoch", "loss", "lr", "validation_loss"}
    assert (columns["step"], columns["lr"]) == ([10, 20, 30], [0.1, None, 0.1])
    assert columns["validation_loss"] == [None, None, 0.5]
    assert made["rows"] == [1, 1, 1] and made["classes"] == [CLASSES]
    assert history_rows(made)[0] == rows(1)[0]  # without what was not recorded
    assert gather_history([], [CLASSES]) is None


@pytest.mark.parametrize("count", [401, 12_345])
def test_many_rows_become_means_of_blocks(count: int) -> None:
    given = rows(count)
    for row in given[::3]:
        row["observed"] = 2.0
    made = gather_history(given, [{**CLASSES, "step": step} for step in range(1, 101)])
    columns, sizes = made["columns"], made["rows"]
    assert len(sizes) == 400 and sum(sizes) == count and max(sizes) - min(sizes) <= 1
    mean = sum(n * loss for n, loss in zip(sizes, columns["loss"], strict=True)) / count
    assert mean == pytest.approx((count + 1) / 2, rel=1e-5)
    assert columns["step"] == [10 * sum(sizes[: i + 1]) for i in range(400)]  # of a block its last
    assert set(columns["observed"]) <= {2.0, None}  # the mean of those that there are, not over all
    assert [row["step"] for row in made["classes"]] == [1, 15, 29, 43, 58, 72, 86, 100]


def test_a_release_keeps_it_one_without_has_none_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    encoder, made = trained_encoder(), gather_history(rows(3), [CLASSES])
    release = release_of(tmp_path / "r", encoder, history=made)
    assert release.history == made
    file = release.path / "history.json"
    for changes, key in (
        ({"format": 2}, "format"),
        ({"rows": [1]}, "columns"),
        ({"columns": {"step": [1, 2, 3], "epoch": ["low", 2, 3]}}, "columns.epoch.0"),
    ):
        file.write_text(json.dumps({**made, **changes}))
        with pytest.raises(ReleaseError, match=rf"history\.json.*{key}"):
            _ = release.history
    with pytest.raises(ReleaseError, match=r"history\.json"):  # it is not published
        check_release(release)
    # written again without, nothing of the old one is left
    assert release_of(tmp_path / "r", encoder).history is None
    assert not file.exists()
