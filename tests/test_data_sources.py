"""Every kind of source: the same images out of each, and one line for what is not there or not right."""

from __future__ import annotations

import io
import json
import os
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.datasets import load_digits
from torchvision.datasets import ImageFolder

from tests.data_fixtures import photo
from zoo.config import parse
from zoo.data import DataConfig, ImageDataset, open_dataset
from zoo.data.dataset import ImageStore, require_same_classes
from zoo.errors import DataError

CLASSES = ("ant", "bee")
LABELS = [0, 0, 1]  # of three images


def opened(source: dict[str, Any], root: Path | None, split: Any = "train", **keys: Any) -> ImageDataset:
    return open_dataset(parse(DataConfig, {"source": source}, "r"), split, root, **keys)


def refused(source: dict[str, Any], root: Path | None, message: str, split: Any = "train") -> None:
    with pytest.raises(DataError, match=message) as caught:
        opened(source, root, split)
    assert "\n" not in str(caught.value)


def png(seed: int) -> bytes:
    buffer = io.BytesIO()
    photo(6, 6, seed).save(buffer, "PNG")
    return buffer.getvalue()


def put(root: Path, *paths: str) -> None:
    """Write an image to each path."""
    for number, path in enumerate(paths):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(png(number))


def shard(
    path: Path,
    labels: Any,
    *,
    names: Any = (),
    column: str = "label",
    image: str = "img",
    images: Any = None,
) -> None:
    """Write a parquet file as the Hub's `datasets` does."""
    rows = [{"bytes": png(n), "path": f"p{n}.png"} for n in range(len(labels))] if images is None else images
    table = pa.table({image: rows, column: labels})
    if names:
        info = {"info": {"features": {column: {"_type": "ClassLabel", "names": list(names)}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def folder(root: Path) -> dict[str, Any]:
    put(root, "train/ant/0.png", "train/ant/1.png", "train/bee/2.png", "val/bee/0.png")
    return {"kind": "folder"}


def text_list(root: Path) -> dict[str, Any]:
    put(root, "an image 0.png", "an image 1.png", "an image 2.png")
    (root / "train.txt").write_text("an image 0.png ant\nan image 1.png ant\n\nan image 2.png bee\n")
    (root / "test.txt").write_text("an image 0.png bee\n")
    return {"kind": "list", "train": "train.txt", "test": "test.txt"}


def csv_list(root: Path) -> dict[str, Any]:
    put(root, "a, b.png", "c.png", "d.png")
    (root / "a.csv").write_text('path,label\n"a, b.png",ant\nc.png,"ant"\nd.png,bee\n', "utf-8-sig")
    (root / "b.CSV").write_text('"a, b.png",bee\n')
    return {"kind": "list", "train": "a.csv", "test": "b.CSV"}


def parquet(root: Path) -> dict[str, Any]:
    shard(root / "train-1.parquet", [1], names=CLASSES, images=[{"bytes": png(2), "path": "p2.png"}])
    shard(root / "train-0.parquet", [0, 0], names=CLASSES)
    shard(root / "train_other-0.parquet", [1, 1, 1], names=CLASSES)  # of another split
    shard(root / "test.parquet", [1], names=CLASSES)
    return {"kind": "parquet"}


def parquet_of_text(root: Path) -> dict[str, Any]:
    kinds = (pa.string(), pa.dictionary(pa.int32(), pa.string()))
    shard(root / "train/a.parquet", pa.array(["ant", "ant"], kinds[1]), images=[png(0), png(1)])
    shard(root / "train/b.parquet", pa.array(["bee"], kinds[1]), images=[png(2)])
    shard(root / "test/a.parquet", pa.array(["bee"], kinds[0]), images=[png(0)])
    return {"kind": "parquet"}


KINDS = (folder, text_list, csv_list, parquet, parquet_of_text)


@pytest.mark.parametrize("write", KINDS)
def test_each_kind_gives_images_labels_and_classes(write: Callable[[Path], Any], tmp_path: Path) -> None:
    source = write(tmp_path)
    train, test = (opened(source, tmp_path, split) for split in ("train", "test"))
    assert train.labels.tolist() == LABELS and test.labels.tolist() == [1]
    assert train.class_names == test.class_names == CLASSES
    for row in range(3):
        assert np.array_equal(np.asarray(train.image(row)), np.asarray(photo(6, 6, row)))
    facts = train.describe()
    assert json.loads(json.dumps(facts)) == facts and facts["num_images"] == 3
    assert len({train.name_of(row) for row in range(3)}) == 3


# --- digits -----------------------------------------------------------------------------------------------


def test_digits_are_split_once_and_for_all_and_use_all_of_8_bits() -> None:
    train, test = (opened({"kind": "digits"}, None, split) for split in ("train", "test"))
    assert (len(train), len(test)) == (1250, 547) and train.class_counts.tolist() == [125] * 10
    random, found = np.random.RandomState(0), load_digits()
    rows = np.concatenate([random.permutation(np.flatnonzero(found.target == c))[:125] for c in range(10)])
    assert [train.name_of(i) for i in range(1250)] == [f"digits/{row}" for row in rows]
    assert not {train.name_of(i) for i in range(1250)} & {test.name_of(i) for i in range(547)}
    image = np.asarray(train.image(7))
    assert np.abs(image[..., 1] - found.images[rows[7]] / 16 * 255).max() <= 0.5 and image.max() == 255


def test_a_release_s_fingerprint_of_digits_is_the_recorded_one() -> None:
    expected = "9d458825c017657ae22b665c3addd49b664452e35d57bfdd139b1b4c5aea2968"
    assert opened({"kind": "digits"}, None, "test").describe()["sha256"] == expected


def test_classes_in_another_order_keep_images_without_a_label() -> None:
    known = ImageDataset(ImageStore([b"", b"", b""]), [0, -1, 1], ["a", "b"])
    assert known.with_classes(["x", "b", "a"]).labels.tolist() == [2, -1, 1]


# --- folders ----------------------------------------------------------------------------------------------


def test_a_folder_is_read_as_torchvision_reads_it(tmp_path: Path) -> None:
    put(tmp_path, "train/b-c/1.png", "train/b/z.png", "train/b/deep/1.png", "train/b/UPPER/x/1.png")
    put(tmp_path, "train/a/Z.JPG", "train/a/b.png")
    put(tmp_path, "train/.git/1.png", "train/a/__MACOSX/x/1.png", "train/a/._0.png")  # hidden
    (tmp_path / "train/a/notes.txt").write_text("none")
    data = opened({"kind": "folder"}, tmp_path)
    shutil.rmtree(tmp_path / "train/.git")
    shutil.rmtree(tmp_path / "train/a/__MACOSX")
    (tmp_path / "train/a/._0.png").unlink()
    theirs = ImageFolder(str(tmp_path / "train"))
    names = [str(tmp_path / "train" / data.name_of(i)) for i in range(len(data))]
    assert list(zip(names, data.labels.tolist(), strict=True)) == theirs.samples
    assert list(data.class_names) == theirs.classes


def test_images_in_no_class_folder_have_no_classes(tmp_path: Path) -> None:
    put(tmp_path, "train/1.png", "train/2.png")
    data = opened({"kind": "folder"}, tmp_path, unlabelled=True)
    assert data.labels.tolist() == [-1, -1] and data.class_names == ()
    assert "class_counts" not in data.describe()
    refused({"kind": "folder"}, tmp_path, "images of the train split have no labels")


@pytest.mark.parametrize("name", [os.fsdecode(b"M\xe4use"), "ant\x1b[31m"])
def test_a_class_that_cannot_be_written_is_refused(tmp_path: Path, name: str) -> None:
    put(tmp_path, f"train/{name}/1.png")
    refused({"kind": "folder"}, tmp_path, r"found the name '.*\\.*', expected words in UTF-8")


# --- refusals ---------------------------------------------------------------------------------------------

LIST = {"kind": "list", "train": "a.txt", "test": "b.txt"}
FOLDER, PARQUET = {"kind": "folder"}, {"kind": "parquet"}


def lines(text: str, test: str = "") -> Callable[[Path], None]:
    def write(root: Path) -> None:
        put(root, "1.png", "2.png", "3.png")
        (root / "a.txt").write_text(text)
        (root / "b.txt").write_text(test)

    return write


def shards(**files: Any) -> Callable[[Path], None]:
    return lambda root: [shard(root / f"{name}.parquet", **keys) for name, keys in files.items()] and None


REFUSALS: list[tuple[dict[str, Any], Callable[[Path], Any], str, str]] = [
    (FOLDER, lambda root: None, "train", 'no train folder ".*train"'),
    (FOLDER, lambda root: (root / "train/b").mkdir(parents=True), "train", "train split has no images"),
    (FOLDER, lambda root: put(root, "train/cat/1.png", "val/cats/1.png"), "test", "cats/1.*mean .cat."),
    (LIST | {"train": "c.txt"}, lines("1.png a\n"), "train", "c.txt"),
    (LIST, lines("1.png a\nlonely\n"), "train", "a.txt: found .*lonely.*, expected a path and a label"),
    (LIST, lines("1.png 0\n2.png -1\n"), "train", "2.png.: found label .-1."),
    (LIST, lines("1.png cat\n", "2.png catt\n"), "test", "2.png.: found label .catt., .*mean .cat."),
    (PARQUET, lambda root: None, "train", 'no "train" .*found nothing'),
    (PARQUET, shards(train={"labels": [0], "image": "a"}), "none", "no data folder given.*--data DIR"),
    (PARQUET | {"label": "labl"}, shards(train={"labels": [0]}), "train", "found the columns img, label"),
    (PARQUET, shards(train={"labels": [0, -1]}), "train", "p1.png.: found label .-1."),
    (PARQUET, shards(train={"labels": [2, -2]}), "train", "p1.png.: found label .-2."),
    (PARQUET, shards(train={"labels": [0, 2], "names": "ab"}), "train", "found label .2."),
    (PARQUET, lambda root: (root / "train.parquet").write_bytes(b"none"), "train", "parquet cannot be read"),
]


@pytest.mark.parametrize(("source", "write", "split", "message"), REFUSALS)
def test_what_is_wrong_is_one_line_with_its_place(
    source: dict[str, Any], write: Callable[[Path], Any], split: str, message: str, tmp_path: Path
) -> None:
    write(tmp_path)
    refused(source, None if split == "none" else tmp_path, message, "test" if split == "test" else "train")


@pytest.mark.parametrize("forms", [("NFC", "NFD"), ("NFD", "NFC"), ("NFD", "NFD")])
def test_names_are_the_same_in_both_unicode_forms(forms: tuple[Any, Any], tmp_path: Path) -> None:
    names = [unicodedata.normalize(form, "caf\u00e9") for form in forms]
    put(tmp_path, f"train/{names[0]}/1.png", f"val/{names[1]}/1.png")
    for split in ("train", "test"):
        assert opened(FOLDER, tmp_path, split).class_names == ("caf\u00e9",)


def test_columns_are_found_by_their_types_and_images_need_no_label(tmp_path: Path) -> None:
    shard(tmp_path / "train.parquet", ["b", "a"], image="photo", column="kind")
    assert opened(PARQUET, tmp_path).labels.tolist() == [1, 0]
    shard(tmp_path / "train.parquet", [0.5], column="score")
    found = opened(PARQUET, tmp_path, unlabelled=True)
    assert (found.labels.tolist(), found.class_names) == ([-1], ())


def test_parquet_without_names_numbers_classes_alike_and_names_rows(tmp_path: Path) -> None:
    shard(tmp_path / "train.parquet", pa.array([0, 4, 2], pa.uint8()), images=[png(n) for n in range(3)])
    shard(tmp_path / "test.parquet", [1.0], images=[{"bytes": None, "path": "far.png"}])
    train, test = (opened({"kind": "parquet"}, tmp_path, split) for split in ("train", "test"))
    assert train.class_names == test.class_names == ("0", "1", "2", "3", "4")
    assert train.name_of(1) == "train.parquet#1"
    with pytest.raises(DataError, match=r'"far.png" cannot be read'):  # no file that a table names is opened
        test.image(0)


def test_pipes_are_not_waited_for_and_postscript_is_not_opened(tmp_path: Path) -> None:
    put(tmp_path, "train/a/0.png")
    os.mkfifo(tmp_path / "train/a/1.png")
    photo(6, 6, 0).save(tmp_path / "train/a/2.eps")
    (tmp_path / "train/a/2.eps").rename(tmp_path / "train/a/2.jpg")
    data = opened({"kind": "folder"}, tmp_path)
    for row, message in ((1, "found no regular file"), (2, "cannot identify image file")):
        with pytest.raises(DataError, match=f'image "a/{row}.* cannot be read: {message}'):
            data.image(row)


def test_splits_with_other_classes_are_told_apart() -> None:
    require_same_classes(["a"], ("a",))
    for test in ("acb", "ab"):
        with pytest.raises(DataError, match="classes of the training split"):
            require_same_classes("abc", test)
