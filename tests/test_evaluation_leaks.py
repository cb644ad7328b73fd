"""Test labels are used for nothing but the final count, by any protocol."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.evaluation_helpers import DATA, Digits, digits, encoder
from tests.leaks import check_no_leak, permuted
from zoo.data import ImageDataset, open_dataset
from zoo.evaluation.evaluate import parse_protocol
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


def test_what_a_probe_is_given_holds_no_labels_of_the_test_images() -> None:
    probe = data_of(True).probe
    assert probe.test.shape == (183, 64)
    sets = [value for value in vars(probe).values() if isinstance(value, ImageDataset)]
    assert sets == [probe.train_set, probe.test_images]
    assert {*probe.test_images.labels.tolist()} == {-1} and probe.test_images.class_names == ()
