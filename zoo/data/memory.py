"""Images that a Python program holds: in lists, and in data sets of torch and of Hugging Face."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from zoo.config import plain_kind
from zoo.data.config import Memory
from zoo.data.dataset import ImageDataset, ImageStore, Split, class_labels
from zoo.errors import DataError

TEST_PARTS = ("val", "valid", "validation", "test")
"""What a test part is called beside `train`, the first that is there: in folders, files and mappings."""

_EXPECTED = (
    "a folder, a file, a spec, a data set of Hugging Face or torch, or a list of images or (image, label)"
)
_SAMPLED = 256  # images of a data set that tell it apart from others


class Columns(NamedTuple):
    """Images by row, the path or None of each, their labels, if any, and the names of numbered classes."""

    images: Any
    paths: Sequence[str | None]
    labels: Sequence[Any] | None = None
    class_names: Sequence[str] | None = None


class _Column:
    """One column of rows: the images of (image, label), or of a Hugging Face data set."""

    def __init__(self, rows: Any, key: int | str) -> None:
        self._rows, self._key = rows, key

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> Any:
        return self._rows[row][self._key]


class MemoryImages:
    """Images of a program: `sets`, to train and maybe to test on, and the `source` that a recipe records."""

    def __init__(self, data: Any) -> None:
        """Take what `as_data` takes that is neither a path nor a spec; raise DataError for anything else."""
        parts: dict[Split, Any] = {"train": data}
        if isinstance(data, Mapping):
            test = next((name for name in TEST_PARTS if name in data), None)
            keys: dict[Split, Any] = {"train": "train", "test": test}
            parts = {split: data[key] for split, key in keys.items() if key in data}
            if not parts:
                raise DataError(f"data: found the parts {', '.join(map(str, data))}, expected train and test")
        name = type(next(iter(parts.values()))).__name__.lower()
        columns = {split: _columns(part) for split, part in parts.items()}
        trained = next(iter(columns.values()))
        self.sets: dict[Split, ImageDataset] = {}
        digest = hashlib.sha256()
        for split, (images, paths, given, _) in columns.items():
            prefix = f"{split}/" if len(parts) > 1 else "image "
            names = [path or f"{prefix}{row}" for row, path in enumerate(paths)]
            labels, classes = np.full(len(names), -1), list[str]()
            if given is not None and trained.labels is not None:
                labels, classes = class_labels(
                    given,
                    lambda row: f"{name}: label of image {row}",
                    of_training=trained.labels,
                    names=trained.class_names,
                )
            self.sets[split] = found = ImageDataset(ImageStore(images, names), labels, classes)
            digest.update(repr((names, labels.tolist(), classes)).encode("utf-8", "surrogateescape"))
            for row in range(0, len(names), -(-len(names) // _SAMPLED)):
                if not isinstance(found.item(row), Path):
                    digest.update(np.asarray(found.image(row)).tobytes())
        self.source = Memory(name=name, sha256=digest.hexdigest())


Root = str | Path | MemoryImages | None
"""The place of images: a folder, or the program that holds them; None where the source needs neither."""


def _columns(data: Any) -> Columns:
    """Return the columns of a data set or list."""
    is_indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__")  # not of one that is a stream
    if isinstance(data, Mapping | str | np.ndarray) or not is_indexed or not len(data):
        found = "no images" if is_indexed and not len(data) else plain_kind(data)
        raise DataError(f"data: found {found}, expected {_EXPECTED}")
    hub = sys.modules.get("datasets")  # whoever has such a data set has imported it
    if hub is not None and isinstance(data, hub.Dataset):
        return columns_of(data, "data")
    in_list = isinstance(data, list | tuple)
    pairs = {isinstance(row, list | tuple) and len(row) == 2 for row in (data if in_list else [data[0]])}
    if len(pairs) > 1:
        raise DataError("data: found images with and without a label, expected (image, label) for all")
    images = _Column(data, 0) if pairs == {True} else data
    paths = list[str | None]([None] * len(data))
    if in_list:
        images = [images[row] for row in range(len(data))]
        paths = [str(image) if isinstance(image, str | Path) else None for image in images]
    return Columns(images, paths, *(_labels_of(data) if pairs == {True} else ()))


def _labels_of(data: Any) -> tuple[list[Any], list[str] | None]:
    """Return the labels of (image, label), and the class names of a torch data set that has some."""
    whole = data
    while hasattr(whole, "dataset"):  # a torch Subset, maybe of another
        whole = whole.dataset
    is_plain = getattr(whole, "target_transform", None) is None
    if is_plain and hasattr(data, "targets"):  # torchvision's: no image is decoded to learn its label
        labels = list(data.targets)
    else:
        labels = [data[row][1] for row in range(len(data))]
    names = getattr(whole, "classes", None) if is_plain else None
    return labels, [*map(str, names)] if isinstance(names, list | tuple) else None


def columns_of(data: Any, where: str, image: str = "img", label: str = "label") -> Columns:
    """Return the columns of a Hugging Face `Dataset`, with images as they are stored, `{bytes, path}`.

    They are `image` and `label`, else the only one of their type. Labels are in a column of class labels,
    else of whole numbers or text; there may be none.

    Raises:
        DataError: for no column of images, or several that could be meant.
    """
    from datasets import Image

    kinds = {name: _kind(feature) for name, feature in data.features.items()}
    images = [name for name, kind in kinds.items() if kind == "Image"]
    labels = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    labels = labels or [name for name, kind in kinds.items() if kind.startswith(("int", "uint", "string"))]
    for key, name, found, default in (("image", image, images, "img"), ("label", label, labels, "label")):
        if name in kinds:
            found[:] = [name]
        elif name != default or len(found) > 1 or not images:
            raise DataError(f'{where}: no {key} "{name}", expected {key}= one of {", ".join(kinds)}')
    plain, image = data.with_format(None), images[0]
    encoded = plain.select_columns([image]).cast_column(image, Image(decode=False))
    paths = encoded.flatten().select_columns([f"{image}.path"])[:][f"{image}.path"]
    if not labels:
        return Columns(_Column(encoded, image), paths)
    names = getattr(data.features[labels[0]], "names", None)
    return Columns(_Column(encoded, image), paths, plain.select_columns(labels)[:][labels[0]], names)


def _kind(feature: Any) -> str:
    """Return "Image" for encoded images in any form, "ClassLabel", or a type such as "int64"."""
    if isinstance(feature, dict):
        return "Image" if "bytes" in feature else "struct"
    kind = feature.dtype if type(feature).__name__ == "Value" else type(feature).__name__
    return "Image" if kind in ("binary", "large_binary") else str(kind).removeprefix("large_")
