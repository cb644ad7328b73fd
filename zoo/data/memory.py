"""Images that a Python program holds: in lists, and in data sets of torch and of Hugging Face."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zoo.config import plain_kind
from zoo.data.config import Memory
from zoo.data.dataset import ImageDataset, ImageStore, Split
from zoo.data.labels import class_labels
from zoo.data.readers import columns_of, image_files
from zoo.errors import DataError
from zoo.files import is_dir

TEST_PARTS = ("val", "valid", "validation", "test")
"""What a test part is called beside `train`, the first that is there: in folders, files and mappings."""

_EXPECTED = (
    "a folder, a file, a spec, a data set of Hugging Face or torch, or a list of images or (image, label)"
)
_SAMPLED = 256  # images that tell a data set that decodes them apart from others


class _Column:
    """One column of rows: the images of (image, label), or of a Hugging Face data set."""

    def __init__(self, rows: Any, key: int | str) -> None:
        self._rows, self._key = rows, key

    def __getitem__(self, row: int) -> Any:
        return self._rows[row][self._key]


class MemoryImages:
    """Images of a program: `sets`, to train and maybe to test on, and the `source` that a recipe records."""

    def __init__(self, data: Any) -> None:
        """Take what `as_data` takes that is neither a path nor a spec; raise DataError for anything else."""
        parts: dict[Split, Any] = {"train": data}
        if isinstance(data, Mapping):
            test = next((name for name in TEST_PARTS if name in data), None)
            train = "train" if "train" in data or test or len(data) != 1 else next(iter(data))
            keys: dict[Split, Any] = {"train": train, "test": test}
            parts = {split: data[key] for split, key in keys.items() if key in data}
            if not parts:
                raise DataError(f"data: found the parts {', '.join(map(str, data))}, expected train and test")
        first, digest = next(iter(parts.values())), hashlib.sha256()
        name = "images" if isinstance(first, list | tuple) else type(first).__name__.lower()
        prefix = "{}/" if len(parts) > 1 else "image "
        found = {split: _columns(part, prefix.format(split)) for split, part in parts.items()}
        _, _, of_training, training_names = next(iter(found.values()))
        self.sets: dict[Split, ImageDataset] = {}
        for split, (items, names, given, class_names) in found.items():
            labels, classes = np.full(len(names), -1), list[str]()
            if all(each for _, _, each, _ in found.values()):
                labels, classes = class_labels(
                    given,
                    lambda row: f"{name}: label of image {row}",
                    of_training=of_training,
                    names=training_names,
                )
            images = self.sets[split] = ImageDataset(ImageStore(items, names), labels, classes)
            in_list = isinstance(items, list)  # of which every image is hashed
            for row in range(0, len(images), 1 if in_list else -(-len(names) // _SAMPLED)):
                digest.update(f"{row} {names[row]}\n".encode("utf-8", "surrogateescape"))
                if not (in_list and isinstance(images.item(row), Path)):
                    digest.update(np.asarray(images.image(row)).tobytes())
            digest.update(repr((list(map(str, given)), class_names)).encode())
        self.source = Memory(name=name, sha256=digest.hexdigest())


Root = str | Path | MemoryImages | None
"""The place of images: a folder, or the program that holds them; None where the source needs neither."""


def _columns(data: Any, prefix: str) -> tuple[Any, list[str], Sequence[Any], Sequence[str] | None]:
    """Return images, their names, their labels (or nothing) and the class names of a data set or list."""
    indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__")  # not of a data set that is a stream
    if isinstance(data, Mapping | str | np.ndarray) or not indexed or len(data) == 0:
        found = "no images" if indexed and len(data) == 0 else plain_kind(data)
        raise DataError(f"data: found {found}, expected {_EXPECTED}")
    names = [f"{prefix}{row}" for row in range(len(data))]
    hub = sys.modules.get("datasets")  # whoever has such a data set has imported it
    if hub is not None and isinstance(data, hub.Dataset):
        image, label = columns_of(data.features, "data", "img", "label")
        data = data.with_format(None)
        pictures = data.select_columns([image]).cast_column(image, hub.Image(decode=False))
        labels = [] if label is None else list(data.select_columns([label])[:][label])
        return _Column(pictures, image), names, labels, getattr(data.features.get(label), "names", None)
    in_list = isinstance(data, list | tuple)
    if in_list:
        data, names = _with_files(data, names)
    pairs = {_is_pair(row) for row in (data if in_list else [data[0]])}
    if len(pairs) > 1:
        raise DataError("data: found images with and without a label, expected (image, label) for all")
    if pairs == {False}:
        return data, names, [], None
    return [image for image, _ in data] if in_list else _Column(data, 0), names, *_labels_of(data)


def _is_pair(row: Any) -> bool:
    return isinstance(row, list | tuple) and len(row) == 2


def _with_files(data: Sequence[Any], names: Sequence[str]) -> tuple[list[Any], list[str]]:
    """Return a list with the images in folders, at any depth, in place of these; and the images' names."""
    found = list[tuple[Any, str]]()
    for row, name in zip(data, names, strict=True):
        image = row[0] if _is_pair(row) else row
        if isinstance(row, str | Path) and is_dir(row):
            found += [(Path(row, path), str(Path(row, path))) for path, _ in sorted(image_files(Path(row)))]
        else:
            found.append((row, str(image) if isinstance(image, str | Path) else name))
    return [row for row, _ in found], [name for _, name in found]


def _labels_of(data: Any) -> tuple[list[Any], list[str] | None]:
    """Return the labels of (image, label), read without the images where the data set has them apart."""
    rows, whole = list(range(len(data))), data
    while hasattr(whole, "indices") and hasattr(whole, "dataset"):  # a torch Subset, maybe of another
        rows, whole = [whole.indices[row] for row in rows], whole.dataset
    is_plain = getattr(whole, "target_transform", None) is None
    apart = next((getattr(whole, key) for key in ("targets", "labels") if hasattr(whole, key)), ())
    names = getattr(whole, "classes", None) if is_plain else None
    classes = [*map(str, names)] if isinstance(names, list | tuple) else None
    if len(apart) != len(whole) or not is_plain:
        return [data[row][1] for row in range(len(data))], classes
    listed = apart.tolist() if hasattr(apart, "tolist") else apart
    return [listed[row] for row in rows], classes
