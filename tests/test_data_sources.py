"""Every kind of source: the same images out of each, and one line for what is not there or not right."""

import json
import os
import shutil
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from sklearn.datasets import load_digits
from torchvision.datasets import ImageFolder

from tests.data_fixtures import opened, photo, png, put, shard
from zoo.data import ImageDataset, LongTail, parse_data_spec
from zoo.data.config import Folder, Parquet, Subset
from zoo.data.dataset import ImageStore, require_same_classes
from zoo.errors import DataError, ZooError

CLASSES = ("ant", "bee")
LIST, PARQUET = {"kind": "list", "train": "a.txt", "test": "b.txt"}, {"kind": "parquet"}


def refused(source, root, message, split="train"):
    with pytest.raises(DataError, match=message) as caught:
        opened(source, root, split)
    assert "\n" not in str(caught.value)


def text_list(root):
    put(root, "an image 0.png", "an image 1.png", "an image 2.png")
    (root / "train.txt").write_text("an image 0.png ant\nan image 1.png ant\n\nan image 2.png bee\n")
    (root / "test.txt").write_text("an image 0.png bee\n")
    return {"kind": "list", "train": "train.txt", "test": "test.txt"}


def csv_list(root):
    put(root, "a, b.png", "c.png", "d.png")
    (root / "a.csv").write_text('filename,class\n"a, b.png",ant\nc.png, "ant"\nd.png,bee\n', "utf-8-sig")
    (root / "b.CSV").write_text('"a, b.png",bee\n')
    return {"kind": "list", "train": "a.csv", "test": "b.CSV"}


def parquet(root):
    shard(root / "train-1.parquet", [1], names=CLASSES, images=[{"bytes": png(2), "path": "p2.png"}])
    shard(root / "train-0.parquet", [0, 0], names=CLASSES)
    shard(root / "train_other-0.parquet", [1, 1, 1], names=CLASSES)  # of another split
    shard(root / "test.parquet", [1], names=CLASSES)
    return "parquet"


def parquet_of_text(root):
    kinds = (pa.string(), pa.dictionary(pa.int32(), pa.string()))
    shard(root / "train/a.parquet", pa.array(["ant", "ant"], kinds[1]), images=[png(0), png(1)])
    shard(root / "train/b.parquet", pa.array(["bee"], kinds[1]), images=[png(2)])
    shard(root / "test/a.parquet", pa.array(["bee"], kinds[0]), images=[png(0)])
    return "parquet"


@pytest.mark.parametrize("write", [text_list, csv_list, parquet, parquet_of_text])
def test_each_kind_gives_images_labels_and_classes(write, tmp_path):
    source = write(tmp_path)
    train, test = (opened(source, tmp_path, split) for split in ("train", "test"))
    assert train.labels.tolist() == [0, 0, 1] and test.labels.tolist() == [1]
    assert train.class_names == test.class_names == CLASSES
    for row in range(3):
        assert np.array_equal(np.asarray(train.image(row)), np.asarray(photo(6, 6, row)))
    facts = train.describe()
    assert json.loads(json.dumps(facts)) == facts and facts["num_images"] == 3
    assert len({train.name_of(row) for row in range(3)}) == 3


def test_digits_are_split_once_and_for_all_and_use_all_of_8_bits():
    train, test = (opened("digits", None, split) for split in ("train", "test"))
    assert (len(train), len(test)) == (1250, 547) and train.class_counts.tolist() == [125] * 10
    row, image = int(train.name_of(7).removeprefix("digits/")), np.asarray(train.image(7))
    assert np.abs(image[..., 1] - load_digits().images[row] / 16 * 255).max() <= 0.5 and image.max() == 255
    recorded = "9d458825c017657ae22b665c3addd49b664452e35d57bfdd139b1b4c5aea2968"  # in every release
    assert test.describe()["sha256"] == recorded


def test_classes_in_another_order_keep_images_without_a_label():
    known = ImageDataset(ImageStore([b"", b"", b""], ["0", "1", "2"]), [0, -1, 1], ["a", "b"])
    assert known.with_classes(["x", "b", "a"]).labels.tolist() == [2, -1, 1]


def test_splits_with_other_classes_are_told_apart():
    require_same_classes(["a"], ("a",))
    with pytest.raises(DataError, match="classes of the training split"):
        require_same_classes("abc", "acb")


def test_a_folder_is_read_as_torchvision_reads_it(tmp_path):
    put(tmp_path, "train/b-c/1.png", "train/b/z.png", "train/b/deep/1.png", "train/b/UPPER/x/1.png")
    put(tmp_path, "train/a/Z.JPG", "train/a/b.png")
    put(tmp_path, "train/.git/1.png", "train/a/__MACOSX/x/1.png", "train/a/._0.png")  # hidden
    (tmp_path / "train/a/notes.txt").write_text("none")
    data = opened("folder", tmp_path)
    shutil.rmtree(tmp_path / "train/.git")
    shutil.rmtree(tmp_path / "train/a/__MACOSX")
    (tmp_path / "train/a/._0.png").unlink()
    theirs = ImageFolder(str(tmp_path / "train"))
    names = [str(tmp_path / "train" / data.name_of(i)) for i in range(len(data))]
    assert list(zip(names, data.labels.tolist(), strict=True)) == theirs.samples
    assert list(data.class_names) == theirs.classes


def test_images_in_no_class_folder_have_no_classes(tmp_path):
    put(tmp_path, "train/1.png", "train/2.png")
    data = opened("folder", tmp_path, unlabelled=True)
    assert data.labels.tolist() == [-1, -1] and data.class_names == ()
    refused("folder", tmp_path, "images of the train split have no labels")


