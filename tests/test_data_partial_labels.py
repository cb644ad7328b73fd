"""Partial labels: which classes are possible for each image, from drawing them to the batch."""

import numpy as np
import pytest
import torch

from tests.test_data_loader import CROP, make
from zoo.data import DataConfig, LongTail, open_dataset
from zoo.data.config import Digits, GroupedCandidates, UniformCandidates
from zoo.data.long_tail import draw_candidates
from zoo.errors import DataError

NAMES = [str(c) for c in range(10)]
GROUPS = [["0", "6", "8", "9"], ["1", "7", "4"], ["2", "3", "5"]]
BACKENDS = [("tensor", 0), ("stream", 0), ("stream", 2)]


def digits(config=None, long_tail=None, split="train"):
    return open_dataset(DataConfig(source=Digits(), long_tail=long_tail, partial_labels=config), split, None)


def authors_uniform(labels, classes, rate, seed):
    """Restate PiCO's generate_uniform_cv_candidate_labels: a matrix of probabilities, row by row."""
    transition = np.full((classes, classes), rate)
    np.fill_diagonal(transition, 1.0)
    state = np.random.get_state()  # noqa: NPY002
    np.random.seed(seed)  # noqa: NPY002
    uniform = np.random.uniform(0, 1, size=(len(labels), classes))  # noqa: NPY002
    np.random.set_state(state)  # noqa: NPY002
    return np.stack([uniform[i] < transition[label] for i, label in enumerate(labels)])


# --- drawing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.7])
def test_uniform_draws_are_the_authors(rate):
    labels = np.random.RandomState(3).randint(0, 7, 200)
    drawn = draw_candidates(UniformCandidates(rate=rate, seed=5), labels, NAMES[:7])
    assert drawn.dtype == np.bool_
    assert np.array_equal(drawn, authors_uniform(labels, 7, rate, 5))


def test_grouped_candidates_stay_in_the_true_labels_group_and_are_the_uniform_ones_there():
    labels = np.arange(2000) % 10
    drawn = draw_candidates(GroupedCandidates(rate=0.5, seed=4, groups=GROUPS), labels, NAMES)
    uniform = draw_candidates(UniformCandidates(rate=0.5, seed=4), labels, NAMES)
    members = {int(name): [int(n) for n in group] for group in GROUPS for name in group}
    for row, label in enumerate(labels):
        inside = members[label]
        assert drawn[row, inside].tolist() == uniform[row, inside].tolist()
        assert not np.delete(drawn[row], inside).any()
    assert drawn.sum(1).mean() == pytest.approx(1 + 0.5 * (4 * 3 + 3 * 2 + 3 * 2) / 10, rel=0.05)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([["0", "1"], ["2", "33"]], "groups: found 3, 33, expected each class once"),
        ([["0", "1"], ["2"]], "found 3"),
        ([["0", "1"], ["2", "3", "1"]], "found one that is there twice"),
    ],
)
def test_groups_that_do_not_fit_the_classes_name_the_class(groups, message):
    config = GroupedCandidates(rate=0.5, groups=groups)
    with pytest.raises(DataError, match=message) as caught:
        draw_candidates(config, np.arange(4), NAMES[:4])
    assert "\n" not in str(caught.value)


# --- data sets ------------------------------------------------------------------------------------------


def test_are_drawn_for_the_images_that_the_long_tail_keeps():
    tail = LongTail(imbalance=50.0)
    data = digits(UniformCandidates(rate=0.3, seed=2), tail)
    assert (
        digits(UniformCandidates(rate=0.3), split="test").candidates is None and digits().candidates is None
    )
    assert data.labels.tolist() == digits(None, tail).labels.tolist()
    assert np.array_equal(data.candidates, authors_uniform(data.labels, 10, 0.3, 2))


def test_description_says_what_they_are_and_identifies_them():
    settings, found = {"rate": 0.25, "seed": 1}, [digits().describe()["sha256"]]
    for config, kind in (
        (UniformCandidates(**settings), {"kind": "uniform"}),
        (GroupedCandidates(**settings, groups=GROUPS), {"kind": "grouped", "groups": 3}),
    ):
        facts = digits(config).describe()
        mean = digits(config).candidates.sum(1).mean()
        assert facts["partial_labels"] == {**settings, **kind, "mean_candidates": pytest.approx(mean)}
        found.append(facts["sha256"])
    assert len({*found, digits(UniformCandidates(rate=0.25, seed=2)).describe()["sha256"]}) == 4


def test_a_matrix_can_be_given_in_python():
    data = digits()
    matrix = np.eye(10)[data.labels]
    matrix[:, 0] = 1
    labelled = data.with_candidates(matrix)
    assert np.array_equal(labelled.candidates, matrix.astype(bool)) and data.candidates is None
    about = labelled.describe()["partial_labels"]
    assert about == {"kind": "given", "mean_candidates": pytest.approx(1.9)}
    for wrong in (labelled.candidates[:-1], np.zeros((1250, 10))):
        with pytest.raises(DataError, match="partial_labels"):
            data.with_candidates(wrong)


# --- batches --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("backend", "workers"), BACKENDS)
def test_batches_have_the_candidates_of_their_images(backend, workers):
    some = digits(UniformCandidates(rate=0.5)).subset(range(0, 1250, 25))
    feed = make(some, backend, workers, views=[[CROP]], batch_size=16, drop_last=False)
    batches = list(feed.stream(0, feed.steps_per_epoch))
    assert sum(len(batch.index) for batch in batches) == 50
    for batch in batches:
        assert batch.candidates.dtype == torch.bool
        assert np.array_equal(batch.candidates.numpy(), some.candidates[batch.index.numpy()])
        assert batch.candidates[torch.arange(len(batch.labels)), batch.labels].all()
