"""Test labels are used for nothing but the final count: every protocol, and planted leaks that are caught."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

import zoo
from tests.evaluation_helpers import digits, encoder, run_of
from tests.leaks import check_no_leak, permuted
from zoo.evaluation import measure as measuring
from zoo.evaluation.evaluate import parse_protocol
from zoo.evaluation.linear import fit_linear
from zoo.evaluation.measure import Answer, _of_logits, measure
from zoo.evaluation.probe_data import Encoded, ProbeData
from zoo.modules import Centers
from zoo.recipe.protocols import PROTOCOLS

SETTINGS: dict[str, dict[str, Any]] = {
    "linear": {"l2_grid": [1e-3, 1e-1]},
    "linear_full": {"epochs": 2, "milestones": [], "lr": 0.1},
    "knn": {},
    "few_shot": {"shots": 2},
    "semi_supervised": {"epochs": 10, "batch_size": 16, "fraction": 0.2},
    "retrieval": {},
    "classifier": {},
}


def encoded(true: bool) -> Encoded:
    data = digits(encoder(), every=5)
    tested = data.test_set.subset(range(0, 547, 3))
    data.test_set = tested if true else permuted(tested)
    return data


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_protocol_says_the_same_whatever_the_test_labels_are(name: str, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(10, 64, generator=generator)
    centers = Centers(weight, -weight @ encoded(True).train.features.mean(dim=0), torch.ones(10).long())
    folders = iter((tmp_path / "true", tmp_path / "permuted"))
    protocol = parse_protocol(name, SETTINGS[name])
    true, other = check_no_leak(lambda data: measure(protocol, data, centers, run_of(next(folders))), encoded)
    assert true["metrics"] != other["metrics"]  # while the count is another, so the labels did arrive
    assert true["test_set"]["sha256"] != other["test_set"]["sha256"]


def _on_test_labels(_protocol: Any, data: ProbeData) -> Answer:
    """A linear probe that chooses its penalty on the test labels, which it has from behind."""
    labels = next(
        torch.from_numpy(each.test_set.labels.copy())
        for each in gc.get_objects()
        if isinstance(each, Encoded) and each.probe is data
    )
    features, targets = data.train
    probes = [fit_linear(features, targets, 10, l2_grid=[l2]) for l2 in (1e-4, 1e-2, 1.0, 10.0)]
    best = max(probes, key=lambda probe: (probe.predict(data.test) == labels).float().mean().item())
    return _of_logits(best.logits(data.test), {"l2": best.l2})


def _saying_nothing_of_it(protocol: Any, data: ProbeData) -> Answer:
    answer = _on_test_labels(protocol, data)
    return answer._replace(chosen={})


@pytest.mark.parametrize("leak", [_on_test_labels, _saying_nothing_of_it])
def test_a_probe_that_chooses_its_penalty_on_the_test_labels_is_caught(
    leak: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    linear = parse_protocol("linear", {"l2_grid": [1e-3, 1e-1]})
    check_no_leak(lambda data: measure(linear, data, None), encoded)
    monkeypatch.setattr(measuring, "_linear", leak)
    with pytest.raises(AssertionError, match="depend on the test labels"):
        check_no_leak(lambda data: measure(linear, data, None), encoded)


def test_what_a_probe_is_given_holds_no_labels_of_the_test_images() -> None:
    data = encoded(True)
    assert data.probe.test.shape == (183, 64)
    own = {name for name in vars(data.probe) if name != "encode_test"}
    known = [value for name in own if isinstance(value := getattr(data.probe, name), zoo.data.ImageDataset)]
    assert known == [data.train_set]
    assert not hasattr(data.probe, "test_set")
