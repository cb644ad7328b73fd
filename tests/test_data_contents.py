"""A release's own images, found by their content in copies of other names, forms and orders."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

import zoo
from tests.cifar_files import ARCHIVE, IMAGES, drawn, encode, pixels_of, write_archive, write_parquet
from zoo.config import parse
from zoo.data import DataConfig, ImageDataset, open_dataset
from zoo.data.dataset import ImageStore, OtherImages, content_ids, find_listed, list_images
from zoo.errors import DataError, ReleaseError
from zoo.release import Release
from zoo.release.format import sha256
from zoo.release.tensors import ImageList
from zoo.release.write import check_release

TAIL = {"profile": "exponential", "imbalance": 4.0, "seed": 0}
ORDER = np.random.default_rng(0).permutation(IMAGES["train"])


def opened(
    root: Path, split: Any = "train", listed: ImageList | None = None, **sections: Any
) -> ImageDataset:
    config = parse(DataConfig, {"source": {"kind": "cifar10"}, **sections}, "r")
    return open_dataset(config, split, root, listed)


def in_memory(pixels: NDArray[np.uint8], labels: list[int], prefix: str = "x") -> ImageDataset:
    store = ImageStore(pixels, [f"{prefix}/{row}" for row in range(len(pixels))], has_copies=True)
    return ImageDataset(store, labels, [f"name{c}" for c in range(max(labels) + 1)])


def test_an_image_is_known_by_its_pixels_size_and_label() -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(1, 2, 4, 3)
    (found,) = content_ids(in_memory(pixels, [3]))
    digest = hashlib.sha256(b"4 2 3\n" + bytes(range(24))).digest()  # by hand: width, height, label, pixels
    assert found == np.frombuffer(digest[:8], "<i8")[0]
    others = [in_memory(pixels, [2]), in_memory(pixels.reshape(1, 4, 2, 3), [3]), in_memory(pixels + 1, [3])]
    assert len({int(found), *(int(content_ids(other)[0]) for other in others)}) == 4


@pytest.mark.parametrize("sections", [{"long_tail": TAIL}, {"subset": {"per_class": 3}}, {}])
def test_listed_images_come_out_of_another_copy_in_their_order(
    sections: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_archive(tmp_path / "archive", "cifar10", monkeypatch)
    write_parquet(tmp_path / "hub", "cifar10", order=ORDER)
    theirs = opened(tmp_path / "hub", **sections)
    listed = list_images(theirs)
    assert listed is not None
    drawn_anew = opened(tmp_path / "archive", **sections)
    assert not np.array_equal(pixels_of(drawn_anew), pixels_of(theirs))  # which is why there are lists
    ours = opened(tmp_path / "archive", listed=listed, **sections)
    assert np.array_equal(pixels_of(ours), pixels_of(theirs))
    assert np.array_equal(ours.labels, theirs.labels)
    facts, expected = ours.describe(), theirs.describe()
    assert facts["files"] != expected["files"]
    assert {**facts, "files": 0} == {**expected, "files": 0}
    assert opened(tmp_path / "hub", listed=listed, **sections).describe() == expected


def test_equal_images_stand_for_each_other_as_often_as_both_have_them() -> None:
    pixels = np.array([5, 7, 5, 5], dtype=np.uint8).reshape(4, 1, 1)
    labels = [0, 1, 0, 1]  # the last has the pixels of the first and another label
    listed = list_images(in_memory(pixels, labels))
    assert listed is not None
    order = [3, 2, 1, 0]
    other = in_memory(pixels[order], [labels[i] for i in order], "y")
    found = find_listed(other, listed)
    assert np.array_equal(pixels_of(found), pixels_of(in_memory(pixels, labels)))
    assert found.labels.tolist() == labels
    assert len({found.name_of(i) for i in range(4)}) == 4  # each row once
    fewer = in_memory(pixels[[0, 1, 3]], [0, 1, 1], "y")
    with pytest.raises(OtherImages, match="1 of the 4 listed images are not among the 3 here"):
        find_listed(fewer, listed)


def test_what_other_copies_cannot_be_told_from_is_not_listed(tmp_path: Path) -> None:
    pixels = np.zeros((2, 1, 1), dtype=np.uint8)
    data = in_memory(pixels, [0, 1])
    assert list_images(data) is not None
    assert list_images(data.with_candidates(np.ones((2, 2)))) is None
    assert list_images(data.subset([])) is None
    digits = open_dataset(parse(DataConfig, {"source": {"kind": "digits"}}, "r"), "test", None)
    assert list_images(digits) is None
    source = {"kind": "parquet", "train": "train-*.parquet", "test": "test-*.parquet"}
    columns = {"image": "img", "label": "label"}
    for format, settings, expected in (("PNG", {}, True), ("JPEG", {}, False), ("WEBP", {}, False)):
        write_parquet(tmp_path / format, "cifar10", format=format, **settings)
        config = parse(DataConfig, {"source": {**source, **columns}}, "r")
        assert (list_images(open_dataset(config, "test", tmp_path / format)) is not None) is expected


RECIPE = "cifar_resnet20.balanced_softmax_digits_lt50"
SETTINGS = (
    "training.epochs=2",
    "training.batch_size=32",
    "training.device=cpu",
    "training.precision=fp32",
    "schedule.warmup_epochs=0",
    "data.long_tail={profile: exponential, imbalance: 4, seed: 0}",
    "data.source={kind: parquet, train: train-*.parquet, test: test-*.parquet, image: img, label: label}",
    "evaluation=[{protocol: classifier}, {protocol: knn, k: 3}]",
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same images as two sets of parquet files of another order and encoding."""
    root = tmp_path_factory.mktemp("copies")
    write_parquet(root / "hub", "cifar10", order=ORDER)
    write_parquet(root / "other", "cifar10", format="WEBP", lossless=True, shards=3)
    return root


