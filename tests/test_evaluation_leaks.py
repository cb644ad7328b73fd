"""Test labels are used for nothing but the final count: every protocol, and planted leaks that are caught."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.evaluation_helpers import DATA, Digits, digits, encoder
from tests.leaks import check_no_leak, permuted
from zoo.data import ImageDataset, open_dataset
from zoo.evaluation import measure as measuring
from zoo.evaluation.evaluate import parse_protocol
from zoo.evaluation.linear import LinearClassifier, fit_linear
from zoo.evaluation.measure import measure
from zoo.evaluation.published import ProbeRun
from zoo.modules import Centers
from zoo.recipe.protocols import PROTOCOLS

SETTINGS: dict[str, dict[str, Any]] = {
    "linear": {"l2_grid": [1e-3, 1e-1]},
    "linear_full": {"epochs": 2, "milestones": [], "lr": 0.1},
    "few_shot": {"shots": 2},
    "semi_supervised": {"epochs": 10, "batch_size": 16, "fraction": 0.2},
}


def data_of(true: bool) -> Digits:
    tested = open_dataset(DATA, "test", None).subset(range(0, 547, 3))
    return digits(encoder(), every=5, tested=tested if true else permuted(tested))


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_protocol_says_the_same_whatever_the_test_labels_are(name: str, tmp_path: Path) -> None:
    weight = torch.randn(10, 64, generator=torch.Generator().manual_seed(0))
    bias = -weight @ data_of(True).probe.train.features.mean(dim=0)
    centers = Centers(weight, bias, torch.ones(10).long())
    protocol = parse_protocol(name, SETTINGS.get(name, {}))

    def evaluate(true: bool) -> dict[str, Any]:
        return measure(protocol, *data_of(true), centers, ProbeRun(DATA, tmp_path / str(true), exact=True))

    true, other = check_no_leak(evaluate)
    assert true["metrics"] != other["metrics"]  # while the count is another, so the labels did arrive
    assert true["test_set"]["sha256"] != other["test_set"]["sha256"]


@pytest.mark.parametrize("chosen", [{}, None])
def test_a_probe_that_chooses_its_penalty_on_the_test_labels_is_caught(
    chosen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the labels from behind, and says which penalty it chose, or nothing of it."""
    linear = parse_protocol("linear", {"l2_grid": [1e-3, 1e-1]})
    check_no_leak(lambda true: measure(linear, *data_of(true)))
    honest = measuring.run_protocol

    def leak(protocol: Any, data: Any, *others: Any) -> tuple[Tensor, dict[str, Any]]:
        sets = [each for each in gc.get_objects() if isinstance(each, ImageDataset)]
        (labels,) = {tuple(each.labels) for each in sets if len(each) == 183 and each.num_classes}
        probes = [fit_linear(*data.train, 10, l2_grid=[l2]) for l2 in (1e-4, 1e-2, 1.0, 10.0)]

        def right(probe: LinearClassifier) -> int:
            return int((probe.predict(data.test) == torch.tensor(labels)).sum())

        best = max(probes, key=right)
        return best.logits(data.test), {"l2": best.l2} if chosen is None else chosen

    monkeypatch.setattr(measuring, "run_protocol", leak)
    with pytest.raises(AssertionError, match="depend on the test labels"):
        check_no_leak(lambda true: measure(linear, *data_of(true)))
    assert honest is not leak


def test_what_a_probe_is_given_holds_no_labels_of_the_test_images() -> None:
    probe = data_of(True).probe
    assert probe.test.shape == (183, 64)
    sets = [value for value in vars(probe).values() if isinstance(value, ImageDataset)]
    assert sets == [probe.train_set, probe.test_images]
    assert {*probe.test_images.labels.tolist()} == {-1} and probe.test_images.class_names == ()
