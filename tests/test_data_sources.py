"""Every kind of source: what is read, and what a user is told when it is not there or not right."""

import gzip
import hashlib
import io
import json
import os
import pickle
import shutil
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from torchvision.datasets import ImageFolder

from tests.data_fixtures import photo
from zoo.config import parse
from zoo.data import DataConfig, open_dataset
from zoo.data.config import Folder
from zoo.errors import DataError, ZooWarning


def opened(source, root, split="train"):
    return open_dataset(parse(DataConfig, {"source": source}, "r"), split, root)


def refused(source, root, message, split="train"):
    with pytest.raises(DataError, match=message) as caught:
        opened(source, root, split)
    assert "\n" not in str(caught.value)


# --- digits -----------------------------------------------------------------------------------------------


def test_digits_are_split_once_and_for_all():
    train, test = (opened({"kind": "digits"}, None, split) for split in ("train", "test"))
    assert (len(train), len(test)) == (1250, 547)
    assert train.class_counts.tolist() == [125] * 10
    assert train.class_names == tuple("0123456789")
    names = [data.name_of(i) for data in (train, test) for i in range(len(data))]
    assert len(set(names)) == 1797
    random = np.random.RandomState(0)
    target = load_digits().target
    expected = np.concatenate([random.permutation(np.flatnonzero(target == c))[:125] for c in range(10)])
    assert [train.name_of(i) for i in range(1250)] == [f"digits/{row}" for row in expected]


def test_digits_use_the_whole_range_of_8_bits():
    data = opened({"kind": "digits"}, None)
    row = int(data.name_of(7).split("/")[1])
    expected = np.floor(load_digits().images[row] / 16 * 255 + 0.5)
    image = np.asarray(data.image(7))
    assert image.shape == (8, 8, 3)
    assert np.abs(image[..., 1] - expected).max() <= 1  # half a step may round either way
    assert image.max() == 255


def test_description_is_plain_and_stable():
    description = opened({"kind": "digits"}, None).describe()
    assert json.loads(json.dumps(description)) == description
    assert description["num_images"] == 1250
    assert description["class_counts"] == {"largest": 125, "smallest": 125}
    assert (description["source"], description["split"], description["long_tail"]) == (
        "digits",
        "train",
        None,
    )
    assert len(description["sha256"]) == 64


def test_fingerprint_is_over_names_and_labels_in_order():
    data = opened({"kind": "digits"}, None).subset([5, 2])
    lines = "".join(f"{data.name_of(i)}\t{data.labels[i]}\n" for i in range(2))
    assert data.describe()["sha256"] == hashlib.sha256(lines.encode()).hexdigest()


# --- torchvision ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cifar10", "cifar100", "fashion_mnist"])
def test_missing_torchvision_data_says_where_it_was_looked_for_and_how_to_give_it(kind, tmp_path):
    refused({"kind": kind}, None, f"{kind}: no data folder given.*--data DIR")
    refused({"kind": kind}, tmp_path / "nowhere", "there is no folder .*nowhere.*--data DIR")
    refused({"kind": kind}, tmp_path, rf"{kind}: .*Looked for .* in .*--data DIR.*download: true")


def write_idx(folder, prefix, images, labels):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{prefix}-images-idx3-ubyte").write_bytes(
        struct.pack(">IIII", 2051, *images.shape) + images.tobytes()
    )
    (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(
        struct.pack(">II", 2049, len(labels)) + bytes(labels)
    )


def test_fashion_mnist_reads_idx_files_as_rgb(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (6, 28, 28), dtype=np.uint8)
    raw = tmp_path / "FashionMNIST" / "raw"
    write_idx(raw, "train", images, [0, 9, 1, 1, 2, 3])
    write_idx(raw, "t10k", images[:2], [4, 5])
    for root in (tmp_path, tmp_path / "FashionMNIST"):
        train = opened({"kind": "fashion_mnist"}, root)
        assert train.labels.tolist() == [0, 9, 1, 1, 2, 3]
        assert train.class_names[9] == "Ankle boot"
        assert np.array_equal(np.asarray(train.image(3)), np.repeat(images[3][..., None], 3, -1))
    assert opened({"kind": "fashion_mnist"}, tmp_path, "test").labels.tolist() == [4, 5]


def test_of_several_that_begin_together_one_downloads_fashion_mnist(tmp_path, monkeypatch):
    began = []

    def fetch(url, download_root, filename, md5):
        began.append(filename)
        time.sleep(0.05)
        prefix, what, *_ = filename.split("-")
        if what == "images":  # with the labels, which come second
            write_idx(Path(download_root), prefix, np.zeros((3, 28, 28), np.uint8), [1, 2, 3])

    monkeypatch.setattr("torchvision.datasets.mnist.download_and_extract_archive", fetch)
    source = {"kind": "fashion_mnist", "download": True}
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda split: opened(source, tmp_path, split), ["train", "test", "train"]))
    assert [len(each) for each in found] == [3, 3, 3]
    assert len(began) == 4  # the files of a data set


