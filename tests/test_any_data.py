"""Any data: each kind gives the same features and accuracies as the same images in a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, Subset, TensorDataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

import zoo
from zoo.data import open_dataset
from zoo.data.any_data import as_data
from zoo.errors import DataError, ZooError

PACO = "cifar_resnet20.paco_digits_lt50"
SHORT = {"training.epochs": 2, "training.batch_size": 16, "training.device": "cpu", "training.threads": 1}

hub = pytest.importorskip("datasets")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty digits, `CLASS/IMAGE`; of the class 9 a single one."""
    from sklearn.datasets import load_digits

    found, root = load_digits(), tmp_path_factory.mktemp("any") / "digits"
    rows = [*[row for row in range(70) if found.target[row] != 9][:59], 9]
    for row in rows:
        file = root / str(found.target[row]) / f"{row:03}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.rint(found.images[row] * 255 / 16).astype(np.uint8)).save(file)
    return root


def hugging_face(folder: ImageFolder) -> Any:
    features = hub.Features({"picture": hub.Image(), "kind": hub.ClassLabel(names=folder.classes)})
    rows = {
        "picture": [{"bytes": Path(file).read_bytes(), "path": None} for file, _ in folder.samples],
        "kind": folder.targets,
    }
    return hub.Dataset.from_dict(rows, features=features)


def parquet(folder: ImageFolder) -> Path:
    place = Path(folder.root).parent / "parquet"
    place.mkdir(exist_ok=True)
    hugging_face(folder).to_parquet(str(place / "train.parquet"))
    return place


def arrays(folder: ImageFolder) -> list[tuple[Any, str]]:
    return [(np.asarray(Image.open(file)), folder.classes[c]) for file, c in folder.samples]


def tensors(folder: ImageFolder) -> TensorDataset:
    pixels = np.stack([pixels for pixels, _ in arrays(folder)])
    return TensorDataset(torch.from_numpy(pixels)[:, None], torch.tensor(folder.targets))


KINDS: dict[str, Callable[[ImageFolder], Any]] = {
    "spec": lambda folder: f"folder:{folder.root}",
    "parquet folder": parquet,
    "parquet file": lambda folder: str(parquet(folder) / "train.parquet"),
    "parquet files": lambda folder: [parquet(folder) / "train.parquet"],
    "hugging face": hugging_face,
    "hugging face dict": lambda folder: hub.DatasetDict({"train": hugging_face(folder)}),
    "torchvision": lambda folder: folder,
    "subset": lambda folder: Subset(Subset(folder, range(60)), range(60)),
    "to tensor": lambda folder: ImageFolder(folder.root, transform=transforms.ToTensor()),
    "tensors": tensors,
    "pairs of paths": lambda folder: [(file, folder.classes[c]) for file, c in folder.samples],
    "pairs of images": lambda folder: [(Image.open(file), c) for file, c in folder.samples],
    "pairs of arrays": arrays,
}


