"""Partial labels: which classes are possible for each image, from drawing them to the batch."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data_fixtures import MEAN, STD
from zoo.config import parse
from zoo.data import DataConfig, LongTail, TrainLoader, ViewsConfig, long_tail, open_dataset
from zoo.data.config import Digits, GroupedCandidates, Parquet, UniformCandidates
from zoo.data.long_tail import as_candidates, draw_candidates
from zoo.errors import DataError, ZooError

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
NAMES = [str(c) for c in range(10)]
GROUPS = [["0", "6", "8", "9"], ["1", "7", "4"], ["2", "3", "5"]]
BACKENDS = [("tensor", 0), ("torchvision", 0), ("torchvision", 2)]


def digits(config=None, long_tail=None, split="train", root=None):
    return open_dataset(DataConfig(source=Digits(), long_tail=long_tail, partial_labels=config), split, root)


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


def test_exact_draws_of_a_small_case_are_pinned():
    drawn = draw_candidates(UniformCandidates(rate=0.5), np.array([3, 0, 1]), NAMES[:4])
    # RandomState(0): .549 .715 .603 .545 | .424 .646 .438 .892 | .964 .383 .792 .529
    assert drawn.astype(int).tolist() == [[0, 0, 0, 1], [1, 0, 1, 0], [0, 1, 0, 0]]


@pytest.mark.parametrize("chunk", [1, 30, 10**9])
def test_the_size_of_the_chunks_changes_no_draw(chunk, monkeypatch):
    labels = np.arange(57) % 10
    expected = authors_uniform(labels, 10, 0.4, 0)
    monkeypatch.setattr(long_tail, "CHUNK", chunk)
    drawn = draw_candidates(UniformCandidates(rate=0.4), labels, NAMES)
    assert np.array_equal(drawn, expected)
    assert np.array_equal(as_candidates(drawn.astype(np.float32), labels, 10), expected)


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
        ([["0", "1"], ["2", "33"]], r'groups: "33" is no class of the data\. Did you mean "3"\?'),
        ([["0", "1"], ["2"]], r'class "3" is in no group, .*4 classes in exactly one'),
    ],
)
def test_groups_that_do_not_fit_the_classes_name_the_class(groups, message):
    config = GroupedCandidates(rate=0.5, groups=groups)
    with pytest.raises(DataError, match=message) as caught:
        draw_candidates(config, np.arange(4), NAMES[:4])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"kind": "uniform", "rate": 1.0}, r'"data.partial_labels.rate": found 1.0 .*less than 1'),
        ({"kind": "uniform", "rate": -0.1}, "greater than or equal to 0"),
        ({"kind": "uniform"}, 'missing key "data.partial_labels.rate"'),
        ({"kind": "uniform", "rate": 0.5, "sed": 1}, r'unknown key .*Did you mean "seed"'),
        ({"kind": "unifrom", "rate": 0.5}, r'"data.partial_labels.kind".*Did you mean "uniform"'),
        ({"kind": "grouped", "rate": 0.5, "groups": [["a"], ["b", "a"]]}, '"a" is in groups 0 and 1'),
        ({"kind": "grouped", "rate": 0.5, "groups": [["a"], []]}, r"groups: found an empty list, expected"),
    ],
)
def test_a_section_that_does_not_fit_names_the_key(section, message):
    from zoo.config import Config

    class Recipe(Config):
        data: DataConfig

    with pytest.raises(ZooError, match=message) as caught:
        parse(Recipe, {"data": {"source": {"kind": "digits"}, "partial_labels": section}}, "r.yaml")
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


def test_candidates_are_read_only_and_follow_a_subset():
    data = digits(UniformCandidates(rate=0.3))
    part = data.subset([7, 3, 3])
    assert np.array_equal(part.candidates, data.candidates[[7, 3, 3]])
    for candidates in (data.candidates, part.candidates):
        with pytest.raises(ValueError, match="read-only"):
            candidates[0, 0] = True


def test_description_says_what_they_are_and_identifies_them():
    settings = {
        "uniform": UniformCandidates(rate=0.25, seed=1),
        "grouped": GroupedCandidates(rate=0.25, seed=1, groups=GROUPS),
    }
    facts = {kind: digits(config).describe() for kind, config in settings.items()}
    for kind, config in settings.items():
        mean = facts[kind]["partial_labels"].pop("mean_candidates")
        assert mean == pytest.approx(digits(config).candidates.sum(1).mean())
    assert facts["uniform"]["partial_labels"] == {"kind": "uniform", "rate": 0.25, "seed": 1}
    assert facts["grouped"]["partial_labels"] == {"kind": "grouped", "rate": 0.25, "seed": 1, "groups": 3}
    digests = {
        digits().describe()["sha256"],
        *(fact["sha256"] for fact in facts.values()),
        digits(UniformCandidates(rate=0.25, seed=2)).describe()["sha256"],
    }
    assert len(digests) == 4
    assert digits(settings["uniform"]).describe() == digits(settings["uniform"]).describe()


def test_a_matrix_can_be_given_in_python():
    data = digits()
    matrix = np.eye(10)[data.labels]
    matrix[:, 0] = 1
    for given in (matrix, matrix.astype(bool), matrix.astype(np.int64), torch.from_numpy(matrix)):
        labelled = data.with_candidates(given)
        assert labelled.candidates.dtype == np.bool_
        assert np.array_equal(labelled.candidates, matrix.astype(bool))
    matrix[:] = 0
    assert labelled.candidates.any(), "the data set shares the caller's memory"
    assert data.candidates is None
    assert labelled.name_of(5) == data.name_of(5)
    about = labelled.describe()["partial_labels"]
    assert about == {"kind": "given", "mean_candidates": pytest.approx(1.9)}


def without_true_labels(matrix, labels):
    matrix[[4, 9, 30], labels[[4, 9, 30]]] = False
    return matrix


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda m, y: m[:-1], r"shape \[1249, 10\], expected \[N, C\] = \[1250, 10\].*after long_tail"),
        (lambda m, y: m[:, 0], r"shape \[1250\]"),
        (lambda m, y: m.astype("U1"), "other values than bool"),
        (lambda m, y: np.where(m, 1.0, 0.25), "other values than bool"),
        (lambda m, y: np.where(m, 1.0, np.nan), "other values than bool"),
        (without_true_labels, r"3 of 1250 rows lack the true label, .* row 4 with label 0"),
    ],
)
def test_a_matrix_that_does_not_fit_is_refused(spoil, message):
    data = digits()
    matrix = spoil(digits(UniformCandidates(rate=0.5)).candidates.copy(), data.labels)
    with pytest.raises(DataError, match=message) as caught:
        data.with_candidates(matrix)
    assert "\n" not in str(caught.value)


# --- batches --------------------------------------------------------------------------------------------


def loader(data, backend, workers=0, **keys):
    config = parse(
        ViewsConfig,
        {
            "backend": backend,
            "workers": workers,
            "train": [[{"op": "pad_crop", "size": 8, "padding": 1}]],
            "eval": {"size": 8},
        },
        "r",
    )
    arguments = {"batch_size": 16, "drop_last": False, "seed": 0, "device": "cpu", **keys}
    return TrainLoader(data, config, mean=MEAN, std=STD, **arguments)


@pytest.fixture(scope="module")
def some():
    return digits(UniformCandidates(rate=0.5)).subset(range(0, 1250, 25))


@pytest.mark.parametrize(("backend", "workers"), BACKENDS)
def test_batches_have_the_candidates_of_their_images(some, backend, workers):
    feed = loader(some, backend, workers)
    batches = list(feed.stream(0, feed.steps_per_epoch))
    assert sum(len(batch.index) for batch in batches) == 50
    for batch in batches:
        assert batch.candidates.dtype == torch.bool
        assert np.array_equal(batch.candidates.numpy(), some.candidates[batch.index.numpy()])
        assert batch.candidates[torch.arange(len(batch.labels)), batch.labels].all()


@pytest.mark.parametrize("backend", ["tensor", "torchvision"])
def test_a_stream_that_begins_later_has_the_same_candidates(some, backend):
    whole = list(loader(some, backend).stream(0, 10))
    tail = list(loader(some, backend).stream(6, 10))
    assert len(tail) == 4
    for expected, batch in zip(whole[6:], tail, strict=True):
        assert torch.equal(expected.candidates, batch.candidates)
        assert torch.equal(expected.index, batch.index)


# --- real data ------------------------------------------------------------------------------------------


@pytest.mark.shared
def test_the_coarse_classes_of_cifar100_written_as_groups_are_its_coarse_labels():
    root = SHARED / "cifar100"
    if not root.is_dir():
        pytest.skip(f"no {root}")
    fine = open_dataset(DataConfig(source=Parquet(label="fine_label")), "train", root)
    coarse = open_dataset(DataConfig(source=Parquet(label="coarse_label")), "train", root).labels
    groups = [
        [fine.class_names[c] for c in np.unique(fine.labels[coarse == superclass])]
        for superclass in range(20)
    ]
    assert [len(group) for group in groups] == [5] * 20
    section = GroupedCandidates(rate=0.9, groups=groups)
    source = Parquet(label="fine_label")
    data = open_dataset(DataConfig(source=source, partial_labels=section), "train", root)
    superclass_of = np.zeros(100, dtype=np.int64)
    superclass_of[fine.labels] = coarse
    rows, classes = np.nonzero(data.candidates)
    assert np.array_equal(superclass_of[classes], coarse[rows])
    assert len(rows) / len(data) == pytest.approx(1 + 0.9 * 4, abs=0.02)