def test_cifar100_reads_the_original_archive_only_with_the_published_checksums(tmp_path, monkeypatch):
    from torchvision.datasets import CIFAR100

    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 32, 32), dtype=np.uint8)
    contents = {
        "train": {"data": pixels.reshape(4, -1), "fine_labels": [3, 99, 0, 1]},
        "test": {"data": pixels[:1].reshape(1, -1), "fine_labels": [7]},
        "meta": {"fine_label_names": [f"name{c}" for c in range(100)]},
    }
    sums = {}
    for name, content in contents.items():
        (folder / name).write_bytes(pickle.dumps(content))
        sums[name] = hashlib.md5((folder / name).read_bytes()).hexdigest()
    refused(
        {"kind": "cifar100"},
        tmp_path,
        "is not whole: another checksum than the published one: train, test, meta",
    )
    monkeypatch.setattr(CIFAR100, "train_list", [["train", sums["train"]]])
    monkeypatch.setattr(CIFAR100, "test_list", [["test", sums["test"]]])
    monkeypatch.setattr(CIFAR100, "meta", {**CIFAR100.meta, "md5": sums["meta"]})
    data = opened({"kind": "cifar100"}, tmp_path)
    assert data.labels.tolist() == [3, 99, 0, 1]
    assert data.num_classes == 100
    assert np.array_equal(np.asarray(data.image(2)), pixels[2].transpose(1, 2, 0))
    assert opened({"kind": "cifar100"}, folder, "test").labels.tolist() == [7]


# --- folders ----------------------------------------------------------------------------------------------


def tree(root, split, classes, count=2):
    for c in classes:
        (root / split / c).mkdir(parents=True)
        for i in range(count):
            photo(6, 6, i).save(root / split / c / f"{i}.png")


def test_folder_reads_classes_in_sorted_order(tmp_path):
    tree(tmp_path, "train", ["dog", "ant", "cat"])
    tree(tmp_path, "val", ["ant", "cat", "dog"], 1)
    train, test = (opened({"kind": "folder"}, tmp_path, split) for split in ("train", "test"))
    assert train.class_names == test.class_names == ("ant", "cat", "dog")
    assert train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert train.name_of(3) == "cat/1.png"
    assert np.array_equal(np.asarray(train.image(3)), np.asarray(photo(6, 6, 1)))


def test_folder_mistakes_are_named(tmp_path):
    tree(tmp_path, "train", ["ant", "cat"])
    refused({"kind": "folder"}, tmp_path, 'no test folder "val", looked for .*/val', "test")
    tree(tmp_path, "testing", ["ant", "cat"])
    beside = (
        r'There are: testing, train. Which it is says data.source.test, in a spec "folder:DIR\?test=NAME"'
    )
    refused({"kind": "folder"}, tmp_path, beside, "test")
    refused({"kind": "folder", "train": "trian"}, tmp_path, 'Did you mean "train"')
    tree(tmp_path, "val", ["ant", "cats"])
    refused({"kind": "folder"}, tmp_path, 'class "cats" .*not among the 2.*Did you mean "cat"', "test")
    (tmp_path / "val3" / "ant").mkdir(parents=True)
    refused(
        {"kind": "folder", "test": "val3"}, tmp_path, 'val3: found no image in the class folder "ant"', "test"
    )


