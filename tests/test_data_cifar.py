"""CIFAR from its archive and from the Hub's parquet files, and any data set of the Hub over real HTTP."""

import numpy as np
import pytest
from torchvision import datasets

from tests.data_fixtures import (
    ARCHIVE,
    FOLDER,
    IMAGES,
    opened,
    pixels_of,
    shard,
    write_archive,
    write_parquet,
)
from zoo.config import parse
from zoo.data import DataConfig, open_dataset
from zoo.data.any_data import as_data, resolve
from zoo.errors import DataError
from zoo.release.card import hub_dataset

TAIL = {"profile": "exponential", "imbalance": 4.0, "seed": 0}


@pytest.mark.parametrize(("kind", "format"), [("cifar10", "PNG"), ("cifar100", "WEBP")])
def test_parquet_files_hold_what_torchvision_reads_from_the_archive(kind, format, tmp_path, monkeypatch):
    write_archive(tmp_path / "archive", kind, monkeypatch)
    write_parquet(tmp_path / "repository" / FOLDER[kind], kind, format=format)
    tail = {"long_tail": TAIL} if kind == "cifar10" else {}
    for split in ("train", "test"):
        theirs = opened(kind, tmp_path / "archive", split, **tail)
        again = opened(kind, tmp_path / "archive" / ARCHIVE[kind], split, **tail)
        assert again.describe() == theirs.describe()
        for root in (tmp_path / "repository", tmp_path / "repository" / FOLDER[kind]):
            ours = opened(kind, root, split, **tail)
            assert np.array_equal(ours.labels, theirs.labels)
            assert np.array_equal(pixels_of(ours), pixels_of(theirs))
            assert ours.class_names == theirs.class_names
            assert ours.settings["name"] == theirs.settings["name"] == kind
    shards = ", ".join(f"train-{n:05d}-of-00002.parquet" for n in range(2))
    assert opened(kind, tmp_path / "repository").describe()["files"] == shards
    assert opened(kind, tmp_path / "archive").describe()["files"] == ARCHIVE[kind]


def test_a_download_is_tried_where_nothing_lies_and_proposed_where_none_was(tmp_path, monkeypatch):
    def offline(self):
        raise OSError("<urlopen error no route>")

    monkeypatch.setattr(datasets.CIFAR10, "download", offline)
    with pytest.raises(DataError, match=r"is not there or not whole: .*or data\.source\.download: true$"):
        opened("cifar10", tmp_path)
    source = {"kind": "cifar10", "download": True}
    with pytest.raises(DataError, match="<urlopen error no route>"):
        opened(source, tmp_path)
    write_parquet(tmp_path, "cifar10")
    assert len(opened(source, tmp_path)) == IMAGES["train"]


def test_shards_of_other_images_are_not_read_as_cifar(tmp_path):
    """Every data set on the Hub has a `train-00000-of-00001.parquet`; a release of CIFAR takes them too."""
    shard(tmp_path / "hundred/train-0.parquet", [0], column="fine_label")
    shard(tmp_path / "ten/train-0.parquet", [0])
    own = parse(DataConfig, {"source": {"kind": "cifar100"}}, "r")
    assert resolve(tmp_path / "hundred", own).is_own
    assert not resolve(tmp_path / "ten", own).is_own


# --- any data set of the Hub ------------------------------------------------------------------------------

NAME = "alice/photos"
REPO = f"datasets/{NAME}"


@pytest.fixture
def tables(tmp_path):
    """Parquet files by their place in the repository."""

    def table(labels):
        shard(tmp_path / "x.parquet", labels, names=("ant", "bee"), image="image")
        return (tmp_path / "x.parquet").read_bytes()

    train = {f"data/train-0000{n}-of-00002.parquet": table(each) for n, each in enumerate(([0, 1], [1]))}
    return {"README.md": b"# photos", **train, "data/test-00000-of-00001.parquet": table([1])}


def fetched(split="train", place=NAME):
    config, root, _ = as_data(f"hub:{place}")
    return open_dataset(config, split, root)


def test_parquet_files_are_fetched_and_without_an_answer_taken_from_the_cache(hub, tables, monkeypatch):
    from huggingface_hub import constants

    hub.create(f"{REPO}2", {"coarse/train-0.parquet": tables["data/test-00000-of-00001.parquet"]})
    assert fetched(place=f"{NAME}2/coarse").labels.tolist() == [1]  # a folder of a repository
    commit = hub.create(REPO, tables)
    train = fetched()
    assert (train.labels.tolist(), train.class_names) == ([0, 1, 1], ("ant", "bee"))
    assert train.image(0).size == (6, 6) and fetched("test").labels.tolist() == [1]
    assert not any("README" in path for _, path in hub.requests)
    facts = train.describe()
    assert facts["hub_commit"] == commit and facts["name"].startswith(NAME) and hub_dataset(facts) == NAME
    hub.fault("GET /api/datasets", status=500, times=99)
    assert len(fetched()) == 3
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    before = len(hub.requests)
    assert len(fetched(place=f"{NAME}@{commit}")) == 3 and len(hub.requests) == before


def test_mistakes_are_one_line(hub):
    for place, message in ((NAME, f"{NAME}.*does not exist"), (f"{NAME}@v9", "no such revision")):
        with pytest.raises(DataError, match=message) as caught:
            fetched(place=place)
        assert "\n" not in str(caught.value)
        hub.create(REPO, {"README.md": b""})
