"""CIFAR from its archive and from the Hub's parquet files: the same images, or one clear error."""

from __future__ import annotations

import errno
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from torchvision import datasets

from tests.cifar_files import (
    ARCHIVE,
    FOLDER,
    IMAGES,
    pixels_of,
    write_archive,
    write_parquet,
)
from zoo.config import parse
from zoo.data import DataConfig, ImageDataset, cifar, open_dataset
from zoo.errors import DataError

KINDS = ("cifar10", "cifar100")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data sets of a few images count as whole here."""
    assert cifar.IMAGES == {"train": 50_000, "test": 10_000}
    monkeypatch.setattr(cifar, "IMAGES", IMAGES)


def opened(kind: str, root: Path, split: Any = "train", **sections: Any) -> ImageDataset:
    return open_dataset(parse(DataConfig, {"source": {"kind": kind}, **sections}, "r"), split, root)


def refused(kind: str, root: Path, message: str, split: Any = "train") -> None:
    with pytest.raises(DataError, match=message) as caught:
        opened(kind, root, split)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{kind}: ")


@pytest.mark.parametrize(("kind", "format"), [("cifar10", "PNG"), ("cifar100", "WEBP")])
def test_parquet_files_hold_what_torchvision_reads_from_the_archive(
    kind: str, format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_archive(tmp_path / "archive", kind, monkeypatch)
    settings = {"lossless": True} if format == "WEBP" else {}
    write_parquet(tmp_path / "repository" / FOLDER[kind], kind, format=format, **settings)
    tail = {"profile": "exponential", "imbalance": 4.0, "seed": 0}
    for split, section in (("train", {}), ("test", {}), ("train", {"long_tail": tail})):
        theirs = opened(kind, tmp_path / "archive", split, **section)
        for root in (tmp_path / "repository", tmp_path / "repository" / FOLDER[kind]):
            ours = opened(kind, root, split, **section)
            assert np.array_equal(ours.labels, theirs.labels)
            assert np.array_equal(pixels_of(ours), pixels_of(theirs))
            assert ours.class_names == theirs.class_names
            assert ours.settings["name"] == theirs.settings["name"] == kind
    shards = ", ".join(f"train-{n:05d}-of-00002.parquet" for n in range(2))
    assert opened(kind, tmp_path / "repository").describe()["files"] == shards
    assert opened(kind, tmp_path / "archive").describe()["files"] == ARCHIVE[kind]


def test_a_long_tail_of_files_in_another_order_has_as_many_images_but_other_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_archive(tmp_path / "archive", "cifar10", monkeypatch)
    order = np.random.default_rng(0).permutation(IMAGES["train"])
    write_parquet(tmp_path / "hub", "cifar10", order=order)
    whole = [opened("cifar10", tmp_path / name) for name in ("archive", "hub")]
    assert np.array_equal(pixels_of(whole[0])[order], pixels_of(whole[1]))
    tail = {"profile": "exponential", "imbalance": 4.0, "seed": 0}
    kept = [opened("cifar10", tmp_path / name, long_tail=tail) for name in ("archive", "hub")]
    assert np.array_equal(kept[0].class_counts, kept[1].class_counts)
    found = [{each.tobytes() for each in pixels_of(data)} for data in kept]
    assert found[0] != found[1]
    assert kept[0].describe()["sha256"] != kept[1].describe()["sha256"]


def test_the_archive_comes_first_also_when_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_archive(tmp_path, "cifar100", monkeypatch)
    write_parquet(tmp_path, "cifar100")
    assert opened("cifar100", tmp_path).describe()["files"] == ARCHIVE["cifar100"]
    (tmp_path / ARCHIVE["cifar100"] / "train").write_bytes(b"half")
    refused("cifar100", tmp_path, "another checksum than the published one: train.*--data DIR")


def test_parquet_files_of_two_folders_are_not_chosen_from(tmp_path: Path) -> None:
    write_parquet(tmp_path, "cifar10")
    write_parquet(tmp_path / "data", "cifar10")
    refused("cifar10", tmp_path, "found parquet files in .* and in .*data, expected them in one folder")


def test_nothing_is_downloaded_where_parquet_files_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.CIFAR100, "download", lambda self: pytest.fail("downloaded"))
    write_parquet(tmp_path, "cifar100")
    source = {"kind": "cifar100", "download": True}
    assert len(open_dataset(parse(DataConfig, {"source": source}, "r"), "train", tmp_path)) == 400


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
    config = parse(DataConfig, {"source": {"kind": "cifar100", "download": True}}, "r")
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda split: open_dataset(config, split, tmp_path / "ours"), ["train"] * 3))
    assert [len(each) for each in found] == [IMAGES["train"]] * 3
    assert len(began) == 1


def test_what_is_there_is_read_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: Path) -> None:
        raise PermissionError(errno.EROFS, "Read-only file system", str(file))

    write_archive(tmp_path, "cifar100", monkeypatch)
    monkeypatch.setattr("zoo.locks.FileLock", refuse)
    config = parse(DataConfig, {"source": {"kind": "cifar100", "download": True}}, "r")
    assert len(open_dataset(config, "train", tmp_path)) == IMAGES["train"]


@pytest.mark.parametrize("download", [False, True])
@pytest.mark.parametrize("inside", ["", "cifar100"])
def test_a_damaged_archive_beside_parquet_files_is_named_and_nothing_is_downloaded(
    inside: str, download: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.CIFAR100, "download", lambda self: pytest.fail("downloaded"))
    archive, parquet = tmp_path / ARCHIVE["cifar100"], tmp_path / inside
    archive.mkdir()
    write_parquet(parquet, "cifar100")
    source = parse(DataConfig, {"source": {"kind": "cifar100", "download": download}}, "r")
    for root in (tmp_path, archive):
        with pytest.raises(DataError) as caught:
            open_dataset(source, "train", root)
        assert str(caught.value) == (
            f'cifar100: the archive\'s folder "{archive}" is not whole: it has none of the 3 files train, '
            f'test, meta. To read the parquet files in {parquet}, move "{archive}" away and give their '
            "folder with --data DIR"
        )
    archive.rmdir()  # as told
    assert len(open_dataset(source, "train", parquet)) == IMAGES["train"]


def test_a_download_is_proposed_only_where_none_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(self: Any) -> None:
        raise OSError("<urlopen error no route>")

    monkeypatch.setattr(datasets.CIFAR10, "download", offline)
    source = {"kind": "cifar10", "download": True}
    for damaged in (False, True):
        if damaged:
            (tmp_path / ARCHIVE["cifar10"]).mkdir()
        refused("cifar10", tmp_path, r"or set data\.source\.download: true$")
        with pytest.raises(
            DataError, match=r"could not be downloaded to .*: <urlopen error no route>"
        ) as caught:
            open_dataset(parse(DataConfig, {"source": source}, "r"), "train", tmp_path)
        assert "download: true" not in str(caught.value) and "--data DIR" in str(caught.value)


def test_of_a_damaged_archive_the_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_archive(tmp_path, "cifar100", monkeypatch)
    (tmp_path / ARCHIVE["cifar100"] / "test").write_bytes(b"half")
    (tmp_path / ARCHIVE["cifar100"] / "meta").unlink()
    refused(
        "cifar100",
        tmp_path,
        "not whole: without meta; another checksum than the published one: test. Put the",
    )


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    refused("cifar10", tmp_path, r'Looked for "cifar-10-batches-py" in .* and for "train-\*.parquet"')
    write_parquet(tmp_path, "cifar10", splits=("train",))
    refused("cifar10", tmp_path, r'no test files "test-\*.parquet".*--data DIR', "test")
    write_parquet(tmp_path, "cifar10", shards=3)
    refused("cifar10", tmp_path, "shards of 2 and of 3 files .*expected those of one set")
    for file in tmp_path.glob("*-of-00002.parquet"):
        file.unlink()
    middle = tmp_path / "train-00001-of-00003.parquet"
    whole = middle.read_bytes()
    middle.unlink()
    refused("cifar10", tmp_path, 'of 3 shards 1 are missing, the first "train-00001-of-00003.parquet"')
    middle.write_bytes(whole[:-20])
    refused("cifar10", tmp_path, r"train-00001-of-00003\.parquet cannot be read")
    middle.write_bytes(whole)
    pq.write_table(pq.read_table(middle).slice(1), middle)
    refused(
        "cifar10", tmp_path, "found 399 images of 10 classes, 39 of class .*split has 400, 40 of each of 10"
    )
    for file in tmp_path.iterdir():
        file.rename(tmp_path / file.name.partition("-")[0])
    (tmp_path / "train").rename(tmp_path / "train.parquet")
    refused("cifar10", tmp_path, "there are train.parquet: of other names")


@pytest.mark.parametrize("kind", KINDS)
def test_the_other_data_set_is_recognised(kind: str, tmp_path: Path) -> None:
    other = next(each for each in KINDS if each != kind)
    write_parquet(tmp_path, other)
    refused(kind, tmp_path, f"columns img, .* those of {other}; expected .*set data.source.kind: {other}")


def test_images_of_other_pixels_are_refused(tmp_path: Path) -> None:
    for format, settings in (("JPEG", {}), ("WEBP", {"lossless": False})):
        write_parquet(tmp_path, "cifar10", format=format, **settings)
        refused("cifar10", tmp_path, 'image "train-00000-of-00002.parquet#0" is compressed with loss')
