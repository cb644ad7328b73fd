"""CIFAR from its archive and from the Hub's parquet files: the same images, or one clear error."""

from __future__ import annotations

import pickle
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from torchvision import datasets

from tests.cifar_files import ARCHIVE, FOLDER, IMAGES, pixels_of, write_archive, write_parquet
from zoo.config import parse
from zoo.data import DataConfig, ImageDataset, open_dataset, sources
from zoo.errors import DataError

TAIL = {"profile": "exponential", "imbalance": 4.0, "seed": 0}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data sets of a few images count as whole here."""
    assert sources.IMAGES == {"train": 50_000, "test": 10_000}
    monkeypatch.setattr(sources, "IMAGES", IMAGES)


def opened(
    kind: str, root: Path, split: Any = "train", download: bool = False, **sections: Any
) -> ImageDataset:
    source = {"kind": kind, "download": download}
    return open_dataset(parse(DataConfig, {"source": source, **sections}, "r"), split, root)


def refused(kind: str, root: Path, message: str, split: Any = "train") -> None:
    with pytest.raises(DataError, match=message) as caught:
        opened(kind, root, split)
    assert "\n" not in str(caught.value) and str(caught.value).startswith(f"{kind}: ")


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
    refused("cifar100", tmp_path, "cifar-100-python.* is not whole, by the published checksums.*--data")


def test_nothing_is_downloaded_where_parquet_files_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.CIFAR100, "download", lambda self: pytest.fail("downloaded"))
    write_parquet(tmp_path, "cifar100")
    assert len(opened("cifar100", tmp_path, download=True)) == IMAGES["train"]


def test_of_several_that_begin_together_one_downloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_archive(tmp_path / "theirs", "cifar100", monkeypatch)
    began: list[Path] = []

    def fetch(url: str, root: Path, **_: Any) -> None:
        began.append(root)
        for file in (tmp_path / "theirs" / ARCHIVE["cifar100"]).iterdir():
            time.sleep(0.05)
            (Path(root) / ARCHIVE["cifar100"]).mkdir(exist_ok=True)
            shutil.copy(file, Path(root) / ARCHIVE["cifar100"] / file.name)

    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", fetch)
    (tmp_path / "ours").mkdir()
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: opened("cifar100", tmp_path / "ours", download=True), range(3)))
    assert [len(each) for each in found] == [IMAGES["train"]] * 3
    assert len(began) == 1


def test_missing_files_are_named_and_a_download_is_proposed_where_none_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(self: Any) -> None:
        raise OSError("<urlopen error no route>")

    monkeypatch.setattr(datasets.CIFAR10, "download", offline)
    refused("cifar10", tmp_path, r'cifar-10-batches-py" is not there.*or data\.source\.download: true$')
    with pytest.raises(DataError, match="is not there: <urlopen error no route>"):
        opened("cifar10", tmp_path, download=True)
    (tmp_path / "train.parquet").touch()
    refused("cifar10", tmp_path, r'"train-\*.parquet" and .* \(found train.parquet: of other names\)')


def test_other_images_than_the_data_set_s_are_refused(tmp_path: Path) -> None:
    write_parquet(tmp_path, "cifar100")
    refused("cifar10", tmp_path, 'no column "label"')
    write_parquet(tmp_path, "cifar10", splits=("train",))
    file = tmp_path / "train-00001-of-00002.parquet"
    pq.write_table(pq.read_table(file).slice(1), file)
    refused("cifar10", tmp_path, "found 399 images of 10 classes, .*; expected the data set's 400 of 10")
    for format, settings in (("JPEG", {}), ("WEBP", {"lossless": False})):
        write_parquet(tmp_path, "cifar10", format=format, **settings)
        refused("cifar10", tmp_path, "compressed with loss")
