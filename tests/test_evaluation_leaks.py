"""Test labels are used for nothing but the final count, by any protocol."""

import pytest
import torch

from tests.evaluation_helpers import DATA, digits, encoder
from zoo.data import ImageDataset, open_dataset
from zoo.evaluation import measure as measuring
from zoo.evaluation.light import parse_protocol
from zoo.evaluation.published import ProbeRun
from zoo.modules import Centers
from zoo.recipe.protocols import PROTOCOLS

SETTINGS = {
    "linear": {"l2_grid": [1e-3, 1e-1]},
    "linear_full": {"epochs": 2, "milestones": [], "lr": 0.1},
    "few_shot": {"shots": 2, "draws": 2},
    "semi_supervised": {"epochs": 4, "batch_size": 16, "fraction": 0.5},
}


def permuted(dataset):
    """Return the same images with each other's labels."""
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0)).numpy()
    names, settings = dataset.class_names, dataset.settings
    return ImageDataset(dataset.store, dataset.labels[order], names, rows=dataset.rows, settings=settings)


def data_of(true):
    tested = open_dataset(DATA, "test", None).subset(range(0, 547, 6))
    return digits(encoder(), every=10, tested=tested if true else permuted(tested))


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_protocol_says_the_same_whatever_the_test_labels_are(name, tmp_path, monkeypatch):
    weight = torch.randn(10, 64, generator=torch.Generator().manual_seed(0))
    bias = -weight @ data_of(True).probe.train.features.mean(dim=0)
    centers = Centers(weight, bias, torch.ones(10).long())
    protocol, answers = parse_protocol(name, SETTINGS.get(name, {})), []
    run_protocol = measuring.run_protocol

    def spy(*arguments):
        found = run_protocol(*arguments)
        answers.append(found[0])
        return found

    monkeypatch.setattr(measuring, "run_protocol", spy)
    true, other = (
        measuring.measure(
            protocol, *data_of(which), centers, ProbeRun(DATA, tmp_path / str(which), exact=True)
        )
        for which in (True, False)
    )
    assert torch.equal(*answers), "answers depend on the test labels"
    for key in ("chosen", "settings", "seed"):
        assert true[key] == other[key], f"{key} depends on the test labels"
    assert true["metrics"] != other["metrics"]  # while the count is another, so the labels did arrive
    assert true["test_set"]["sha256"] != other["test_set"]["sha256"]


def test_what_a_probe_is_given_holds_no_labels_of_the_test_images():
    probe = data_of(True).probe
    assert probe.test.shape == (92, 64)
    sets = [value for value in vars(probe).values() if isinstance(value, ImageDataset)]
    assert sets == [probe.train_set, probe.test_images]
    assert {*probe.test_images.labels.tolist()} == {-1} and probe.test_images.class_names == ()
