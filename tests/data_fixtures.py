"""Small hand-made images, data sets and loaders for the tests of `zoo.data`."""

import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision import datasets

from zoo.config import parse
from zoo.data import DataConfig, ImageDataset, TrainLoader, ViewsConfig, open_dataset
from zoo.data.config import Digits, ListFiles

MEAN = [0.5, 0.4, 0.3]
STD = [0.2, 0.25, 0.3]
CROP = {"op": "random_resized_crop", "size": 8}
MOCO = [CROP, *({"op": op} for op in ("color_jitter", "grayscale", "horizontal_flip"))]


def photo(width, height, seed):
    """Smooth colours with some noise: like a photograph, it changes little from pixel to pixel."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width] / max(width, height)
    waves = [
        np.sin(random.uniform(1, 7) * x + random.uniform(1, 7) * y + random.uniform(0, 6)) for _ in "rgb"
    ]
    pixels = 127 + 110 * np.stack(waves, -1) + random.normal(0, 6, (height, width, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def encoded(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def png(seed):
    return encoded(photo(6, 6, seed))


def put(root, *paths):
    """Write an image to each path."""
    for number, path in enumerate(paths):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(png(number))


def list_dataset(folder, images):
    """Write images as PNG files 0.png, 1.png, ... with a list file, and open them."""
    for number, image in enumerate(images):
        image.save(folder / f"{number}.png")
    (folder / "all.txt").write_text("".join(f"{n}.png {n % 2}\n" for n in range(len(images))))
    return open_dataset(DataConfig(source=ListFiles(train="all.txt", test="all.txt")), "train", folder)


def shard(path, labels, *, names=(), column="label", image="img", images=None, **more):
    """Write a parquet file as the Hub's `datasets` does; `more` columns."""
    rows = [{"bytes": png(n), "path": f"p{n}.png"} for n in range(len(labels))] if images is None else images
    table = pa.table({image: rows, column: labels, **more})
    if names:
        info = {"info": {"features": {column: {"_type": "ClassLabel", "names": list(names)}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def opened(source, root, split="train", listed=None, *, unlabelled=False, **sections):
    """Open a split of a source as a recipe has it: a kind, or a section."""
    source = {"kind": source} if isinstance(source, str) else source
    config = parse(DataConfig, {"source": source, **sections}, "r")
    return open_dataset(config, split, root, listed, unlabelled=unlabelled)


def digits(count=50):
    return open_dataset(DataConfig(source=Digits()), "test", None).subset(range(0, 500, 500 // count))


def make(data, backend="tensor", workers=0, views=(MOCO, [CROP]), **keys):
    """Return the loader of a data set, by default of batches of eight and the seed 1."""
    section = {"backend": backend, "workers": workers, "train": list(views)}
    config = parse(ViewsConfig, {**section, "eval": {"size": 8}}, "r")
    defaults = {"mean": MEAN, "std": STD, "batch_size": 8, "drop_last": True, "seed": 1, "device": "cpu"}
    return TrainLoader(data, config, **{**defaults, **keys})


def same(left, right):
    """Return whether two batches are equal to the bit."""
    fields = ((*each.views, each.labels, each.index) for each in (left, right))
    return all(torch.equal(a, b) for a, b in zip(*fields, strict=True))


# --- CIFAR of a few images, in the two forms that it lies in on people's disks


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
    """The files that torchvision reads, whose published checksums do not count."""
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
    for name, content in contents.items():
        (folder / name).write_bytes(pickle.dumps(content))
    _, train, test = contents
    monkeypatch.setattr(cls, "meta", {**cls.meta, "md5": None})
    monkeypatch.setattr(cls, "train_list", [[train, None]])
    monkeypatch.setattr(cls, "test_list", [[test, None]])


def write_parquet(
    folder: Path, kind: str, *, format: str = "PNG", order: NDArray[np.int64] | None = None
) -> None:
    """The files of the Hub's repository, in the archive's order unless told one (of the training images)."""
    names = [f"name{c}" for c in range(CLASSES[kind])]
    for split in IMAGES:
        pixels, labels = drawn(kind, split)
        rows = np.arange(len(labels)) if order is None else order[order < len(labels)]
        count = 2 if split == "train" else 1
        for number, part in enumerate(np.array_split(rows, count)):
            files = [encoded(Image.fromarray(pixels[i]), format, lossless=True) for i in part]
            images = [{"bytes": each, "path": None} for each in files]
            file, more = folder / f"{split}-{number:05d}-of-{count:05d}.parquet", {}
            if kind == "cifar100":
                more["coarse_label"] = labels[part] // 5
            shard(file, labels[part], names=names, column=LABEL[kind], images=images, **more)


def pixels_of(data: ImageDataset) -> NDArray[np.uint8]:
    return np.stack([np.asarray(data.image(i)) for i in range(len(data))])
