"""Small hand-made images, data sets and loaders for the tests of `zoo.data`."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

from zoo.config import parse
from zoo.data import DataConfig, TrainLoader, ViewsConfig, open_dataset
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


def shard(path, labels, *, names=(), column="label", image="img", images=None):
    """Write a parquet file as the Hub's `datasets` does."""
    rows = [{"bytes": png(n), "path": f"p{n}.png"} for n in range(len(labels))] if images is None else images
    table = pa.table({image: rows, column: labels})
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
