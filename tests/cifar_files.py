"""CIFAR of a few images, in the two forms that it lies in on people's disks."""

import hashlib
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from PIL import Image
from torchvision import datasets

from tests.data_fixtures import encoded
from zoo.data import ImageDataset

IMAGES = {"train": 200, "test": 100}
ARCHIVE = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}
FOLDER = {"cifar10": "plain_text", "cifar100": "cifar100"}
LABEL = {"cifar10": "label", "cifar100": "fine_label"}
CLASSES = {"cifar10": 10, "cifar100": 100}


def drawn(kind: str, split: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    random = np.random.default_rng(len(kind) + len(split))
    labels = random.permutation(np.arange(IMAGES[split]) % CLASSES[kind])
    return random.integers(0, 256, (len(labels), 32, 32, 3), dtype=np.uint8), labels


def write_archive(root: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that torchvision reads, with their own checksums in place of the published ones."""
    folder = root / ARCHIVE[kind]
    folder.mkdir(parents=True)
    hundred = kind == "cifar100"
    names = [f"name{c}" for c in range(CLASSES[kind])]
    contents: dict[str, Any] = {
        "meta" if hundred else "batches.meta": {"fine_label_names" if hundred else "label_names": names}
    }
    for split in IMAGES:
        pixels, labels = drawn(kind, split)
        file = split if hundred else {"train": "data_batch_1", "test": "test_batch"}[split]
        rows = pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1)
        contents[file] = {"data": rows, "fine_labels" if hundred else "labels": labels.tolist()}
    cls = datasets.CIFAR100 if hundred else datasets.CIFAR10
    sums = {}
    for name, content in contents.items():
        (folder / name).write_bytes(pickle.dumps(content))
        sums[name] = hashlib.md5((folder / name).read_bytes()).hexdigest()
    meta, *files = sums
    monkeypatch.setattr(cls, "meta", {**cls.meta, "md5": sums[meta]})
    monkeypatch.setattr(cls, "train_list", [[files[0], sums[files[0]]]])
    monkeypatch.setattr(cls, "test_list", [[files[1], sums[files[1]]]])


def write_parquet(
    folder: Path,
    kind: str,
    *,
    format: str = "PNG",
    order: NDArray[np.int64] | None = None,
    shards: int = 2,
    **settings: Any,
) -> None:
    """The files of the Hub's repository, in the archive's order unless told one (of the training images)."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"name{c}" for c in range(CLASSES[kind])]
    info = {"info": {"features": {LABEL[kind]: {"_type": "ClassLabel", "names": names}}}}
    for split in IMAGES:
        pixels, labels = drawn(kind, split)
        rows = np.arange(len(labels)) if order is None else order[order < len(labels)]
        count = shards if split == "train" else 1
        for number, part in enumerate(np.array_split(rows, count)):
            images = [
                {"bytes": encoded(Image.fromarray(pixels[i]), format, **settings), "path": None} for i in part
            ]
            columns = {"img": images, LABEL[kind]: labels[part]}
            if kind == "cifar100":
                columns["coarse_label"] = labels[part] // 5
            table = pa.table(columns).replace_schema_metadata({"huggingface": json.dumps(info)})
            pq.write_table(table, folder / f"{split}-{number:05d}-of-{count:05d}.parquet")


def pixels_of(data: ImageDataset) -> NDArray[np.uint8]:
    return np.stack([np.asarray(data.image(i)) for i in range(len(data))])