@pytest.fixture(scope="module")
def trained(folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Release:
    """A classifier of long-tailed images, trained in a moment; read only."""
    out = tmp_path_factory.mktemp("trained") / "release"
    return zoo.pretrain(RECIPE, out=out, data=folders / "hub", overrides=SETTINGS)


def test_a_release_of_parquet_files_is_reproduced_from_the_archive(
    trained: Release, folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_archive(tmp_path / "data", "cifar10", monkeypatch)
    found = zoo.reproduce(trained, out=tmp_path / "again", data=tmp_path / "data", tolerance=0)
    assert found is not None and found.same_weights and not len(found.wrong)
    assert found.made.config["zoo"]["dataset"]["files"] == ARCHIVE["cifar10"]
    assert found.made.recipe == trained.recipe  # and in its words any copy goes on with what is there
    again = zoo.reproduce(trained, out=tmp_path / "again", data=folders / "other", tolerance=0, resume=True)
    assert again is not None and not len(again.wrong)


def without_one(folder: Path, listed: ImageList) -> None:
    """Write a copy in which one of the listed images has another pixel."""
    pixels, labels = drawn("cifar10", "train")
    ids = content_ids(in_memory(pixels, labels.tolist()))
    changed = int(np.flatnonzero(ids == listed.ids[0])[0])

    def damaged(kind: str, split: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        found, classes = drawn(kind, split)
        if split == "train":
            found[changed, 0, 0, 0] ^= 1
        return found, classes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.cifar_files.drawn", damaged)
        write_parquet(folder, "cifar10")


def test_images_that_are_not_there_are_told_of_before_any_training(trained: Release, tmp_path: Path) -> None:
    without_one(tmp_path / "data", trained.images["train"])
    count = len(trained.images["train"].ids)
    message = f"was trained on other images: 1 of the {count} listed images are not among the 400 here, by"
    for call in (
        lambda: zoo.reproduce(trained, out=tmp_path / "again", data=tmp_path / "data"),
        lambda: zoo.evaluate(trained, "linear", tmp_path / "data", save=False),
    ):
        with pytest.raises(DataError, match=message):
            call()
    assert not (tmp_path / "again").exists()


def test_a_copy_with_more_images_will_do_but_not_one_with_other_classes(
    trained: Release, tmp_path: Path
) -> None:
    write_parquet(tmp_path / "larger", "cifar10", order=ORDER)
    lossy = encode(np.zeros((32, 32, 3), np.uint8), "JPEG")
    for file in (tmp_path / "larger").iterdir():  # one image of each file is of another kind, and one broken
        table = pq.read_table(file)
        rows = table.to_pylist()
        extra = [{**rows[0], "img": {"bytes": each, "path": None}} for each in (lossy, b"no image")]
        pq.write_table(pa.Table.from_pylist([*extra, *rows], schema=table.schema), file)
    entry = zoo.evaluate(trained, "few_shot", tmp_path / "larger", save=False, shots=2, draws=2)
    assert entry["train_set"]["sha256"] == trained.images["train"].sha256
    assert entry["test_set"]["sha256"] == trained.images["test"].sha256

    write_parquet(tmp_path / "named", "cifar10")
    for file in (tmp_path / "named").iterdir():
        table = pq.read_table(file)
        pq.write_table(table.replace_schema_metadata(None), file)
    with pytest.raises(DataError, match=r"with the classes name0, name1, name2.* found 0, 1, 2"):
        zoo.evaluate(trained, "knn", tmp_path / "named", save=False)


def altered(
    trained: Release,
    folder: Path,
    *,
    record: bool = True,
    hashes: dict[str, str] | None = None,
    **tensors: Any,
) -> Release:
    copy = Path(shutil.copytree(trained.path, folder, ignore=shutil.ignore_patterns("run")))
    file = copy / "images.safetensors"
    named = {split: each.sha256 for split, each in trained.images.items()}
    save_file(
        {**load_file(file), **tensors}, file, metadata={"sha256": json.dumps({**named, **(hashes or {})})}
    )
    if record:
        text = (copy / "config.json").read_text()
        (copy / "config.json").write_text(text.replace(trained.config["zoo"]["images_sha256"], sha256(file)))
    return zoo.open(copy)


def test_a_list_that_was_altered_is_refused(trained: Release, tmp_path: Path) -> None:
    ids = torch.from_numpy(trained.images["train"].ids)
    changed = altered(trained, tmp_path / "changed", record=False, train=ids.flip(0))
    for use in (changed.verify, lambda: changed.images, lambda: check_release(changed)):
        with pytest.raises(ReleaseError, match=r"images\.safetensors: sha256 .* but config\.json records"):
            use()
    for name, lists, said in (
        ("short", {"train": ids[1:]}, r"images\.safetensors: "),
        ("kind", {"train": ids.float()}, r"images\.safetensors: "),
        ("name", {"validation": ids}, r"images\.safetensors: "),
        ("hash", {"hashes": {"train": "a" * 64}}, r"training images .*a{64}"),
    ):
        with pytest.raises(ReleaseError, match=said):
            check_release(altered(trained, tmp_path / name, **lists))