def test_a_test_folder_may_lack_classes_of_the_training_folder(tmp_path):
    tree(tmp_path, "train", ["ant", "bee", "cat", "dog"], 1)
    tree(tmp_path, "val", ["cat", "ant"])
    (tmp_path / "val" / "bee").mkdir()
    with pytest.warns(ZooWarning, match=r'val has no image of 2 of the 4 classes \("bee", "dog"\)') as said:
        test = opened({"kind": "folder"}, tmp_path, "test")
    assert len(said) == 1
    assert (
        test.class_names == opened({"kind": "folder"}, tmp_path).class_names == ("ant", "bee", "cat", "dog")
    )
    assert test.labels.tolist() == [0, 0, 2, 2]


@pytest.mark.parametrize("name", [os.fsdecode(b"M\xe4use"), "ant\x1b[31m", "two\nlines"])
def test_a_class_that_cannot_be_written_is_refused_before_any_training(tmp_path, name):
    tree(tmp_path, "train", ["cat", name])
    refused(
        {"kind": "folder"}, tmp_path, "called '.*\\\\.*' in .*expected words in UTF-8.*rename its folders"
    )
    (tmp_path / "train" / name).rename(tmp_path / "train" / "ant")
    assert opened({"kind": "folder"}, tmp_path).class_names == ("ant", "cat")
    shutil.copytree(tmp_path / "train", tmp_path / name / "train")
    refused({"kind": "folder"}, tmp_path / name, "the data are called '.*; rename the folder")


def test_folder_leaves_out_what_programs_hide_in_it(tmp_path):
    root = tmp_path / ".cache" / "__MACOSX"  # the tree may lie in such a folder itself
    for split in ("train", "val"):
        tree(root, split, ["ant", "cat"])
    expected = [opened({"kind": "folder"}, root, split).describe() for split in ("train", "test")]
    tree(root, "train", [".ipynb_checkpoints", "__MACOSX", "ant/.ipynb_checkpoints", "cat/__MACOSX/deep"])
    tree(root, "val", [".git", ".empty"], 0)
    for hidden in (".DS_Store", "._0.PNG", ".0.png"):
        (root / "train" / "ant" / hidden).write_bytes(b"no image")
        (root / "train" / hidden).write_bytes(b"no image")
    assert [opened({"kind": "folder"}, root, split).describe() for split in ("train", "test")] == expected
    tree(root, "train", ["dog"], 0)
    (root / "train" / "dog" / "._0.png").write_bytes(b"no image")
    refused({"kind": "folder"}, root, r'no image in the class folder "dog", expected files .* \.jpg, ')
    tree(root, "new", [".git"])
    refused({"kind": "folder", "train": "new"}, root, "found no class folder in .*/new, expected new/CLASS")


def test_images_in_no_class_folder_have_no_classes(tmp_path):
    tree(tmp_path, "train", ["."])
    (tmp_path / "train" / ".hidden.png").write_bytes(b"no image")
    config = DataConfig(source=Folder())
    data = open_dataset(config, "train", tmp_path, unlabelled=True)
    assert set(data.labels) == {-1}
    assert (data.num_classes, data.class_counts.tolist(), data.class_names) == (0, [], ())
    assert sorted(map(data.name_of, range(len(data)))) == sorted(
        path.name for path in (tmp_path / "train").iterdir() if path.name != ".hidden.png"
    )
    assert "class_counts" not in data.describe()
    refused({"kind": "folder"}, tmp_path, "images of the train split have no labels, and classes are")
    with pytest.raises(DataError, match="long_tail, subset and partial_labels draw by class"):
        open_dataset(
            DataConfig(source=Folder(), long_tail={"imbalance": 2.0}), "train", tmp_path, unlabelled=True
        )


def test_a_hidden_class_that_holds_images_is_named(tmp_path, caplog):
    tree(tmp_path, "train", ["java", ".NET", ".ipynb_checkpoints"])
    assert opened({"kind": "folder"}, tmp_path).class_names == ("java",)
    (warning,) = caplog.messages
    assert "train/.NET is left out" in warning