@pytest.fixture(scope="module")
def expected(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the images give as a folder."""
    return results(digits, tmp_path_factory.mktemp("folder"))


def results(data: Any, out: Path) -> dict[str, Any]:
    """Return what each entry point makes of data, as plain values that can be compared."""
    embedding = zoo.embed(PACO, data)
    assert embedding.labels is not None
    tuned = zoo.finetune(init=PACO, data=data, out=out / "tuned", overrides=SHORT)
    measured = {"classifier": {}, "knn": {"k": 3}}
    entries = {name: zoo.evaluate(PACO, name, data, save=False, **put) for name, put in measured.items()}
    entries["own"] = zoo.evaluate(tuned, "classifier", data, save=False)
    return {
        "features": embedding.features.numpy().tobytes(),
        "labels": [embedding.class_names[label] for label in embedding.labels],
        "classes": [each.classes for each in zoo.predict(PACO, data, top=3)],
        "metrics": {name: entry["metrics"] for name, entry in entries.items()},
        "images": {name: entry["test_set"]["num_images"] for name, entry in entries.items()},
        "weights": {name: each.numpy().tobytes() for name, each in tuned.load().state_dict().items()},
        "tested": [each["metrics"] for each in tuned.metrics["evaluations"]],
        "holdout": tuned.recipe["data"]["holdout"],
    }


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_gives_what_the_folder_gives(
    kind: str, digits: Path, expected: dict[str, Any], tmp_path: Path
) -> None:
    found = results(KINDS[kind](ImageFolder(str(digits))), tmp_path)
    assert {key for key in expected if found[key] != expected[key]} == set()


def test_a_fifth_of_each_class_is_held_out_and_never_trained_on(
    expected: dict[str, Any], digits: Path
) -> None:
    assert expected["holdout"] == {"fraction": 0.2, "seed": 0}
    assert expected["images"]["classifier"] == 60, "of other data in one part all are measured"
    assert expected["images"]["own"] == expected["images"]["knn"]
    assert expected["metrics"]["own"] in expected["tested"]
    config, root, _ = as_data(digits)
    train, test = (open_dataset(config, split, root) for split in ("train", "test"))
    names = [{each.name_of(row) for row in range(len(each))} for each in (train, test)]
    assert not names[0] & names[1] and len(names[0] | names[1]) == 60
    assert train.class_counts[9] == 1 and test.class_counts[9] == 0
    assert (test.class_counts[:9] >= 1).all() and len(test) == expected["images"]["own"]


@pytest.mark.parametrize("test", ["val", "valid", "validation", "test"])
def test_parts_are_found_by_their_names(test: str, digits: Path, tmp_path: Path) -> None:
    for part in ("train", test):
        (tmp_path / part).symlink_to(digits, target_is_directory=True)
    given = as_data(tmp_path)
    assert given.config.holdout is None and len(open_dataset(given.config, "test", given.root)) == 60
    data = hugging_face(ImageFolder(str(digits)))
    given = as_data(hub.DatasetDict({"train": data, test: data.select(range(7))}))
    assert given.config.holdout is None and len(open_dataset(given.config, "test", given.root)) == 7
    for part in ("train", test):
        data.to_parquet(str(tmp_path / "shards" / part / "0000.parquet"))
    given = as_data(tmp_path / "shards")
    assert given.config.holdout is None and len(open_dataset(given.config, "test", given.root)) == 60


def test_images_without_labels_have_features_and_classes_and_can_be_learned_from(
    digits: Path, tmp_path: Path
) -> None:
    files = [file for file, _ in ImageFolder(str(digits)).samples]
    features = zoo.embed(PACO, digits).features
    for images in (files, [Path(file) for file in files], [np.asarray(Image.open(file)) for file in files]):
        found = zoo.embed(PACO, images)
        assert torch.equal(found.features, features) and found.labels is None
    assert zoo.embed(PACO, files).names == tuple(files)
    assert zoo.embed(PACO, [Image.open(files[0])]).names == ("image 0",)
    with pytest.raises(ZooError, match=r"have no labels, .* in Python \(image, label\) for each"):
        zoo.finetune(init=PACO, data=files, out=tmp_path / "out", overrides=SHORT)
    made = zoo.pretrain(
        arch="cifar_resnet20",
        data=files,
        out=tmp_path / "made",
        overrides={**SHORT, "objective.head_hidden": 16, "training.epochs": 1},
    )
    assert made.class_names == () and made.recipe["data"]["source"]["kind"] == "memory"


def test_other_pixels_are_other_data(digits: Path) -> None:
    data = arrays(ImageFolder(str(digits)))
    first, again = (as_data(data) for _ in range(2))
    data[7] = (data[7][0] + np.uint8(1), data[7][1])
    changed = as_data(data)
    hashes = [
        (given.config.source, open_dataset(given.config, "train", given.root).describe()["sha256"])
        for given in (first, again, changed)
    ]
    assert hashes[0] == hashes[1] and hashes[0][0] != hashes[2][0] and hashes[0][1] != hashes[2][1]


IMAGE = np.zeros((8, 8, 3), dtype=np.uint8)


class Pairs(Dataset[Any]):
    def __init__(self, *rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> Any:
        return self.rows[row]


def classes(data: Any) -> tuple[list[int], tuple[str, ...]]:
    given = as_data(data)
    found = open_dataset(given.config.model_copy(update={"holdout": None}), "train", given.root)
    return found.labels.tolist(), found.class_names


def test_text_stays_text_and_numbers_are_named_by_their_range() -> None:
    assert classes([(IMAGE, "1"), (IMAGE, "01")]) == ([1, 0], ("01", "1"))
    assert classes([(IMAGE, 2), (IMAGE, 0)]) == ([2, 0], ("0", "1", "2"))
    assert classes(Pairs((IMAGE, torch.tensor(1)), (IMAGE, np.int64(0)))) == ([1, 0], ("0", "1"))
    assert classes([(IMAGE, 1.0), (IMAGE, 0.0)]) == ([1, 0], ("0", "1"))


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        (-1, "label of image 1: found -1, expected 0, 1, ..."),
        (0.5, "label of image 1: found 0.5, expected 0, 1, ..."),
        (None, "label of image 1: found None, expected 0, 1, ..."),
        ("cat", "found 'cat', expected 0, 1, ... or text, for all images one kind"),
    ],
)
@pytest.mark.parametrize("kind", [list, lambda rows: Pairs(*rows)])
def test_a_label_that_is_no_class_is_one_line(kind: Any, label: Any, expected: str) -> None:
    with pytest.raises(DataError, match=expected):
        classes(kind([(IMAGE, 0), (IMAGE, label)]))


def normalised(folder: Path) -> ImageFolder:
    view = transforms.Compose([transforms.ToTensor(), transforms.Normalize(0.5, 0.5)])
    return ImageFolder(str(folder), transform=view)


def two_columns(folder: Path) -> Any:
    data = hugging_face(ImageFolder(str(folder)))
    return data.add_column("coarse", [0] * len(data)).cast_column("coarse", hub.ClassLabel(names=["a"]))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (normalised, r'image "image 0" has floats in -1\.\.\d.*, expected 0\.\.1: .* before Normalize'),
        (two_columns, r"data: found labels in kind, coarse, .*ds\.select_columns"),
        (lambda folder: [(IMAGE, 0), IMAGE], "found images with and without a label"),
        (lambda folder: [IMAGE.astype(np.float64)], r"found float64 of \[8, 8, 3\], expected a PIL image"),
        (lambda folder: IMAGE, "data: found a ndarray, expected a folder"),
        (lambda folder: torch.utils.data.DataLoader([1]), "data: found a DataLoader, expected a folder"),
        (lambda folder: hub.Dataset.from_dict({"x": [1]}), "found no image in the columns x"),
        (lambda folder: [], "found no images"),
    ],
)
def test_what_is_no_data_is_one_line(data: Callable[[Path], Any], expected: str, digits: Path) -> None:
    for use in (
        lambda given: zoo.embed(PACO, given),
        lambda given: zoo.predict(PACO, given),
        lambda given: zoo.evaluate(PACO, "knn", given),
        lambda given: zoo.finetune(init=PACO, data=given),
        lambda given: zoo.pretrain(arch="cifar_resnet20", data=given),
        lambda given: zoo.pretrain(PACO, data=given),
    ):
        with pytest.raises(DataError, match=expected) as found:
            use(data(digits))
        assert "\n" not in str(found.value)


def test_postscript_is_not_opened(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.eps")
    (tmp_path / "a.eps").rename(tmp_path / "a.png")
    with pytest.raises(ZooError, match="cannot identify image file"):
        zoo.embed(PACO, tmp_path)
