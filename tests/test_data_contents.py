"""A release's own images, found by their content in copies of other names, forms and orders."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import zoo
from tests.data_fixtures import ARCHIVE, IMAGES, encoded, opened, pixels_of, write_archive, write_parquet
from tests.programs.plain_sweep import draw_nothing
from zoo.data import ImageDataset
from zoo.data.dataset import ImageStore, OtherImages, content_ids, find_listed, list_images
from zoo.errors import DataError, ReleaseError
from zoo.release.format import sha256
from zoo.release.write import check_release

TAIL = {"profile": "exponential", "imbalance": 4.0, "seed": 0}
TABLES = {"kind": "parquet", "train": "train-*.parquet", "test": "test-*.parquet", "image": "img"}
ORDER = np.random.default_rng(0).permutation(IMAGES["train"])


def in_memory(pixels, labels, prefix="x"):
    store = ImageStore(pixels, [f"{prefix}/{row}" for row in range(len(pixels))], has_copies=True)
    return ImageDataset(store, labels, [f"name{c}" for c in range(max(labels) + 1)])


def test_an_image_is_known_by_its_pixels_size_and_label():
    pixels = np.arange(24, dtype=np.uint8).reshape(1, 2, 4, 3)
    (found,) = content_ids(in_memory(pixels, [3]))
    digest = hashlib.sha256(b"4 2 3\n" + bytes(range(24))).digest()  # by hand: width, height, label, pixels
    assert found == np.frombuffer(digest[:8], "<i8")[0]


def test_equal_images_stand_for_each_other_as_often_as_both_have_them():
    pixels = np.array([5, 7, 5, 5], dtype=np.uint8).reshape(4, 1, 1)
    labels, order = [0, 1, 0, 1], [3, 2, 1, 0]  # the last has the pixels of the first and another label
    listed = list_images(in_memory(pixels, labels))
    found = find_listed(in_memory(pixels[order], [labels[i] for i in order], "y"), listed)
    assert np.array_equal(pixels_of(found), pixels_of(in_memory(pixels, labels)))
    assert found.labels.tolist() == labels
    assert len({found.name_of(i) for i in range(4)}) == 4  # each row once
    with pytest.raises(OtherImages, match="1 of the 4 listed images are not among the 3 here"):
        find_listed(in_memory(pixels[[0, 1, 3]], [0, 1, 1], "y"), listed)


def test_what_other_copies_cannot_be_told_from_is_not_listed(tmp_path):
    data = in_memory(np.zeros((2, 1, 1), dtype=np.uint8), [0, 1])
    assert list_images(data) is not None
    assert list_images(data.with_candidates(np.ones((2, 2)))) is None
    assert list_images(opened("digits", None, "test")) is None
    for format, expected in (("PNG", True), ("WEBP", True), ("JPEG", False)):
        write_parquet(tmp_path / format, "cifar10", format=format)
        assert (list_images(opened(TABLES, tmp_path / format, "test")) is not None) is expected


SETTINGS = {
    "training.epochs": 1,
    "training.batch_size": 32,
    "training.device": "cpu",
    "schedule.warmup_epochs": 0,
    "data.long_tail": TAIL,
    "data.source": {**TABLES, "label": "label"},
    "evaluation": [{"protocol": "classifier"}],
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A classifier of long-tailed images, trained in a moment; read only."""
    root = tmp_path_factory.mktemp("copies")
    write_parquet(root / "hub", "cifar10", order=ORDER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zoo.report.finish.draw_pictures", draw_nothing)
        recipe = "cifar_resnet20.balanced_softmax_digits_lt50"
        return zoo.pretrain(recipe, out=root / "release", data=root / "hub", overrides=SETTINGS)


@pytest.mark.usefixtures("no_pictures")
def test_a_release_of_parquet_files_is_reproduced_from_the_archive(trained, tmp_path, monkeypatch):
    write_archive(tmp_path / "data", "cifar10", monkeypatch)
    found = zoo.reproduce(trained, out=tmp_path / "again", data=tmp_path / "data", tolerance=0)
    assert found.same_weights and not len(found.wrong)
    assert found.made.config["zoo"]["dataset"]["files"] == ARCHIVE["cifar10"]
    assert found.made.recipe == trained.recipe  # and in its words any copy goes on with what is there


def change_rows(folder, change, files="*"):
    """Write a copy of the images whose tables are changed."""
    write_parquet(folder, "cifar10")
    for file in folder.glob(files):
        pq.write_table(change(pq.read_table(file)), file)
    return folder


def test_images_that_are_not_there_are_told_of_before_any_training(trained, tmp_path):
    other = encoded(Image.new("RGB", (32, 32)))

    def without(table):  # the second shard of the training images
        rows = [{**row, "img": {"bytes": other, "path": None}} for row in table.to_pylist()]
        return pa.Table.from_pylist(rows, schema=table.schema)

    data = change_rows(tmp_path / "data", without, "train-00001*")
    message = r"was trained on other images: \d+ of the \d+ listed images are not among the 200 here"
    with pytest.raises(DataError, match=message):
        zoo.reproduce(trained, out=tmp_path / "again", data=data)
    with pytest.raises(DataError, match=message):
        zoo.evaluate(trained, "linear", data, save=False)
    assert not (tmp_path / "again").exists()


def test_a_copy_with_more_images_will_do_but_not_one_with_other_classes(trained, tmp_path):
    lossy = encoded(Image.new("RGB", (32, 32)), "JPEG")

    def larger(table):  # by an image of another kind, and a broken one
        rows = table.to_pylist()
        extra = [{**rows[0], "img": {"bytes": each, "path": None}} for each in (lossy, b"no image")]
        return pa.Table.from_pylist([*extra, *rows], schema=table.schema)

    data = change_rows(tmp_path / "larger", larger)
    entry = zoo.evaluate(trained, "few_shot", data, save=False, shots=2, draws=2)
    for split in ("train", "test"):
        assert entry[f"{split}_set"]["sha256"] == trained.images[split].sha256
    data = change_rows(tmp_path / "named", lambda table: table.replace_schema_metadata(None))
    with pytest.raises(DataError, match=r"with the classes name0, name1, name2.* found 0, 1, 2"):
        zoo.evaluate(trained, "knn", data, save=False)


def altered(trained, folder, *, record=True, hashes=None, **tensors):
    copy = Path(shutil.copytree(trained.path, folder, ignore=shutil.ignore_patterns("run")))
    file = copy / "images.safetensors"
    named = {split: each.sha256 for split, each in trained.images.items()} | (hashes or {})
    save_file({**load_file(file), **tensors}, file, metadata={"sha256": json.dumps(named)})
    if record:
        text = (copy / "config.json").read_text()
        (copy / "config.json").write_text(text.replace(trained.config["zoo"]["images_sha256"], sha256(file)))
    return zoo.open(copy)


def test_a_list_that_was_altered_is_refused(trained, tmp_path):
    ids = torch.from_numpy(trained.images["train"].ids)
    changed = altered(trained, tmp_path / "changed", record=False, train=ids.flip(0))
    for use in (changed.verify, lambda: changed.images, lambda: check_release(changed)):
        with pytest.raises(ReleaseError, match=r"images\.safetensors: sha256 .* but config\.json records"):
            use()
    for name, lists, said in (
        ("kind", {"train": ids.float()}, r"images\.safetensors: "),
        ("name", {"validation": ids}, r"images\.safetensors: "),
        ("hash", {"hashes": {"train": "a" * 64}}, r"training images .*a{64}"),
    ):
        with pytest.raises(ReleaseError, match=said):
            check_release(altered(trained, tmp_path / name, **lists))
