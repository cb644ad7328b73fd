"""CIFAR from its archive and from the Hub's parquet files: the same images, or one clear error."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchvision import datasets

from tests.cifar_files import ARCHIVE, FOLDER, IMAGES, pixels_of, write_archive, write_parquet
from zoo.config import parse
from zoo.data import DataConfig, ImageDataset, open_dataset
from zoo.data.any_data import resolve
from zoo.errors import DataError

TAIL = {"profile": "exponential", "imbalance": 4.0, "seed": 0}


def opened(
    kind: str, root: Path, split: Any = "train", download: bool = False, **sections: Any
) -> ImageDataset:
    source = {"kind": kind, "download": download}
    return open_dataset(parse(DataConfig, {"source": source, **sections}, "r"), split, root)


@pytest.mark.parametrize(("kind", "format"), [("cifar10", "PNG"), ("cifar100", "WEBP")])
def test_parquet_files_hold_what_torchvision_reads_from_the_archive(
    kind: str, format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_archive(tmp_path / "archive", kind, monkeypatch)
    settings = {"lossless": True} if format == "WEBP" else {}
    write_parquet(tmp_path / "repository" / FOLDER[kind], kind, format=format, **settings)
    for split, section in (("train", {}), ("test", {}), ("train", {"long_tail": TAIL})):
        theirs = opened(kind, tmp_path / "archive", split, **section)
        again = opened(kind, tmp_path / "archive" / ARCHIVE[kind], split, **section)
        assert again.describe() == theirs.describe()
        for root in (tmp_path / "repository", tmp_path / "repository" / FOLDER[kind]):
            ours = opened(kind, root, split, **section)
            assert np.array_equal(ours.labels, theirs.labels)
            assert np.array_equal(pixels_of(ours), pixels_of(theirs))
            assert ours.class_names == theirs.class_names
            assert ours.settings["name"] == theirs.settings["name"] == kind
    shards = ", ".join(f"train-{n:05d}-of-00002.parquet" for n in range(2))
    assert opened(kind, tmp_path / "repository").describe()["files"] == shards
    assert opened(kind, tmp_path / "archive").describe()["files"] == ARCHIVE[kind]


def test_the_archive_comes_first_also_when_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_archive(tmp_path, "cifar100", monkeypatch)
    write_parquet(tmp_path, "cifar100")
    assert opened("cifar100", tmp_path).describe()["files"] == ARCHIVE["cifar100"]
    (tmp_path / ARCHIVE["cifar100"] / "train").write_bytes(pickle.dumps({"data": []}))  # nobody published it
    with pytest.raises(DataError, match=r"cifar-100-python.* is not there or not whole: .*--data"):
        opened("cifar100", tmp_path)


def test_a_download_is_tried_where_nothing_lies_and_proposed_where_none_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(self: Any) -> None:
        raise OSError("<urlopen error no route>")

    monkeypatch.setattr(datasets.CIFAR10, "download", offline)
    with pytest.raises(DataError, match=r"is not there or not whole: .*or data\.source\.download: true$"):
        opened("cifar10", tmp_path)
    with pytest.raises(DataError, match="<urlopen error no route>"):
        opened("cifar10", tmp_path, download=True)
    write_parquet(tmp_path, "cifar10")
    assert len(opened("cifar10", tmp_path, download=True)) == IMAGES["train"]


def test_shards_of_other_images_are_not_read_as_cifar(tmp_path: Path) -> None:
    """Every data set on the Hub has a `train-00000-of-00001.parquet`; a release of CIFAR takes them too."""
    write_parquet(tmp_path / "hundred", "cifar100")
    write_parquet(tmp_path / "ten", "cifar10")
    own = parse(DataConfig, {"source": {"kind": "cifar100"}}, "r")
    assert resolve(tmp_path / "hundred", own).is_own
    given = resolve(tmp_path / "ten", own)
    assert not given.is_own
    assert len(open_dataset(given.config, "train", given.root)) == len(opened("cifar10", tmp_path / "ten"))
