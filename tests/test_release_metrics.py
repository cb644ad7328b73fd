"""Evaluations come into `metrics.json` and the card, one after another, and only what can be read again."""

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import zoo
from tests.release_helpers import release_of, some_centers, trained_encoder
from zoo.errors import ReleaseError
from zoo.hub.fetch import release_files
from zoo.release import Release, format
from zoo.release.card import check_card

KNN: dict[str, Any] = {
    **{"protocol": "knn", "data": "digits", "split": "test", "settings": {"k": 20}, "seed": 0},
    "metrics": {"accuracy": 91.23, "many": 98.0, "few": 76.54, "per_class": [0.5, 0.6]},
    "date": "2026-01-02",
}


@pytest.fixture
def release(tmp_path: Path) -> Release:
    metrics = {"training": {"seed": 41}, "evaluations": [KNN]}
    return release_of(tmp_path / "r", trained_encoder(), centers=some_centers(64), metrics=metrics)


def test_evaluations_are_added_and_equal_ones_replaced(release: Release) -> None:
    bare = {key: KNN[key] for key in ("split", "data")}
    recalls = {"recall_at_8": 9.0, "map": 4.0, "recall_at_1": np.float32(5.0), "draws": (1, 2)}
    release.add_evaluation({**bare, "protocol": "linear", "metrics": {"accuracy": torch.tensor(50.0)}})
    release.add_evaluation({**KNN, "metrics": {"accuracy": 25.0}, "date": "2026-02-03"})
    release.add_evaluation({**KNN, "settings": {"k": 5}})
    release.add_evaluation({**bare, "protocol": "retrieval", "metrics": recalls, "seed": np.int64(3)})
    again = zoo.open(release.path)
    keys = ("protocol", "settings", "metric", "value", "seed", "date")
    found = [tuple(entry.get(key) for key in keys) for entry in again.metrics["evaluations"]]
    assert sorted(found, key=str) == [
        ("knn", {"k": 20}, "accuracy", 25.0, 0, "2026-02-03"),
        ("knn", {"k": 5}, "accuracy", 91.23, 0, "2026-01-02"),
        ("linear", None, "accuracy", 50.0, None, None),
        ("retrieval", None, "recall_at_1", 5.0, 3, None),
    ]
    assert "| linear | digits | test | 50.00 |" in again.card and "91.23" in again.card
    again.verify()
    check_card(again.path, again.config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": "x\x1b"}, "data.: found control characters"),
        ({"data": None}, '"data": found None'),
        ({"metrics": {"accuracy": "9"}}, r"metrics\.accuracy"),
        ({"metrics": {"accuracy": 9.0, "accuracy_interval": "x"}}, r"metrics\.accuracy_interval"),
        ({"settings": {"of": [date(2026, 1, 1)]}}, "JSON.*date"),
        ({"seed": True}, '"seed": found True'),
    ],
)
def test_an_evaluation_that_could_not_be_read_is_not_written(release, changes, message) -> None:
    before = (release.path / "metrics.json").read_bytes()
    with pytest.raises(ReleaseError, match=f"an evaluation of .*paco_test: .*{message}"):
        release.add_evaluation({**KNN, **changes})
    assert (release.path / "metrics.json").read_bytes() == before


def test_evaluations_that_are_added_at_one_time_are_all_kept(release, monkeypatch) -> None:
    def read(folder: Path) -> dict[str, Any]:
        metrics = read_metrics(folder)
        time.sleep(0.02)  # in which another might write
        return metrics

    read_metrics = format.read_metrics
    monkeypatch.setattr(format, "read_metrics", read)
    entries = [{**KNN, "settings": {"k": k}, "metrics": {"accuracy": 50 + k}} for k in range(1, 7)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda entry: zoo.open(release.path).add_evaluation(entry), entries))
    assert len(release.metrics["evaluations"]) == 1 + len(entries)
    assert all(f"{50 + k:.2f}" in release.card for k in range(1, 7))
    assert ".lock" not in release_files(release.path)
    check_card(release.path, release.config)


def test_what_cannot_be_written_is_a_clear_error_and_leaves_all_as_it_was(release, monkeypatch) -> None:
    before, refuse = release.card, Mock(side_effect=PermissionError(13, "Permission denied"))
    monkeypatch.setattr(Path, "write_text", refuse)  # the tests may run as root, whom no permission stops
    with pytest.raises(ReleaseError, match="cannot be written"):
        release.add_evaluation({**KNN, "settings": {"k": 1}})
    monkeypatch.undo()
    assert (release.card, len(release.metrics["evaluations"])) == (before, 1)
    shutil.rmtree(release.path)
    with pytest.raises(ReleaseError, match="read-only"):
        release.with_license("mit")
    assert not release.path.exists()