def test_folder_reads_what_torchvision_reads(tmp_path):
    tree(tmp_path, "train", ["b/deep", "b/deeper/x", "a", "b/UPPER"])
    photo(6, 6, 0).save(tmp_path / "train" / "a" / "Z.JPG", "JPEG")
    (tmp_path / "train" / "a" / "notes.txt").write_text("none")
    with pytest.warns(ZooWarning, match=r"train: 1 file of other endings \(\.txt 1\) is left out$"):
        data = opened({"kind": "folder"}, tmp_path)
    theirs = ImageFolder(str(tmp_path / "train"))
    names = [str(tmp_path / "train" / data.name_of(i)) for i in range(len(data))]
    assert list(zip(names, data.labels.tolist(), strict=True)) == theirs.samples
    assert list(data.class_names) == theirs.classes


def test_files_of_other_endings_are_counted_once(tmp_path):
    for split in ("train", "val"):
        tree(tmp_path, split, ["ant", "bee"])
    for name in (
        "ant/1.gif",
        "ant/2.GIF",
        "bee/3.gif",
        "bee/4.jfif",
        "bee/README",
        "bee/.hidden.gif",
        "5.gif",
    ):
        (tmp_path / "train" / name).write_bytes(b"left out")
    with pytest.warns(ZooWarning) as told:
        opened({"kind": "folder"}, tmp_path)
    assert [str(each.message) for each in told] == [
        f"folder: {tmp_path / 'train'}: 5 files of other endings (.gif 3, .jfif 1, none 1) are left out"
    ]
    opened({"kind": "folder"}, tmp_path, "test")  # none there


# --- list files -------------------------------------------------------------------------------------------


@pytest.fixture
def listed(tmp_path):
    (tmp_path / "images").mkdir()
    for i in range(4):
        photo(6, 6, i).save(tmp_path / "images" / f"an image {i}.png")

    def write(train, test="an image 0.png 0\n", **keys):
        (tmp_path / "train.txt").write_text(train)
        (tmp_path / "test.txt").write_text(test)
        return {"kind": "list", "train": "train.txt", "test": "test.txt", "images": "images", **keys}

    return tmp_path, write


THREE = "an image 3.png 1\n\nan image 0.png 0\nan image 1.png 2\n"


def test_list_reads_paths_with_spaces_in_line_order(listed):
    root, write = listed
    source = write(THREE)
    train, test = opened(source, root), opened(source, root, "test")
    assert train.labels.tolist() == [1, 0, 2]
    assert train.name_of(0) == "an image 3.png"
    assert np.array_equal(np.asarray(train.image(0)), np.asarray(photo(6, 6, 3)))
    assert train.class_names == test.class_names == ("0", "1", "2")
    absolute = {**source, **{key: str(root / source[key]) for key in ("train", "test", "images")}}
    assert opened(absolute, None).labels.tolist() == [1, 0, 2]
    assert opened(absolute, None, "test").num_classes == 3


def test_list_takes_class_names_from_a_file(listed):
    root, write = listed
    (root / "names.txt").write_text("ant\nbee\ncat\n")
    assert opened(write(THREE, class_names="names.txt"), root).class_names == ("ant", "bee", "cat")
    (root / "names.txt").write_text("ant\nbee\n")
    refused(write(THREE, class_names="names.txt"), root, "found label 2, expected 0 to 1")


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ("an image 0.png 0\nan image 1.png cat\n", "train.txt line 2: found 'cat', expected 0, 1"),
        ("an image 0.png 0\n\nan image 1.png -1\n", "line 3"),
        ("an image 0.png 0\nlonely\n", 'line 2: found "lonely", expected "path label"'),
        ("an image 0.png 0\nan image 1.png 2\n", "no image of class 1"),
        ("elsewhere/0.png 0\n", 'line 1 names "elsewhere/0.png".*there is no'),
        ("\n", "names no images"),
    ],
)
def test_list_mistakes_name_file_and_line(listed, train, message):
    root, write = listed
    refused(write(train), root, message)