@pytest.mark.parametrize("name", [os.fsdecode(b"M\xe4use"), "ant\x1b[31m"])
def test_a_class_that_cannot_be_written_is_refused(tmp_path, name):
    put(tmp_path, f"train/{name}/1.png")
    refused("folder", tmp_path, r"found the name '.*\\.*', expected words in UTF-8")


@pytest.mark.parametrize("forms", [("NFC", "NFD"), ("NFD", "NFC")])
def test_names_are_the_same_in_both_unicode_forms(forms, tmp_path):
    names = [unicodedata.normalize(form, "caf\u00e9") for form in forms]
    put(tmp_path, f"train/{names[0]}/1.png", f"val/{names[1]}/1.png")
    for split in ("train", "test"):
        assert opened("folder", tmp_path, split).class_names == ("caf\u00e9",)
    (tmp_path / "a.txt").write_text("".join(f"1.png {name}\n" for name in names))
    assert opened(LIST, tmp_path).class_names == ("caf\u00e9",)


def test_columns_are_found_by_their_types_and_images_need_no_label(tmp_path):
    shard(tmp_path / "train.parquet", ["b", "a"], image="photo", column="kind")
    assert opened("parquet", tmp_path).labels.tolist() == [1, 0]
    shard(tmp_path / "train.parquet", [0.5], column="score")
    assert opened("parquet", tmp_path, unlabelled=True).labels.tolist() == [-1]


def test_parquet_without_names_numbers_classes_alike_and_names_rows(tmp_path):
    shard(tmp_path / "train.parquet", pa.array([0, 4, 2], pa.uint8()), images=[png(n) for n in range(3)])
    shard(tmp_path / "test.parquet", [1.0], images=[{"bytes": None, "path": "far.png"}])
    train, test = (opened("parquet", tmp_path, split) for split in ("train", "test"))
    assert train.class_names == test.class_names == ("0", "1", "2", "3", "4")
    assert train.name_of(1) == "train.parquet#1"
    with pytest.raises(DataError, match=r'"far.png" cannot be read'):  # no file that a table names is opened
        test.image(0)


def lines(text, test=""):
    def write(root):
        (root / "a.txt").write_text(text)
        (root / "b.txt").write_text(test)

    return write


def table(**keys):
    return lambda root: shard(root / "train.parquet", **keys)


@pytest.mark.parametrize(
    ("source", "write", "split", "message"),
    [
        ("folder", lambda root: None, "train", 'no train folder ".*train"'),
        ("folder", lambda root: (root / "train/b").mkdir(parents=True), "train", "train split has no images"),
        ("folder", lambda root: put(root, "train/cat/1", "val/cats/1.png"), "test", "cats/1.*mean .cat."),
        (LIST | {"train": "c.txt"}, lines("1.png a\n"), "train", "c.txt"),
        (LIST, lines("1.png a\nlonely\n"), "train", "a.txt: found .*lonely.*, expected a path and a label"),
        (LIST, lines("1.png 0\n2.png -1\n"), "train", "2.png.: found label .-1."),
        (LIST, lines("1.png a\n./1.png b\n"), "train", "1.png.: found label .b., expected .a. as before"),
        (LIST, lines("1.png 0\n2.png cat\n"), "train", "2.png.: found label .cat."),
        (LIST, lines("1.png cat\n", "2.png catt\n"), "test", "2.png.: found label .catt., .*mean .cat."),
        (PARQUET, lambda root: None, "train", 'no "train" .*found nothing'),
        (PARQUET | {"label": "labl"}, table(labels=[0]), "train", "found the columns img, label"),
        (PARQUET, table(labels=[0, -1]), "train", "p1.png.: found label .-1."),
        (PARQUET, table(labels=[0, 2], names="ab"), "train", "found label .2."),
        (PARQUET, lambda root: (root / "train.parquet").write_bytes(b""), "train", "parquet cannot be read"),
    ],
)
def test_what_is_wrong_is_one_line_with_its_place(source, write, split, message, tmp_path):
    write(tmp_path)
    refused(source, tmp_path, message, split)
    refused(source, None, "no data folder given: --data DIR")


def test_a_spec_names_kind_folder_and_keys():
    config, root = parse_data_spec("folder:/d")
    assert (config.source, root, config.long_tail) == (Folder(), Path("/d"), None)
    config, root = parse_data_spec("parquet:D?train=t-*.parquet&image=image&label=fine_label")
    assert config.source == Parquet(train="t-*.parquet", image="image", label="fine_label")
    both = parse_data_spec("digits?imbalance=10&fraction=0.1&seed=3")[0]
    assert (both.long_tail, both.subset) == (LongTail(imbalance=10, seed=3), Subset(fraction=0.1, seed=3))
    assert parse_data_spec("cifar10:D?download=true")[0].source.download is True
    few = parse_data_spec("digits?per_class=5&seed=3")[0]
    assert (few.long_tail, few.subset) == (None, Subset(per_class=5, seed=3))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("digit", 'no folder or file "digit".*Did you mean "digits"'),
        ("parquet:D?labl=x", 'unknown key "source.labl".*Did you mean "label"'),
        ("digits?imbalance", "long_tail.imbalance"),
        ("cifar10:D?download=yess", "source.download.*found 'yess'"),
        ("digits?fraction=0.1&per_class=5", "either fraction or per_class"),
    ],
)
def test_mistakes_in_a_spec_name_what_does_not_fit(text, message):
    with pytest.raises(ZooError, match=message) as caught:
        parse_data_spec(text)
    assert "\n" not in str(caught.value)
