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
from zoo.data.dataset import ImageDataset, ImageStore, Split
from zoo.data.folder import image_files
from zoo.data.labels import class_labels
from zoo.data.table import columns_of
from zoo.errors import DataError
from zoo.files import is_dir

TEST_PARTS = ("val", "valid", "validation", "test")
"""What a test part is called beside `train`, the first that is there: in folders, files and mappings."""

EXPECTED = (
    "a folder, a data spec, parquet files, a Hugging Face Dataset or DatasetDict, a torch Dataset of "
    "(image, label), or a list of images or of (image, label)"
)
_SAMPLED = 256  # images that tell a data set that decodes them apart from others


class _Column:
    """One column of rows: the images of (image, label), or of a Hugging Face data set."""

    def __init__(self, rows: Any, key: int | str) -> None:
        self._rows, self._key = rows, key

    def __getitem__(self, row: int) -> Any:
        return self._rows[row][self._key]


class _Part(NamedTuple):
    """N images and their names, their labels as they were given, and the names of the classes."""

    items: Any
    names: list[str]
    labels: Sequence[Any] | None = None
    class_names: Sequence[str] | None = None


class MemoryImages:
    """Images of a program, in one part or in one to train on and one to test on.

    Attributes:
        splits: the parts that are there.
        labelled: whether the images have labels.
        source: what a recipe records of them.
    """

    def __init__(self, data: Any) -> None:
        """Take what `zoo.data.any_data.as_data` takes that is neither a path nor a spec.

        Raises:
            DataError: for anything else, for an ambiguous choice of columns, for images in other forms, and
                for a label that is no class of the training part's.
        """
        parts: dict[Split, Any] = {"train": data}
        if isinstance(data, Mapping):
            test = next((name for name in TEST_PARTS if name in data), None)
            if test is None and "train" not in data and len(data) != 1:
                raise DataError(f"data: found the parts {', '.join(map(str, data))}, expected train and test")
            train = "train" if "train" in data else None if test else next(iter(data))
            keys: dict[Split, Any] = {"train": train, "test": test}
            parts = {split: data[key] for split, key in keys.items() if key is not None}
        found = {
            split: _part(part, f"{split}/" if len(parts) > 1 else "image ") for split, part in parts.items()
        }
        first, digest = next(iter(parts.values())), hashlib.sha256()
        name = "images" if isinstance(first, list | tuple) else type(first).__name__.lower()
        training = next(iter(found.values()))
        self.splits = tuple(found)
        self.labelled = all(part.labels is not None for part in found.values())
        self._sets: dict[Split, ImageDataset] = {}
        for split, (items, names, given, class_names) in found.items():
            store, labels, classes = ImageStore(items, names), np.full(len(names), -1), list[str]()
            if self.labelled:
                labels, classes = class_labels(
                    given or (),
                    lambda row: f"{name}: label of image {row}",
                    of_training=training.labels,
                    names=training.class_names,
                )
            self._sets[split] = ImageDataset(store, labels, classes)
            _hash(store, digest, in_list=isinstance(items, list))
            digest.update(repr((list(map(str, given or ())), class_names)).encode())
        self.source = Memory(name=name, sha256=digest.hexdigest())

    def opened(self, split: Split) -> ImageDataset:
        """Return the images of a part; their labels are -1 and the classes none where they have no labels.

        Raises:
            DataError: for a part that is not there.
        """
        if split not in self._sets:
            raise DataError(f"{self.source.name}: found no images to {split} on")
        return self._sets[split]


Root = str | Path | MemoryImages | None
"""The place of images: a folder, or the program that holds them; None where the source needs neither."""


def _hash(store: ImageStore, digest: Any, *, in_list: bool) -> None:
    """Hash the names of files, or pixels: a list's all, of others a sample of 256."""
    for row in range(0, len(store), 1 if in_list else -(-len(store) // _SAMPLED)):
        digest.update(f"{row} {store.name(row)}\n".encode("utf-8", "surrogateescape"))
        if not (in_list and isinstance(store.item(row), Path)):
            digest.update(np.asarray(store.read(row)).tobytes())


def _part(data: Any, prefix: str) -> _Part:
    """Find images, labels and class names in one data set or list; `prefix` begins the images' names."""
    indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__")  # not of a data set that is a stream
    if isinstance(data, Mapping | str | np.ndarray) or not indexed:
        raise DataError(f"data: found {plain_kind(data)}, expected {EXPECTED}")
    if len(data) == 0:
        raise DataError("data: found no images, expected at least one")
    names = [f"{prefix}{row}" for row in range(len(data))]
    hub = sys.modules.get("datasets")  # whoever has such a data set has imported it
    if hub is not None and isinstance(data, hub.Dataset):
        image, label = columns_of(data.features, "data", "ds.select_columns([IMAGE, LABEL])")
        data = data.with_format(None)
        pictures = data.select_columns([image]).cast_column(image, hub.Image(decode=False))
        labels = None if label is None else list(data.select_columns([label])[:][label])
        return _Part(
            _Column(pictures, image), names, labels, getattr(data.features.get(label), "names", None)
        )
    in_list = isinstance(data, list | tuple)
    if in_list:
        data, names = _files_of(data, names)
    pairs = {_is_pair(row) for row in (data if in_list else [data[0]])}
    if len(pairs) > 1:
        raise DataError("data: found images with and without a label, expected (image, label) for all")
    if pairs == {False}:
        return _Part(data, names)
    return _Part([image for image, _ in data] if in_list else _Column(data, 0), names, *_labels_of(data))


def _is_pair(row: Any) -> bool:
    return isinstance(row, list | tuple) and len(row) == 2


def _files_of(data: Sequence[Any], names: Sequence[str]) -> tuple[list[Any], list[str]]:
    """Return a list with the images in folders, at any depth, in place of these; and the images' names."""
    found, named = list[Any](), list[str]()
    for item, name in zip(data, names, strict=True):
        image = item[0] if _is_pair(item) else item
        if isinstance(item, str | Path) and is_dir(item):
            inside = [Path(item, name) for name in sorted(image_files(Path(item)))]
            if not inside:
                raise DataError(f'images: found none in the folder "{item}", at any depth')
            found += inside
            named += map(str, inside)
        else:
            found.append(item)
            named.append(str(image) if isinstance(image, str | Path) else name)
    return found, named


def _labels_of(data: Any) -> tuple[list[Any], list[str] | None]:
    """Return the labels of (image, label), read without the images where the data set has them apart."""
    rows, whole = range(len(data)), data
    while hasattr(whole, "indices") and hasattr(whole, "dataset"):  # a torch Subset, maybe of another
        rows, whole = [whole.indices[row] for row in rows], whole.dataset  # type: ignore[assignment]
    apart = next((getattr(whole, key) for key in ("targets", "labels") if hasattr(whole, key)), None)
    names = getattr(whole, "classes", None)
    names = [str(name) for name in names] if isinstance(names, list | tuple) else None
    if getattr(whole, "target_transform", None) is not None:
        apart = names = None
    if apart is None or len(apart) != len(whole):
        return [data[row][1] for row in range(len(data))], names
    listed = apart.tolist() if hasattr(apart, "tolist") else list(apart)
    return [listed[row] for row in rows], names