def test_names_with_spaces_commas_and_signs_are_names_where_such_files_are(tmp_path):
    names = ["#1.png", "a.png, b.png", "a.png b.png", "a.png", "b,c.png"]
    for name in names:
        photo(6, 6, 0).save(tmp_path / name, "PNG")
    for file, sign in (("all.txt", " "), ("tabs.txt", "\t")):
        (tmp_path / file).write_text("".join(f"{name}{sign}{row}\n" for row, name in enumerate(names)))
        data = opened({"kind": "list", "train": file, "test": file}, tmp_path)
        assert [data.name_of(row) for row in range(5)] == names
        assert data.labels.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("header", ["", "path,label\n", "Filename, class\n", "image_id,label\n"])
def test_a_csv_list_is_read_as_such(tmp_path, header):
    names = ["a, b.png", 'say "c".png', "d e.png"]
    for name in names:
        photo(6, 6, 0).save(tmp_path / name)
    rows = [('"a, b.png"', "red cat"), ('"say ""c"".png"', ' "dog, old"'), ("d e.png", "red cat")]
    (tmp_path / "train.csv").write_text(
        header + "\n".join(",".join(row) for row in rows), encoding="utf-8-sig"
    )
    (tmp_path / "test.CSV").write_text("d e.png,red cat\n\n")
    source = {"kind": "list", "train": "train.csv", "test": "test.CSV"}
    data = opened(source, tmp_path)
    assert [data.name_of(row) for row in range(3)] == names
    assert data.class_names == ("dog, old", "red cat")
    assert data.labels.tolist() == [1, 0, 1]
    assert opened(source, tmp_path, "test").labels.tolist() == [1]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("a.png,0\na.png 1\n", 'line 2: found "a.png 1", expected "path,label", two columns .*found 1'),
        ("a.png,0,x\n", "line 1: .*two columns .*found 3"),
        ("a.png,\n", "line 1: .*two columns without empty cells"),
        ("a.png;0\n", "line 1: .*found 1"),
        ("a.png,0\na.png,cat\n", "line 2: found 'cat', expected 0, 1"),
        ("nowhere.png,0\n", 'line 1 names "nowhere.png", but there is no'),
        ("path,label\n", "names no images"),
        ('a.png,"0\n', "line 1: unexpected end"),
    ],
)
def test_mistakes_in_a_csv_list_are_told_by_line(tmp_path, rows, message):
    photo(6, 6, 0).save(tmp_path / "a.png")
    (tmp_path / "all.csv").write_text(rows)
    refused({"kind": "list", "train": "all.csv", "test": "all.csv"}, tmp_path, rf"all.csv.* {message}")


def test_list_test_labels_must_be_among_those_of_training(listed):
    root, write = listed
    refused(write(THREE, "an image 0.png 3\n"), root, "found label 3, expected 0 to 2", "test")


def test_missing_list_file_names_the_nearest(listed):
    root, write = listed
    refused(
        {**write(THREE), "train": "trian.txt"}, root, 'no train list "trian.txt".*Did you mean "train.txt"'
    )


def test_a_list_that_is_no_text_is_a_clear_error(listed):
    root, write = listed
    source = write(THREE)
    (root / "train.txt").write_bytes(bytes(range(256)))
    refused(source, root, "train.txt cannot be read as text")


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ("an image 0.png 3000000000\n", None, "no image of class 0, expected labels 0 to 3000000000"),
        (f"an image 0.png {'9' * 30}\n", None, "line 1: found"),
        (f"an image 0.png {'9' * 5000}\n", None, "line 1: found"),
        ("an image 0.png 0\nan image 1.png 9000000\n", "an image 0.png 8000000\n", "no image of class 1"),
    ],
)
def test_a_label_of_a_list_asks_for_no_memory(listed, train, test, message):
    root, write = listed
    source = write(train, *([test] if test else []))
    refused(source, root, message, "test" if test else "train")
    if test:
        (root / "train.txt").unlink()
        refused(
            source,
            root,
            "found label 9000000|found label 8000000, expected at most 2,097,152 classes",
            "test",
        )


def test_pipes_are_not_waited_for(listed):
    root, write = listed
    source = write(THREE)
    (root / "images/an image 0.png").unlink()
    os.mkfifo(root / "images/an image 0.png")
    with pytest.raises(DataError, match=r'image "an image 0\.png" cannot be read: found no regular file'):
        opened(source, root).image(1)
    (root / "train.txt").unlink()
    os.mkfifo(root / "train.txt")
    refused(source, root, "no train list")


def test_a_path_that_no_file_can_have_is_one_that_is_not_there(tmp_path):
    refused({"kind": "list", "train": "x" * 5000, "test": "t"}, tmp_path, "no train list")
    refused({"kind": "folder"}, tmp_path / ("x" * 5000), "there is no folder")


# --- parquet ----------------------------------------------------------------------------------------------


def png(seed):
    buffer = io.BytesIO()
    photo(6, 6, seed).save(buffer, "PNG")
    return buffer.getvalue()


def shard(path, labels, *, start=0, names=None, column="label", plain=False, paths=True, label_type=None):
    encoded = [png(start + i) for i in range(len(labels))]
    if not plain:
        encoded = [
            {"bytes": b, "path": f"p{start + i}.png" if paths else None} for i, b in enumerate(encoded)
        ]
    table = pa.table({"img": encoded, column: pa.array(labels, label_type)})
    if names:
        info = {"info": {"features": {column: {"_type": "ClassLabel", "names": names}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    pq.write_table(table, path, row_group_size=2)


def test_parquet_reads_shards_in_the_order_of_their_names(tmp_path):
    shard(tmp_path / "train-1.parquet", [0, 1], start=3, names=["ant", "bee", "cat"])
    shard(tmp_path / "train-0.parquet", [2, 1, 0], names=["ant", "bee", "cat"])
    shard(tmp_path / "test.parquet", [1], start=9, names=["ant", "bee", "cat"])
    data = opened({"kind": "parquet"}, tmp_path)
    assert data.labels.tolist() == [2, 1, 0, 0, 1]
    assert data.class_names == ("ant", "bee", "cat")
    assert [data.name_of(i) for i in range(5)] == [f"p{i}.png" for i in range(5)]
    for i in range(5):
        assert np.array_equal(np.asarray(data.image(i)), np.asarray(photo(6, 6, i)))
    assert opened({"kind": "parquet"}, tmp_path, "test").labels.tolist() == [1]
    one = {"kind": "parquet", "train": str(tmp_path / "train-0.parquet")}
    assert len(opened(one, None)) == 3


SHARDS = [
    "train.parquet",
    "train-00000-of-00001-0a1b2c.parquet",
    "train-1.parquet",
]


def test_a_split_of_parquet_files_has_its_own_shards_and_no_other_splits(tmp_path):
    others = [
        "train_unlabeled-0",
        "training_notes-0",
        "train_10k-00000-of-00001",
        "train.full-0",
        "a_train-0",
        "train_512",
        "train2017",
    ]
    for file in [*SHARDS, *(f"{name}.parquet" for name in others), "test.parquet", "test_hidden-0.parquet"]:
        shard(tmp_path / file, [0, 1])
    data = opened({"kind": "parquet"}, tmp_path)
    assert len(data) == 2 * len(SHARDS)
    assert {file.name for file in data.encoded().files} == set(SHARDS)
    assert len(opened({"kind": "parquet"}, tmp_path, "test")) == 2
    # what a recipe states is read as it is
    assert len(opened({"kind": "parquet", "train": "train*.parquet"}, tmp_path)) == 2 * (len(SHARDS) + 6)
    assert len(opened({"kind": "parquet", "train": "train_unlabeled"}, tmp_path)) == 2
    assert len(opened({"kind": "parquet", "train": f"{tmp_path.name}/train_10k"}, tmp_path.parent)) == 2
    (tmp_path / "train_unlabeled-0.parquet").rename(tmp_path / "train_other-0.parquet")
    told = r'no train files "train_unlabeled" .*there are .*data.source.train, in a spec'
    refused({"kind": "parquet", "train": "train_unlabeled"}, tmp_path, told)


def test_a_split_that_is_a_folder_of_parquet_files_gets_its_pattern(tmp_path):
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        shard(tmp_path / split / "0000.parquet", [0, 1])
    assert len(opened({"kind": "parquet"}, tmp_path)) == 2


def test_parquet_without_names_numbers_classes_alike_for_both_splits(tmp_path):
    shard(tmp_path / "train.parquet", [0, 4, 2], plain=True, label_type=pa.uint8())
    shard(tmp_path / "test.parquet", [1], paths=False)
    train, test = (opened({"kind": "parquet"}, tmp_path, split) for split in ("train", "test"))
    assert train.class_names == test.class_names == ("0", "1", "2", "3", "4")
    assert train.name_of(1) == "train.parquet#1"
    assert test.name_of(0) == "test.parquet#0"
    assert train.image(0).size == (6, 6)


def test_parquet_mistakes_are_named(tmp_path):
    refused(
        {"kind": "parquet"},
        tmp_path,
        r'no train files "train" in .*no parquet files.*--data DIR',
    )
    refused({"kind": "parquet", "train": "t*.parquet"}, tmp_path, r'no train files "t\*.parquet" in ')
    refused({"kind": "parquet"}, None, "--data DIR")
    shard(tmp_path / "a.parquet", [0, 1], column="fine_label")

    def a(message, **keys):
        refused({"kind": "parquet", "train": "a.parquet", **keys}, tmp_path, message)

    a('no column "label".*Did you mean "fine_label".*Columns: img, fine_label')
    a('no column "image".*Did you mean "img"', image="image", label="fine_label")
    a('"img" holds struct.*expected integers', label="img")
    a('"fine_label" of .* holds int64, expected encoded images', image="fine_label", label="fine_label")
    refused({"kind": "parquet"}, tmp_path, "there are a.parquet")
    shard(tmp_path / "a.parquet", [0.5, 1.0])
    a('"label" holds double, expected integers 0 to C - 1, or text')
    shard(tmp_path / "a.parquet", [0, -1])
    a("a.parquet#1: found -1, expected 0, 1")
    shard(tmp_path / "a.parquet", [0, None])
    a("1 empty labels")
    shard(tmp_path / "a.parquet", [0, 2], names=["ant", "bee"])
    a("a.parquet#1: found label 2, expected 0 to 1")
    (tmp_path / "a.parquet").write_bytes(gzip.compress(b"no parquet"))
    a("a.parquet cannot be read")
    pq.write_table(
        pa.table({"img": pa.array([], pa.binary()), "label": pa.array([], pa.int64())}),
        tmp_path / "a.parquet",
    )
    a("the train split has no images")


def test_parquet_row_without_bytes_is_a_bad_image(tmp_path):
    table = pa.table(
        {"img": [{"bytes": None, "path": "far.png"}, {"bytes": png(0), "path": "b"}], "label": [0, 0]}
    )
    pq.write_table(table, tmp_path / "train.parquet")
    data = opened({"kind": "parquet"}, tmp_path)
    with pytest.raises(DataError, match=r'"far.png" has no bytes'):
        data.image(0)
    assert isinstance(data.image(1), Image.Image)


@pytest.mark.parametrize("label", [2**62, 3_000_000_000])
def test_a_label_of_a_shard_asks_for_no_memory(tmp_path, label):
    shard(tmp_path / "train.parquet", [0, label])
    refused(
        {"kind": "parquet"}, tmp_path, rf"train\.parquet#1: found label {label}, expected at most 2,097,152"
    )


def test_a_shard_of_many_batches_keeps_its_order_and_its_names(tmp_path):
    labels = [number % 3 for number in range(700)]
    shard(tmp_path / "train.parquet", labels, names=["ant", "bee", "cat"])
    data = opened({"kind": "parquet"}, tmp_path)
    assert data.labels.tolist() == labels
    assert data.class_names == ("ant", "bee", "cat")
    assert [data.name_of(place) for place in (0, 255, 256, 699)] == [
        "p0.png",
        "p255.png",
        "p256.png",
        "p699.png",
    ]
    assert np.array_equal(np.asarray(data.image(699)), np.asarray(photo(6, 6, 699)))


def test_shards_without_rows_are_told(tmp_path):
    shard(tmp_path / "train.parquet", [], label_type=pa.int64(), plain=True)
    refused({"kind": "parquet"}, tmp_path, "the train split has no images")
    table = pa.table({"img": pa.array([], pa.binary()), "label": pa.array([], pa.int64())})
    pq.write_table(table, tmp_path / "train.parquet")
    refused({"kind": "parquet"}, tmp_path, "the train split has no images")
